// The list of features; the service searches, sorts and pages it.

import { get } from "../api.js";
import { h, link } from "../dom.js";
import { interval, meter, table } from "../figures.js";
import { estimate, formatKind, number, formatTime } from "../format.js";
import { field, pager, debounce } from "../parts.js";
import { a, capital, countOf, words } from "../words.js";

const LIMIT = 25;
const SORTS = {
  "added asc": "First added first",
  "added desc": "Last added first",
  "title asc": "Title or name",
  "name asc": "Name",
  "uncertainty desc": "Most uncertain first",
  "uncertainty asc": "Least uncertain first",
  "shots asc": "Fewest observations first",
  "shots desc": "Most observations first",
};

export async function features(content, _, parameters) {
  const query = {
    search: parameters.get("search") ?? "",
    sort: parameters.get("sort") ?? "added desc",
    offset: Number(parameters.get("offset")) || 0,
  };
  const address = (change) => `#/features?${new URLSearchParams({ ...query, offset: 0, ...change })}`;
  const results = h("div", { "aria-live": "polite", "aria-busy": "true" });
  const search = h("input", { type: "search", value: query.search, autocomplete: "off" });
  const sort = h(
    "select",
    null,
    Object.entries(SORTS).map(([value, text]) =>
      h("option", { value, selected: value === query.sort }, text),
    ),
  );

  // Replace the address without opening the view again, so that the field keeps its focus.
  const reload = async (change) => {
    Object.assign(query, { offset: 0 }, change);
    history.replaceState(null, "", address({ offset: query.offset }));
    await load(results, query, address);
  };
  search.addEventListener(
    "input",
    debounce(() => reload({ search: search.value })),
  );
  sort.addEventListener("change", () => reload({ sort: sort.value }));
  content.append(
    h(
      "div",
      { class: "head" },
      h("h1", null, capital(words.features)),
      h("a", { class: "button primary", href: "#/add" }, `Add ${a(words.feature)}`),
    ),
    h(
      "form",
      { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      field("Search by name or title", search),
      field("Sort", sort),
    ),
    results,
  );
  await load(results, query, address);
}

async function load(results, query, address) {
  const [sort, order] = query.sort.split(" ");
  const parameters = new URLSearchParams({
    search: query.search,
    sort,
    order,
    offset: query.offset,
    limit: LIMIT,
  });
  const request = (load.last = Symbol("request"));
  const page = await get(`v1/features?${parameters}`);
  if (request !== load.last) return; // a later request is on its way
  results.replaceChildren(...renderPage(page, query, address).filter(Boolean));
  results.removeAttribute("aria-busy");
}

function renderPage(page, query, address) {
  if (!page.total) {
    return [
      h(
        "p",
        { class: "empty" },
        query.search
          ? `No ${words.feature} has “${query.search}” in its name or title.`
          : `There are no ${words.features} yet.`,
      ),
    ];
  }
  const largest = (key) => Math.max(...page.features.map((feature) => feature[key] ?? 0)) || 1;
  const maxShots = Math.log1p(largest("shots"));
  const maxUncertainty = largest("uncertainty");
  const numeric = page.features.filter(({ mean }) => mean !== null);
  const range = [Math.min(...numeric.map(({ low }) => low)), Math.max(...numeric.map(({ high }) => high))];
  const kinds = [...new Set(page.features.map(({ kind }) => formatKind(kind)))];
  const lines = page.features.map((feature) => [
    h(
      "span",
      { class: "name" },
      link("feature", feature.name, feature.title),
      feature.added && h("small", null, `added ${formatTime(feature.added)}`),
    ),
    feature.mean === null
      ? h("span", { class: "muted" }, formatKind(feature.kind))
      : h(
          "span",
          { class: "stack" },
          h(
            "span",
            null,
            estimate(feature.mean),
            h("small", null, `${estimate(feature.low)} to ${estimate(feature.high)}`),
          ),
          interval(feature, range),
        ),
    h(
      "span",
      { class: "measure" },
      meter(Math.log1p(feature.shots) / maxShots),
      number(feature.shots),
      h("span", { class: "narrow-only", "aria-hidden": "true" }, feature.shots === 1 ? "observation" : "observations"),
    ),
    h(
      "span",
      { class: "measure" },
      meter((feature.uncertainty ?? 0) / maxUncertainty, "doubt"),
      feature.uncertainty === null ? "–" : `± ${estimate(feature.uncertainty)}`,
    ),
  ]);
  return [
    h(
      "p",
      { class: "muted" },
      `${countOf(page.total, "feature")}${query.search ? ` with “${query.search}” in the name or title` : ""}, ${kinds.join(", ")}. Predictions are for an average ${words.row}, with 90 % intervals. Bars compare the ${words.features} on this page: a long blue bar means many observations (on a logarithmic scale), a long orange one much uncertainty.`,
    ),
    table({
      caption: `${capital(words.features)} with their prediction, observations and uncertainty`,
      columns: [capital(words.feature), "Predicted", "Observations", "Uncertainty"],
      lines,
    }),
    pager(page.total, query.offset, LIMIT, (offset) => address({ offset })),
  ];
}
