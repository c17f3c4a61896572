// The quality of predictions: errors by the number of observations, calibration of intervals, and surprise over time.

import { get } from "../api.js";
import { curve } from "../charts.js";
import { h } from "../dom.js";
import { figure, meter, table } from "../figures.js";
import { count, number, formatTime } from "../format.js";
import { capital, countOf, words } from "../words.js";

const MEANS = "row and column means";

export async function quality(content) {
  const answer = await get("v1/quality");
  content.append(
    h("h1", null, "Quality"),
    h(
      "p",
      { class: "lead" },
      `The errors to expect for a new ${words.feature}, the calibration of intervals, and how well new observations are predicted.`,
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
            .map((part) => part(answer))
            .filter(Boolean)
            .map((part) => h("section", { class: "card" }, part)),
        ),
      ),
    ),
  );
}

function emptyPart(title, text) {
  return [h("h2", null, title), h("p", { class: "muted" }, text)];
}

function errors({ curve: points, judged_on: judged, means, unit }) {
  const title = "Error by number of observations";
  if (!points.length)
    return emptyPart(
      title,
      `The adapter of this model was chosen by hand and not judged on ${words.features} held out. The default adapter is.`,
    );
  const [first, last] = [points[0], points.at(-1)];
  return figure({
    title,
    summary: `On ${countOf(judged, "feature")} held out of training: ${first.error.toFixed(3)} at ${count(first.shots, "observation")}, ${last.error.toFixed(3)} at ${number(last.shots)}; ${unit}. Lower is better; the band is the standard error.`,
    columns: ["Observations", "Error", "Standard error", ...(means.length ? [capital(MEANS)] : [])],
    lines: points.map((point, i) => [
      point.shots,
      point.error,
      point.standard_error,
      ...(means.length ? [means[i].error] : []),
    ]),
    legend: means.length
      ? [
          ["model", "this model"],
          ["compared", MEANS],
        ]
      : [],
    draw: curve(
      points.map((point) => ({ x: point.shots, y: point.error, error: point.standard_error })),
      {
        xLabel: "observations",
        transform: Math.log1p,
        xs: points.map((point) => point.shots),
        compared: means.map((point) => ({ x: point.shots, y: point.error })),
      },
    ),
  });
}

function surprise({ surprise: buckets, staleness }) {
  const title = "Surprise over time";
  if (!buckets.length)
    return emptyPart(title, "There are no new observations yet. Each one is compared with its prediction.");
  return [
    figure({
      title,
      summary:
        "How much further observations are from their predictions than expected. On the dashed line they are as expected.",
      columns: ["Until", "Observations", "Excess", "Standard error"],
      lines: buckets.map((bucket) => [
        formatTime(bucket.last),
        bucket.observations,
        bucket.excess,
        bucket.standard_error,
      ]),
      // In order of arrival and not by time, because observations come in bursts.
      draw: curve(
        buckets.map((bucket, i) => ({ x: i, y: bucket.excess, error: bucket.standard_error })),
        {
          xLabel: "time of arrival",
          whiskers: true,
          level: 0,
          xs: [...new Set([0, buckets.length - 1])],
          label: (i) => shortTime(buckets[i].last),
        },
      ),
    }),
    h("p", { class: staleness.refit ? "notice" : "muted" }, staleness.text),
  ];
}

const shortTime = (time) =>
  new Date(time).toLocaleString("en-GB", {
    day: "numeric",
    month: "short",
    hour: "2-digit",
    minute: "2-digit",
  });

function calibration({ calibration: fitted }) {
  const title = "Calibration";
  const kinds = Object.keys(fitted.factors);
  if (!fitted.shots.length || !kinds.length) return emptyPart(title, "Predictions are not recalibrated.");
  const column = fitted.levels.indexOf(0.9);
  const widths = kinds
    .filter((kind) => kind !== "binary")
    .map((kind) =>
      figure({
        level: "h3",
        title: `90 % intervals of kind ${kind}`,
        height: 190,
        summary:
          "The factor of the width of intervals at which they contain 90 % of held-out values. At 1 they need no correction.",
        columns: ["Observations", ...fitted.levels.map((level) => `${Math.round(level * 100)} %`)],
        lines: fitted.shots.map((shots, i) => [shots, ...fitted.factors[kind][i]]),
        draw: curve(
          fitted.shots.map((shots, i) => ({ x: shots, y: fitted.factors[kind][i][column] })),
          { xLabel: "observations", transform: Math.log1p, xs: fitted.shots, level: 1, zero: true },
        ),
      }),
    );
  const slopes =
    kinds.includes("binary") &&
    table({
      caption: "Log-odds of kind binary are multiplied by a slope and shifted",
      shown: true,
      columns: ["Observations", "Slope", "Shift"],
      lines: fitted.shots.map((shots, i) => [
        number(shots),
        number(fitted.slopes[i]),
        number(fitted.shifts[i]),
      ]),
    });
  return [h("h2", null, title), ...widths, slopes].filter(Boolean);
}

function metadata({ metadata: columns }) {
  const shares = Object.entries(columns ?? {}).sort(([, one], [, other]) => other - one);
  if (!shares.length) return null;
  return [
    h("h2", null, "Use of metadata"),
    h("p", { class: "muted" }, "The reduction of the error by each column without observations."),
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
