// All rows, by name.

import { get } from "../api.js";
import { h, link } from "../dom.js";
import { count } from "../format.js";
import { field, pager, settled } from "../parts.js";

const LIMIT = 60;

export async function rows(content, _, query) {
  const asked = { search: query.get("search") ?? "", offset: Number(query.get("offset")) || 0 };
  const address = (change) => `#/rows?${new URLSearchParams({ ...asked, ...change })}`;
  const results = h("div", { "aria-live": "polite" });
  const search = h("input", { type: "search", value: asked.search, autocomplete: "off" });
  search.addEventListener(
    "input",
    settled(async () => {
      Object.assign(asked, { search: search.value, offset: 0 });
      history.replaceState(null, "", address());
      await load(results, asked, address);
    }),
  );
  content.append(
    h("h1", null, "Rows"),
    h(
      "p",
      { class: "lead" },
      "The people or things that the features are observed of. Open one to see its recommended features, and why.",
    ),
    h(
      "form",
      { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      field("Search by name", search),
    ),
    results,
  );
  await load(results, asked, address);
}

async function load(results, asked, address) {
  const own = (load.last = Symbol("asked"));
  const found = await get(`v1/rows?${new URLSearchParams({ ...asked, limit: LIMIT })}`);
  if (own !== load.last) return;
  results.replaceChildren(
    ...[
      h("p", { class: "muted" }, found.total ? `${count(found.total, "row")}.` : "No row has such a name."),
      h(
        "ul",
        { class: "names" },
        found.rows.map((name) => h("li", null, link("row", name))),
      ),
      pager(found.total, asked.offset, LIMIT, (offset) => address({ offset })),
    ].filter(Boolean),
  );
}
