// Charts as SVG, drawn for a width and height. Colours come from the style sheet.

import { s } from "./dom.js";
import { number } from "./format.js";

const MARGIN = { left: 44, right: 12, top: 10, bottom: 40 };

/** Steps of 1, 2 or 5 that cover a range. */
export function ticks(low, high, most = 5) {
  const rough = (high - low || 1) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(12)),
  );
}

function scales(width, height, [left, right], [bottom, top], spread = (value) => value) {
  const inner = {
    left: MARGIN.left,
    right: width - MARGIN.right,
    top: MARGIN.top,
    bottom: height - MARGIN.bottom,
  };
  const [from, to] = [spread(left), spread(right)];
  return {
    inner,
    x: (value) => inner.left + ((spread(value) - from) / (to - from || 1)) * (inner.right - inner.left),
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
        { class: `tick ${anchor(x(value), label(value), inner)}`, x: x(value), y: inner.bottom + 17 },
        label(value),
      ),
    ),
    s("text", { class: "tick middle", x: middle, y: inner.bottom + 35 }, xLabel),
  ];
}

// Long texts at an edge stay inside.
function anchor(at, text, inner) {
  if (text.length < 6) return "middle";
  return at > inner.right - 40 ? "end" : at < inner.left + 40 ? "start" : "middle";
}

const densities = ({ edges, counts }) => {
  const total = counts.reduce((sum, each) => sum + each, 0) || 1;
  return counts.map((each, place) => each / total / (edges[place + 1] - edges[place]));
};

/** A distribution as bars; an earlier one as an outline over them. */
export function histogram(now, before, xLabel) {
  return (width, height) => {
    const all = [now, before].filter(Boolean);
    const range = [
      Math.min(...all.map((each) => each.edges[0])),
      Math.max(...all.map((each) => each.edges.at(-1))),
    ];
    const top = Math.max(...all.flatMap(densities)) * 1.05;
    const scale = scales(width, height, range, [0, top]);
    const { x, y, inner } = scale;
    const bars = densities(now).map((value, place) =>
      s("rect", {
        class: before ? "bar compared" : "bar",
        x: x(now.edges[place]) + 0.5,
        y: y(value),
        height: Math.max(0, inner.bottom - y(value)),
        width: Math.max(1, x(now.edges[place + 1]) - x(now.edges[place]) - 1),
      }),
    );
    const outline =
      before &&
      densities(before)
        .map(
          (value, place) =>
            `${place ? "L" : "M"}${x(before.edges[place])},${y(value)}H${x(before.edges[place + 1])}`,
        )
        .join("");
    const mean = (each, name) =>
      s("line", {
        class: `mean ${name}`,
        x1: x(each.mean),
        x2: x(each.mean),
        y1: inner.top,
        y2: inner.bottom,
      });
    return [
      frame(scale, { xs: ticks(...range, width < 420 ? 5 : 8), ys: [], xLabel }),
      bars,
      before && s("path", { class: "before", d: outline }),
      before && mean(before, "old"),
      mean(now, "new"),
    ];
  };
}

/** Points joined by a line, with a band or bars of ± `error` around it. */
export function curve(points, { xLabel, zero = false, spread, whiskers = false, level = null, label, xs }) {
  return (width, height) => {
    const lows = points.map((point) => point.y - (point.error ?? 0));
    const highs = points.map((point) => point.y + (point.error ?? 0));
    const some = [...lows, ...highs, ...(zero ? [0] : []), ...(level === null ? [] : [level])];
    const [low, high] = [Math.min(...some), Math.max(...some)];
    const pad = (high - low || Math.abs(high) || 1) * 0.08;
    const range = [points[0].x, points.at(-1).x];
    const scale = scales(width, height, range, [zero && low >= 0 ? 0 : low - pad, high + pad], spread);
    const { x, y, inner } = scale;
    const marks = (xs ?? ticks(...range, width < 420 ? 4 : 7)).filter(
      (value, place, every) => !place || x(value) - x(every[place - 1]) > 22,
    );
    const path = (list, values) =>
      list.map((point, place) => `${place ? "L" : "M"}${x(point.x)},${y(values[place])}`).join("");
    const back = [...points].reverse();
    return [
      frame(scale, { xs: marks, ys: ticks(zero && low >= 0 ? 0 : low - pad, high + pad, 4), xLabel, label }),
      level !== null &&
        s("line", { class: "level", x1: inner.left, x2: inner.right, y1: y(level), y2: y(level) }),
      !whiskers &&
        s("path", {
          class: "band",
          d: `${path(points, highs)}${path(back, [...lows].reverse()).replace("M", "L")}Z`,
        }),
      whiskers &&
        points.map((point, place) =>
          s("line", {
            class: "whisker",
            x1: x(point.x),
            x2: x(point.x),
            y1: y(lows[place]),
            y2: y(highs[place]),
          }),
        ),
      s("path", {
        class: "line",
        d: path(
          points,
          points.map((point) => point.y),
        ),
      }),
      points.map((point) =>
        s("circle", { class: "dot", cx: x(point.x), cy: y(point.y), r: points.length > 30 ? 2 : 3.5 }),
      ),
    ];
  };
}

/** Bars from a beginning to an end, each starting where the last one stopped. */
export function waterfall(start, parts, end) {
  const line = 26;
  const draw = (width) => {
    const wide = Math.min(260, width * 0.48);
    let at = start.value;
    const steps = parts.map((part) => ({ ...part, from: at, to: (at += part.value) }));
    const values = [start.value, end.value, ...steps.map((step) => step.to)];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const x = (value) => wide + 8 + ((value - low) / (high - low || 1)) * (width - wide - 68);
    const every = [{ ...start, whole: true }, ...steps, { ...end, whole: true }];
    return every.map((step, place) => {
      const y = place * line;
      const [from, to] = step.whole ? [step.value, step.value] : [step.from, step.to];
      const left = Math.min(x(from), x(to));
      const right = Math.max(x(from), x(to));
      return s(
        "g",
        null,
        s(
          "text",
          { class: `tick end${step.whole ? " strong" : ""}`, x: wide, y: y + 17 },
          cut(step.label, wide),
        ),
        step.whole
          ? s("circle", { class: "dot", cx: x(step.value), cy: y + 13, r: 5 })
          : s("rect", {
              class: step.value < 0 ? "bar down" : "bar",
              x: left,
              y: y + 5,
              width: Math.max(2, right - left),
              height: line - 10,
              rx: 2,
            }),
        s("text", { class: `tick${step.whole ? " strong" : ""}`, x: right + 8, y: y + 17 }, step.text),
      );
    });
  };
  return { draw, height: line * (parts.length + 2) + 6 };
}

function cut(text, width) {
  const most = Math.floor(width / 7.2);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
