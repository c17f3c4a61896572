// The list of rows.

import { get } from "../api.js";
import { h, link } from "../dom.js";
import { count } from "../format.js";
import { field, pager, debounce } from "../parts.js";

const LIMIT = 60;

export async function rows(content, _, parameters) {
  const query = { search: parameters.get("search") ?? "", offset: Number(parameters.get("offset")) || 0 };
  const address = (change) => `#/rows?${new URLSearchParams({ ...query, ...change })}`;
  const results = h("div", { "aria-live": "polite" });
  const search = h("input", { type: "search", value: query.search, autocomplete: "off" });
  search.addEventListener(
    "input",
    debounce(async () => {
      Object.assign(query, { search: search.value, offset: 0 });
      history.replaceState(null, "", address());
      await load(results, query, address);
    }),
  );
  content.append(
    h("h1", null, "Rows"),
    h(
      "p",
      { class: "lead" },
      "The people or things with observations of features. Open a row to see its recommended features, and why.",
    ),
    h(
      "form",
      { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      field("Search by name", search),
    ),
    results,
  );
  await load(results, query, address);
}

async function load(results, query, address) {
  const request = (load.last = Symbol("request"));
  const page = await get(`v1/rows?${new URLSearchParams({ ...query, limit: LIMIT })}`);
  if (request !== load.last) return; // a later request is on its way
  results.replaceChildren(
    ...[
      h("p", { class: "muted" }, page.total ? `${count(page.total, "row")}.` : "No row has such a name."),
      h(
        "ul",
        { class: "names" },
        page.rows.map((name) => h("li", null, link("row", name))),
      ),
      pager(page.total, query.offset, LIMIT, (offset) => address({ offset })),
    ].filter(Boolean),
  );
}
