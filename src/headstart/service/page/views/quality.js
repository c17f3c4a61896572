// How good predictions are: by shots, as intervals, and over time.

import { get } from "../api.js";
import { curve } from "../charts.js";
import { h } from "../dom.js";
import { figure, meter, table } from "../figures.js";
import { count, number, when } from "../format.js";

export async function quality(content) {
  const found = await get("v1/quality");
  content.append(
    h("h1", null, "Quality"),
    h(
      "p",
      { class: "lead" },
      "What errors to expect of a new feature, whether intervals hold, and whether what arrives is as expected.",
    ),
    h(
      "div",
      { class: "columns" },
      [
        [errors, calibration],
        [surprise, metadata],
      ].map((column) =>
        h(
          "div",
          null,
          column
            .map((part) => part(found))
            .filter(Boolean)
            .map((part) => h("section", { class: "card" }, part)),
        ),
      ),
    ),
  );
}

function nothing(title, text) {
  return [h("h2", null, title), h("p", { class: "muted" }, text)];
}

function errors({ curve: points, judged_on: judged }) {
  const title = "Error by shots";
  if (!points.length)
    return nothing(
      title,
      "This model was fitted with one given adapter, which was not judged on features held out. A model fitted with the default adapter is.",
    );
  const [first, last] = [points[0], points.at(-1)];
  return figure({
    title,
    summary: `On ${count(judged, "feature")} held out of training: ${first.error.toFixed(3)} at ${count(first.shots, "shot")}, ${last.error.toFixed(3)} at ${number(last.shots)}. Lower is better; the band is the standard error.`,
    columns: ["Shots", "Error", "Standard error"],
    lines: points.map((each) => [each.shots, each.error, each.standard_error]),
    draw: curve(
      points.map((each) => ({ x: each.shots, y: each.error, error: each.standard_error })),
      { xLabel: "shots", spread: Math.log1p, xs: points.map((each) => each.shots) },
    ),
  });
}

function surprise({ surprise: parts, staleness }) {
  const title = "Surprise over time";
  if (!parts.length)
    return nothing(
      title,
      "Nothing has arrived yet. Each observation that arrives is compared with its prediction.",
    );
  return [
    figure({
      title,
      summary:
        "By how much observations are further from their predictions than expected. At the dashed line they are as expected; above it they surprise.",
      columns: ["Until", "Observations", "Excess", "Standard error"],
      lines: parts.map((each) => [when(each.last), each.observations, each.excess, each.standard_error]),
      // By order and not by time: observations come in bursts.
      draw: curve(
        parts.map((each, place) => ({ x: place, y: each.excess, error: each.standard_error })),
        {
          xLabel: "when they arrived",
          whiskers: true,
          level: 0,
          xs: [...new Set([0, parts.length - 1])],
          label: (place) => short(parts[place].last),
        },
      ),
    }),
    h("p", { class: staleness.refit ? "notice" : "muted" }, staleness.text),
  ];
}

const short = (time) =>
  new Date(time).toLocaleString("en-GB", {
    day: "numeric",
    month: "short",
    hour: "2-digit",
    minute: "2-digit",
  });

function calibration({ calibration: held }) {
  const title = "Calibration";
  const kinds = Object.keys(held.factors);
  if (!held.shots.length || !kinds.length) return nothing(title, "Predictions are used as they are.");
  const usual = held.levels.indexOf(0.9);
  const widths = kinds
    .filter((kind) => kind !== "binary")
    .map((kind) =>
      figure({
        level: "h3",
        title: `90 % intervals of kind ${kind}`,
        height: 190,
        summary:
          "What intervals are multiplied by, so that they held 90 % of the values that were kept back. At 1 they were right already.",
        columns: ["Shots", ...held.levels.map((level) => `${Math.round(level * 100)} %`)],
        lines: held.shots.map((shots, place) => [shots, ...held.factors[kind][place]]),
        draw: curve(
          held.shots.map((shots, place) => ({ x: shots, y: held.factors[kind][place][usual] })),
          { xLabel: "shots", spread: Math.log1p, xs: held.shots, level: 1, zero: true },
        ),
      }),
    );
  const slopes =
    kinds.includes("binary") &&
    table({
      caption: "Log-odds of kind binary are multiplied by a slope and shifted",
      shown: true,
      columns: ["Shots", "Slope", "Shift"],
      lines: held.shots.map((shots, place) => [
        number(shots),
        number(held.slopes[place]),
        number(held.shifts[place]),
      ]),
    });
  return [h("h2", null, title), ...widths, slopes].filter(Boolean);
}

function metadata({ metadata: said }) {
  const shares = Object.entries(said ?? {}).sort(([, one], [, other]) => other - one);
  if (!shares.length) return null;
  return [
    h("h2", null, "What metadata says"),
    h(
      "p",
      { class: "muted" },
      "By how much each column makes the error smaller before anything is observed.",
    ),
    table({
      caption: "Share of the error that each metadata column removes",
      columns: ["Column", "Share"],
      lines: shares.map(([name, share]) => [
        name,
        h("span", { class: "measure" }, meter(share), `${Math.round(share * 100)} %`),
      ]),
    }),
  ];
}
