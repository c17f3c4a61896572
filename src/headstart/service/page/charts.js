// Charts as SVG. Each chart is a function of width and height; colours come from the style sheet.

import { s } from "./dom.js";
import { number } from "./format.js";

const MARGIN = { left: 44, right: 12, top: 10, bottom: 40 };

/** Return multiples of 1, 2 or 5 times a power of ten in a range, about `limit` of them. */
export function ticks(low, high, limit = 5) {
  const rough = (high - low || 1) / limit;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(12)),
  );
}

function scales(width, height, [left, right], [bottom, top], transform = (value) => value) {
  const inner = {
    left: MARGIN.left,
    right: width - MARGIN.right,
    top: MARGIN.top,
    bottom: height - MARGIN.bottom,
  };
  const [from, to] = [transform(left), transform(right)];
  return {
    inner,
    x: (value) => inner.left + ((transform(value) - from) / (to - from || 1)) * (inner.right - inner.left),
    y: (value) => inner.bottom - ((value - bottom) / (top - bottom || 1)) * (inner.bottom - inner.top),
  };
}

function frame({ inner, x, y }, { xs, ys, xLabel, label = number }) {
  const middle = (inner.left + inner.right) / 2;
  return [
    ys.map((value) => [
      s("line", { class: "grid", x1: inner.left, x2: inner.right, y1: y(value), y2: y(value) }),
      s("text", { class: "tick end", x: inner.left - 8, y: y(value) + 4 }, number(value)),
    ]),
    s("line", { class: "axis", x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom }),
    xs.map((value) =>
      s(
        "text",
        { class: `tick ${textAnchor(x(value), label(value), inner)}`, x: x(value), y: inner.bottom + 17 },
        label(value),
      ),
    ),
    s("text", { class: "tick middle", x: middle, y: inner.bottom + 35 }, xLabel),
  ];
}

// Align long texts at an edge so that they stay inside the chart.
function textAnchor(x, text, inner) {
  if (text.length < 6) return "middle";
  return x > inner.right - 40 ? "end" : x < inner.left + 40 ? "start" : "middle";
}

const densities = ({ edges, counts }) => {
  const total = counts.reduce((sum, count) => sum + count, 0) || 1;
  return counts.map((count, i) => count / total / (edges[i + 1] - edges[i]));
};

/** Draw a distribution as bars, and an earlier one as an outline over them. */
export function histogram(now, before, xLabel) {
  return (width, height) => {
    const distributions = [now, before].filter(Boolean);
    const range = [
      Math.min(...distributions.map(({ edges }) => edges[0])),
      Math.max(...distributions.map(({ edges }) => edges.at(-1))),
    ];
    const top = Math.max(...distributions.flatMap(densities)) * 1.05;
    const scale = scales(width, height, range, [0, top]);
    const { x, y, inner } = scale;
    const bars = densities(now).map((value, i) =>
      s("rect", {
        class: before ? "bar compared" : "bar",
        x: x(now.edges[i]) + 0.5,
        y: y(value),
        height: Math.max(0, inner.bottom - y(value)),
        width: Math.max(1, x(now.edges[i + 1]) - x(now.edges[i]) - 1),
      }),
    );
    const outline =
      before &&
      densities(before)
        .map(
          (value, i) => `${i ? "L" : "M"}${x(before.edges[i])},${y(value)}H${x(before.edges[i + 1])}`,
        )
        .join("");
    const meanLine = ({ mean }, name) =>
      s("line", {
        class: `mean ${name}`,
        x1: x(mean),
        x2: x(mean),
        y1: inner.top,
        y2: inner.bottom,
      });
    return [
      frame(scale, { xs: ticks(...range, width < 420 ? 5 : 8), ys: [], xLabel }),
      bars,
      before && s("path", { class: "before", d: outline }),
      before && meanLine(before, "old"),
      meanLine(now, "new"),
    ];
  };
}

/** Draw points joined by a line, with a band or whiskers of ± `error` around it, and points to compare with. */
export function curve(
  points,
  { xLabel, zero = false, transform, whiskers = false, level = null, label, xs, compared = [] },
) {
  return (width, height) => {
    const lows = points.map((point) => point.y - (point.error ?? 0));
    const highs = points.map((point) => point.y + (point.error ?? 0));
    const values = [
      ...lows,
      ...highs,
      ...compared.map((point) => point.y),
      ...(zero ? [0] : []),
      ...(level === null ? [] : [level]),
    ];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const pad = (high - low || Math.abs(high) || 1) * 0.08;
    const range = [points[0].x, points.at(-1).x];
    const scale = scales(width, height, range, [zero && low >= 0 ? 0 : low - pad, high + pad], transform);
    const { x, y, inner } = scale;
    const marks = (xs ?? ticks(...range, width < 420 ? 4 : 7)).filter(
      (value, i, all) => !i || x(value) - x(all[i - 1]) > 22,
    );
    const path = (list, heights) =>
      list.map((point, i) => `${i ? "L" : "M"}${x(point.x)},${y(heights[i])}`).join("");
    const linePath = (list) =>
      path(
        list,
        list.map((point) => point.y),
      );
    const reversed = [...points].reverse();
    return [
      frame(scale, { xs: marks, ys: ticks(zero && low >= 0 ? 0 : low - pad, high + pad, 4), xLabel, label }),
      level !== null &&
        s("line", { class: "level", x1: inner.left, x2: inner.right, y1: y(level), y2: y(level) }),
      !whiskers &&
        s("path", {
          class: "band",
          d: `${path(points, highs)}${path(reversed, [...lows].reverse()).replace("M", "L")}Z`,
        }),
      whiskers &&
        points.map((point, i) =>
          s("line", {
            class: "whisker",
            x1: x(point.x),
            x2: x(point.x),
            y1: y(lows[i]),
            y2: y(highs[i]),
          }),
        ),
      compared.length > 0 && s("path", { class: "line compared", d: linePath(compared) }),
      s("path", { class: "line", d: linePath(points) }),
      points.map((point) =>
        s("circle", { class: "dot", cx: x(point.x), cy: y(point.y), r: points.length > 30 ? 2 : 3.5 }),
      ),
    ];
  };
}

/** Draw a waterfall chart: bars from `start` to `end`, each beginning at the end of the one before. */
export function waterfall(start, parts, end) {
  const lineHeight = 26;
  const draw = (width) => {
    const labelWidth = Math.min(260, width * 0.48);
    let sum = start.value;
    const steps = parts.map((part) => ({ ...part, from: sum, to: (sum += part.value) }));
    const values = [start.value, end.value, ...steps.map((step) => step.to)];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const x = (value) => labelWidth + 8 + ((value - low) / (high - low || 1)) * (width - labelWidth - 68);
    const lines = [{ ...start, whole: true }, ...steps, { ...end, whole: true }];
    return lines.map((step, i) => {
      const y = i * lineHeight;
      const [from, to] = step.whole ? [step.value, step.value] : [step.from, step.to];
      const left = Math.min(x(from), x(to));
      const right = Math.max(x(from), x(to));
      return s(
        "g",
        null,
        s(
          "text",
          { class: `tick end${step.whole ? " strong" : ""}`, x: labelWidth, y: y + 17 },
          shorten(step.label, labelWidth),
        ),
        step.whole
          ? s("circle", { class: "dot", cx: x(step.value), cy: y + 13, r: 5 })
          : s("rect", {
              class: step.value < 0 ? "bar down" : "bar",
              x: left,
              y: y + 5,
              width: Math.max(2, right - left),
              height: lineHeight - 10,
              rx: 2,
            }),
        s("text", { class: `tick${step.whole ? " strong" : ""}`, x: right + 8, y: y + 17 }, step.text),
      );
    });
  };
  return { draw, height: lineHeight * (parts.length + 2) + 6 };
}

function shorten(text, width) {
  const limit = Math.floor(width / 7.2); // pixels of a character
  return text.length > limit ? `${text.slice(0, limit - 1)}…` : text;
}
