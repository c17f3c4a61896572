// One row: what it observed, what it would like or know, and why.

import { get, place, post, remove } from "../api.js";
import { waterfall } from "../charts.js";
import { h, link, say } from "../dom.js";
import { figure, interval, table } from "../figures.js";
import { count, estimate, metadatum, number, signed, when } from "../format.js";
import { confirmed, described, panel, problem } from "../parts.js";

const MOST = 100; // observations that are shown

export async function row(content, name) {
  const address = place("rows", name);
  const known = await get(address);
  const why = h(
    "section",
    { class: "card", "aria-live": "polite", "aria-labelledby": "why" },
    h("h2", { id: "why" }, "Why"),
    h("p", { class: "muted" }, "Choose “Why” beside a prediction."),
  );
  const observed = Object.keys(known.observations).length;
  const since = known.added
    ? ` Added ${when(known.added)}.`
    : known.fitted
      ? " Known since the model was fitted."
      : "";
  const facts = Object.keys(known.metadata).length > 0 && described(known.metadata);
  content.append(
    h("p", { class: "crumbs" }, h("a", { href: "#/rows" }, "Rows")),
    h(
      "div",
      { class: "head" },
      h("h1", { dir: "auto" }, name),
      h(
        "button",
        { class: "danger quiet", onclick: () => drop(name, address, content) },
        "Remove this row",
      ),
    ),
    h("p", { class: "lead" }, `Observed ${count(observed, "feature")}.${since}`),
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        null,
        panel("Recommended features", () => recommended(name, why), { class: "card tall" }),
      ),
      h(
        "div",
        null,
        why,
        panel("Observations", () => observations(known)),
        facts,
      ),
    ),
  );
}

async function recommended(name, why) {
  const { ranking, level } = await post("v1/recommend", { row: name, n: 10, mixed_kinds: true });
  if (!ranking.length) return h("p", { class: "muted" }, "It has observed every feature.");
  const range = [Math.min(...ranking.map((each) => each.low)), Math.max(...ranking.map((each) => each.high))];
  const explain = (feature) =>
    h(
      "button",
      { class: "small", "aria-label": `Why ${feature}`, onclick: () => explained(name, feature, why) },
      "Why",
    );
  if (why.dataset.feature === undefined) explained(name, ranking[0].feature, why, false);
  return [
    h("p", { class: "muted" }, `The highest predictions, with ${Math.round(level * 100)} % intervals.`),
    table({
      caption: "Features with the highest predictions",
      columns: ["Feature", "Predicted", "Reasons"],
      lines: ranking.map((each) => [
        link("feature", each.feature),
        h(
          "span",
          { class: "stack" },
          h(
            "span",
            null,
            estimate(each.mean),
            h("small", null, `${estimate(each.low)} to ${estimate(each.high)}`),
          ),
          interval(each, range),
        ),
        explain(each.feature),
      ]),
    }),
  ];
}

async function explained(name, feature, why, jump = true) {
  why.dataset.feature = feature;
  try {
    const found = await post("v1/explain", { row: name, feature, n: 10 });
    if (why.dataset.feature !== feature) return; // another one was asked for meanwhile
    const parts = found.contributions.map((each) => ({
      label: said(each),
      value: each.value,
      text: signed(each.value),
    }));
    const rest = found.output - found.baseline - parts.reduce((sum, part) => sum + part.value, 0);
    if (Math.abs(rest) > 5e-4) parts.push({ label: "everything else", value: rest, text: signed(rest) });
    const chart = waterfall(
      { label: "Beginning", value: found.baseline, text: estimate(found.baseline) },
      parts,
      { label: "Together", value: found.output, text: estimate(found.output) },
    );
    const unit = found.unit ? ` in ${found.unit}` : "";
    why.replaceChildren(
      figure({
        title: "Why",
        ...chart,
        summary: `${feature}: from ${estimate(found.baseline)} to ${estimate(found.output)}${unit}; the parts add up.${Math.abs(found.mean - found.output) < 5e-3 ? "" : ` Predicted: ${estimate(found.mean)}.`}`,
        columns: ["Reason", "Contribution"],
        lines: [
          ["Beginning", found.baseline],
          ...parts.map((part) => [part.label, part.text]),
          ["Together", found.output],
        ],
      }),
    );
    why.querySelector("h2").id = "why";
  } catch (error) {
    why.replaceChildren(h("h2", { id: "why" }, "Why"), problem(error));
  }
  if (jump) why.scrollIntoView({ block: "nearest", behavior: "smooth" });
}

// What the service calls "year = 1971"; lists are joined here.
const said = (each) => (Array.isArray(each.given) ? `${each.name} = ${metadatum(each.given)}` : each.label);

function observations(known) {
  const entries = Object.entries(known.observations);
  if (!entries.length) return h("p", { class: "muted" }, "Nothing yet.");
  return [
    entries.length > MOST && h("p", { class: "muted" }, `The first ${MOST} of ${number(entries.length)}.`),
    table({
      caption: "Observed values by feature",
      columns: ["Feature", "Value"],
      lines: entries.slice(0, MOST).map(([feature, value]) => [link("feature", feature), number(value)]),
    }),
  ].filter(Boolean);
}

async function drop(name, address, content) {
  if (
    !(await confirmed(
      "Remove this row?",
      `All observations of “${name}” leave every feature and the store. This cannot be undone.`,
      "Remove",
    ))
  )
    return;
  try {
    await remove(address);
    say(`Removed ${name}.`);
    location.hash = "#/rows";
  } catch (error) {
    content.prepend(problem(error));
  }
}
