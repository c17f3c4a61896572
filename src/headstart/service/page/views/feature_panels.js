// The panels of the view of a feature.

import { get, post } from "../api.js";
import { curve, histogram } from "../charts.js";
import { h, link } from "../dom.js";
import { bars, figure, interval, meter, table } from "../figures.js";
import { estimate, formatValue, number } from "../format.js";
import { field } from "../parts.js";
import { capital, countOf, words } from "../words.js";

/** Show the distribution of predictions over rows, before and after the last observations. */
export function distribution({ known, now, before }) {
  if (now.levels) {
    return [
      h("h2", null, "Predicted answers"),
      h("p", { class: "muted" }, `The probability of each level, averaged over ${countOf(now.rows, "row")}.`),
      bars(now.levels, now.mean, before?.mean),
    ];
  }
  const compared = before ? ` Before: mean ${estimate(before.mean)}.` : "";
  const lines = now.counts.map((rows, i) => [
    `${number(now.edges[i])} to ${number(now.edges[i + 1])}`,
    rows,
    ...(before ? [sameBins(now, before) ? before.counts[i] : "–"] : []),
  ]);
  return figure({
    title: "Predicted distribution",
    summary: `Predictions for ${countOf(now.rows, "row")}: mean ${estimate(now.mean)}, ${words.rows} differ by ± ${estimate(now.spread)}; the uncertainty of one ${words.row} is ± ${estimate(now.std)}.${compared}`,
    columns: ["Predicted value", capital(words.rows), ...(before ? [`${capital(words.rows)} before`] : [])],
    lines,
    height: 240,
    legend: before
      ? [
          ["now", "now"],
          ["earlier", "before"],
        ]
      : [],
    draw: histogram(now, before, /^(binary|click)/.test(known.kind) ? "predicted probability" : `predicted ${words.value}`),
  });
}

const sameBins = (one, other) => one.edges.every((edge, i) => edge === other.edges[i]);

/** Show the mean prediction by the number of observations. */
export async function history(address, known) {
  const { history: points } = await get(`${address}/history`);
  if (points.length < 2) {
    return [
      h("h2", null, "How the prediction moved"),
      h(
        "p",
        { class: "muted" },
        known.fitted
          ? "There are no new observations yet. The line begins with the first one."
          : "There are no observations yet. The line begins with the first one.",
      ),
    ];
  }
  const last = points.at(-1);
  return figure({
    title: "How the prediction moved",
    summary: `The mean over ${words.rows} went from ${estimate(points[0].mean)} to ${estimate(last.mean)}, its typical uncertainty (band) from ± ${estimate(points[0].std)} to ± ${estimate(last.std)}.`,
    columns: ["Observations", "Mean", "Uncertainty", `${capital(words.rows)} differ by`],
    lines: points.map((point) => [point.shots, point.mean, point.std, point.spread]),
    draw: curve(
      points.map((point) => ({ x: point.shots, y: point.mean, error: point.std })),
      { xLabel: "observations", xs: points.length <= 10 ? points.map((point) => point.shots) : undefined },
    ),
  });
}

/** List the rows to observe next; `choose` is called with the chosen row. */
export async function suggestions(name, choose) {
  const { rows } = await post("v1/suggest", { feature: name, n: 6 });
  return [
    h("p", { class: "muted" }, `Their observations would inform most about this ${words.feature}.`),
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

/** List the rows with the highest predictions; of a category, for the level that is chosen. */
export async function audience(known) {
  if (!known.kind.startsWith("category")) return rankedRows(known, known.name);
  const list = h("div");
  const show = async (level) => list.replaceChildren(...[await rankedRows(known, `${known.name}=${level}`)].flat());
  const choice = h(
    "select",
    { onchange: (event) => show(event.target.value) },
    known.levels.map((level) => h("option", { value: level }, level)),
  );
  await show(known.levels[0]);
  return [field("Level", choice), list];
}

async function rankedRows(known, feature) {
  const { ranking, level } = await post("v1/audience", { feature, n: 6 });
  if (!ranking.length) return h("p", { class: "muted" }, `All ${words.rows} have an observation of it.`);
  const range =
    known.low === null
      ? [Math.min(...ranking.map(({ low }) => low)), Math.max(...ranking.map(({ high }) => high))]
      : [known.low, known.high];
  return [
    h("p", { class: "muted" }, `The highest predictions, with ${Math.round(level * 100)} % intervals.`),
    table({
      caption: `${capital(words.rows)} with the highest predictions`,
      columns: [capital(words.row), "Predicted", "Interval"],
      lines: ranking.map((line) => [
        link("row", line.row, line.title),
        estimate(line.mean),
        h(
          "span",
          { class: "measure" },
          interval(line, range),
          `${estimate(line.low)} to ${estimate(line.high)}`,
        ),
      ]),
    }),
  ];
}

/** List the features whose predictions correlate most with it. */
export async function similar(name) {
  const answer = await post("v1/similar", { feature: name, n: 6 });
  return table({
    caption: `${capital(words.features)} whose predictions correlate most with its own`,
    columns: [capital(words.feature), "Similarity"],
    lines: answer.similar.map((line) => [
      link("feature", line.feature, line.title),
      h("span", { class: "measure" }, meter(Math.abs(line.similarity)), line.similarity.toFixed(3)),
    ]),
  });
}

/** List the observations. */
export function observations(known) {
  const entries = Object.entries(known.observations);
  if (!entries.length) return h("p", { class: "muted" }, "None yet.");
  const more =
    known.shots > entries.length ? ` The first ${number(entries.length)} of ${number(known.shots)}.` : "";
  return [
    more && h("p", { class: "muted" }, more),
    table({
      caption: `Observed values by ${words.row}`,
      columns: [capital(words.row), capital(words.value)],
      lines: entries.map(([row, value]) => [link("row", row), formatValue(value)]),
    }),
  ];
}
