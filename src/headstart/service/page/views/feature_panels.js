// The parts of a feature's page that are loaded one by one.

import { get, post } from "../api.js";
import { curve, histogram } from "../charts.js";
import { h, link } from "../dom.js";
import { figure, interval, meter, table } from "../figures.js";
import { count, estimate, number } from "../format.js";

/** Predictions over rows, before and after the last observations. */
export function distribution({ known, now, before }) {
  const compared = before ? ` Before: mean ${estimate(before.mean)}.` : "";
  const lines = now.counts.map((each, place) => [
    `${number(now.edges[place])} to ${number(now.edges[place + 1])}`,
    each,
    ...(before ? [sameBins(now, before) ? before.counts[place] : "–"] : []),
  ]);
  return figure({
    title: "Predicted distribution",
    summary: `Predictions for ${count(now.rows, "row")}: mean ${estimate(now.mean)}, rows differ by ± ${estimate(now.spread)}; the uncertainty of one is ± ${estimate(now.std)}.${compared}`,
    columns: ["Predicted value", "Rows", ...(before ? ["Rows before"] : [])],
    lines,
    height: 240,
    legend: before
      ? [
          ["now", "now"],
          ["earlier", "before"],
        ]
      : [],
    draw: histogram(now, before, known.kind === "binary" ? "predicted probability" : "predicted value"),
  });
}

const sameBins = (one, other) => one.edges.every((edge, place) => edge === other.edges[place]);

/** The mean prediction by shots. */
export async function history(address, known) {
  const { history: points } = await get(`${address}/history`);
  if (points.length < 2) {
    return [
      h("h2", null, "How the prediction moved"),
      h(
        "p",
        { class: "muted" },
        known.fitted
          ? "Nothing has arrived since the model was fitted. The line begins with the first observation."
          : "Nothing was observed yet. The line begins with the first observation.",
      ),
    ];
  }
  const last = points.at(-1);
  return figure({
    title: "How the prediction moved",
    summary: `The mean over rows went from ${estimate(points[0].mean)} to ${estimate(last.mean)}, its typical uncertainty (band) from ± ${estimate(points[0].std)} to ± ${estimate(last.std)}.`,
    columns: ["Shots", "Mean", "Uncertainty", "Rows differ by"],
    lines: points.map((each) => [each.shots, each.mean, each.std, each.spread]),
    draw: curve(
      points.map((each) => ({ x: each.shots, y: each.mean, error: each.std })),
      { xLabel: "shots", xs: wholes(points.map((each) => each.shots)) },
    ),
  });
}

const wholes = (shots) => (shots.length <= 10 ? shots : undefined);

/** Rows whose observations would tell most; `choose` takes one into the form. */
export async function suggested(name, choose) {
  const { rows } = await post("v1/suggest", { feature: name, n: 6 });
  return [
    h("p", { class: "muted" }, "Their observations would inform most about this feature."),
    h(
      "ul",
      { class: "names" },
      rows.map((row) =>
        h(
          "li",
          null,
          link("row", row),
          h(
            "button",
            { class: "small", "aria-label": `Enter the value of ${row}`, onclick: () => choose(row) },
            "Enter",
          ),
        ),
      ),
    ),
  ];
}

/** The rows with the highest predictions. */
export async function audience(known) {
  const { ranking, level } = await post("v1/audience", { feature: known.name, n: 6 });
  if (!ranking.length) return h("p", { class: "muted" }, "Every row has observed it.");
  const range =
    known.low === null
      ? [Math.min(...ranking.map((each) => each.low)), Math.max(...ranking.map((each) => each.high))]
      : [known.low, known.high];
  return [
    h("p", { class: "muted" }, `The highest predictions, with ${Math.round(level * 100)} % intervals.`),
    table({
      caption: "Rows with the highest predictions",
      columns: ["Row", "Predicted", "Interval"],
      lines: ranking.map((each) => [
        link("row", each.row),
        estimate(each.mean),
        h(
          "span",
          { class: "measure" },
          interval(each, range),
          `${estimate(each.low)} to ${estimate(each.high)}`,
        ),
      ]),
    }),
  ];
}

/** Features whose predictions go together with it. */
export async function similar(name) {
  const found = await post("v1/similar", { feature: name, n: 6 });
  return table({
    caption: "Features whose predictions correlate most with its own",
    columns: ["Feature", "Similarity"],
    lines: found.similar.map((each) => [
      link("feature", each.feature),
      h("span", { class: "measure" }, meter(Math.abs(each.similarity)), each.similarity.toFixed(3)),
    ]),
  });
}

/** What was observed. */
export function observations(known) {
  const entries = Object.entries(known.observations);
  if (!entries.length) return h("p", { class: "muted" }, "None yet.");
  const more =
    known.shots > entries.length ? ` The first ${number(entries.length)} of ${number(known.shots)}.` : "";
  return [
    more && h("p", { class: "muted" }, more),
    table({
      caption: "Observed values by row",
      columns: ["Row", "Value"],
      lines: entries.map(([row, value]) => [link("row", row), number(value)]),
    }),
  ];
}
