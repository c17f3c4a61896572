// All features: searched, sorted and paged by the service.

import { get } from "../api.js";
import { h, link } from "../dom.js";
import { meter, table } from "../figures.js";
import { count, estimate, kind, number, when } from "../format.js";
import { field, pager, settled } from "../parts.js";

const LIMIT = 25;
const SORTS = {
  "added asc": "First added first",
  "added desc": "Last added first",
  "name asc": "Name",
  "uncertainty desc": "Most uncertain first",
  "uncertainty asc": "Least uncertain first",
  "shots asc": "Fewest shots first",
  "shots desc": "Most shots first",
};

export async function features(content, _, query) {
  const asked = {
    search: query.get("search") ?? "",
    sort: query.get("sort") ?? "added desc",
    offset: Number(query.get("offset")) || 0,
  };
  const address = (change) => `#/features?${new URLSearchParams({ ...asked, offset: 0, ...change })}`;
  const results = h("div", { "aria-live": "polite", "aria-busy": "true" });
  const search = h("input", { type: "search", value: asked.search, autocomplete: "off" });
  const sort = h(
    "select",
    null,
    Object.entries(SORTS).map(([value, text]) =>
      h("option", { value, selected: value === asked.sort }, text),
    ),
  );

  // Typing replaces the address without opening the view anew, so that the field keeps its focus.
  const again = async (change) => {
    Object.assign(asked, { offset: 0 }, change);
    history.replaceState(null, "", address({ offset: asked.offset }));
    await load(results, asked, address);
  };
  search.addEventListener(
    "input",
    settled(() => again({ search: search.value })),
  );
  sort.addEventListener("change", () => again({ sort: sort.value }));
  content.append(
    h(
      "div",
      { class: "head" },
      h("h1", null, "Features"),
      h("a", { class: "button primary", href: "#/add" }, "Add a feature"),
    ),
    h(
      "form",
      { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      field("Search by name", search),
      field("Sort", sort),
    ),
    results,
  );
  await load(results, asked, address);
}

async function load(results, asked, address) {
  const [sort, order] = asked.sort.split(" ");
  const parameters = new URLSearchParams({
    search: asked.search,
    sort,
    order,
    offset: asked.offset,
    limit: LIMIT,
  });
  const own = (load.last = Symbol("asked"));
  const found = await get(`v1/features?${parameters}`);
  if (own !== load.last) return; // a later question is on its way
  results.replaceChildren(...shown(found, asked, address).filter(Boolean));
  results.removeAttribute("aria-busy");
}

function shown(found, asked, address) {
  if (!found.total) {
    return [
      h(
        "p",
        { class: "empty" },
        asked.search ? `No feature's name contains “${asked.search}”.` : "There are no features yet.",
      ),
    ];
  }
  const largest = (key) => Math.max(...found.features.map((each) => each[key] ?? 0)) || 1;
  const most = Math.log1p(largest("shots"));
  const widest = largest("uncertainty");
  const lines = found.features.map((each) => [
    h(
      "span",
      { class: "name" },
      link("feature", each.name),
      each.added && h("small", null, `added ${when(each.added)}`),
    ),
    h("span", { class: "muted" }, kind(each.kind)),
    h(
      "span",
      { class: "measure" },
      meter(Math.log1p(each.shots) / most),
      number(each.shots),
      h("span", { class: "narrow-only", "aria-hidden": "true" }, each.shots === 1 ? "shot" : "shots"),
    ),
    h(
      "span",
      { class: "measure" },
      meter((each.uncertainty ?? 0) / widest),
      each.uncertainty === null ? "–" : `± ${estimate(each.uncertainty)}`,
    ),
  ]);
  return [
    h(
      "p",
      { class: "muted" },
      `${count(found.total, "feature")}${asked.search ? ` with “${asked.search}” in the name` : ""}. Bars compare the features of this page; shots on a logarithmic scale.`,
    ),
    table({
      caption: "Features with their shots and uncertainty",
      columns: ["Feature", "Kind", "Shots", "Uncertainty"],
      lines,
    }),
    pager(found.total, asked.offset, LIMIT, (offset) => address({ offset })),
  ];
}
