// The list of rows, and a form for a new one.

import { get, pathOf, post } from "../api.js";
import { announce, h, href, link } from "../dom.js";
import { entryPage } from "../entry_form.js";
import { observationFields } from "../observation_form.js";
import { debounce, field, pager } from "../parts.js";
import { a, capital, countOf, words } from "../words.js";

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
    h(
      "div",
      { class: "head" },
      h("h1", null, capital(words.rows)),
      h("a", { class: "button primary", href: "#/add-row" }, `Add ${a(words.row)}`),
    ),
    h("p", { class: "lead" }, `Open ${a(words.row)} to see its recommended ${words.features}, and why.`),
    h(
      "form",
      { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      field("Search by name or title", search),
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
      h("p", { class: "muted" }, page.total ? `${countOf(page.total, "row")}.` : `No ${words.row} has such a name or title.`),
      h(
        "ul",
        { class: "names" },
        page.rows.map((name, i) => h("li", null, link("row", name, page.titles?.[i]))),
      ),
      pager(page.total, query.offset, LIMIT, (offset) => address({ offset })),
    ].filter(Boolean),
  );
}

/** Show the form for a new row. */
export async function addRow(content) {
  const schema = await get("v1/schema");
  const fields = observationFields({ kind: "any", of: "feature" });
  content.append(
    ...entryPage("row", {
      lead: `All ${words.features} can be predicted for it as soon as it is added.`,
      columns: schema.rows,
      observations: fields.element,
      async submit({ name, metadata }) {
        const body = { name, observations: fields.read(), ...(schema.rows.length ? { metadata } : {}) };
        await post("v1/rows", body);
        const known = await get(pathOf("rows", name)); // its name as the service spells it
        announce(`Added ${known.name}. Its predictions are ready.`);
        location.hash = href("row", known.name);
      },
    }),
  );
}
