// Figures: a chart with a title, a summary and its numbers as a table. Also tables, and charts inside them.

import { h, s } from "./dom.js";
import { number, percent } from "./format.js";

/** Draw a number as a bar, inside a line of a table; `name` is "doubt" where a long bar is bad. */
export function meter(share, name = "") {
  const width = Math.max(0, Math.min(1, share || 0)) * 100;
  return s(
    "svg",
    { class: `meter ${name}`.trim(), viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("rect", { class: "track", width: 100, height: 8 }),
    s("rect", { class: "value", width, height: 8 }),
  );
}

/** Show the probabilities of levels as bars, one line per level, with those before if they are known. */
export function bars(levels, shares, before) {
  const best = Math.max(...shares);
  return h(
    "ul",
    { class: "bars" },
    levels.map((level, i) =>
      h(
        "li",
        { class: shares[i] === best ? "best" : null },
        h("span", { class: "level", dir: "auto" }, String(level)),
        meter(shares[i]),
        h("span", null, percent(shares[i])),
        before && h("small", null, `before ${percent(before[i])}`),
      ),
    ),
  );
}

/** Draw a mean with its interval, inside a line of a table. */
export function interval(line, [low, high]) {
  const x = (value) => 4 + 112 * Math.max(0, Math.min(1, (value - low) / (high - low || 1)));
  return s(
    "svg",
    { class: "interval", viewBox: "0 0 120 14", "aria-hidden": "true" },
    s("line", { class: "axis", x1: 4, x2: 116, y1: 7, y2: 7 }),
    s("line", { class: "range", x1: x(line.low), x2: x(line.high), y1: 7, y2: 7 }),
    s("circle", { class: "dot", cx: x(line.mean), cy: 7, r: 4 }),
  );
}

/** Create a chart with its title, a sentence that describes it, and its numbers as a table. */
export function figure({ title, summary, height = 220, draw, columns, lines, level = "h2", legend = [] }) {
  const container = h("div", { class: "chart" });
  let drawnWidth = 0;
  const redraw = () => {
    const width = Math.round(container.clientWidth);
    if (!width || width === drawnWidth) return;
    drawnWidth = width;
    container.replaceChildren(
      s(
        "svg",
        {
          width,
          height,
          viewBox: `0 0 ${width} ${height}`,
          role: "img",
          "aria-label": `${title}: ${summary}`,
        },
        draw(width, height),
      ),
    );
  };
  new ResizeObserver(redraw).observe(container);
  return h(
    "figure",
    null,
    h("figcaption", null, h(level, null, title), h("p", { class: "muted" }, summary)),
    container,
    legend.length > 0 &&
      h(
        "ul",
        { class: "legend" },
        legend.map(([name, text]) => h("li", { class: name }, text)),
      ),
    h(
      "details",
      null,
      h("summary", null, "As a table"),
      table({
        caption: title,
        columns,
        lines: lines.map((line) => line.map((cell) => (typeof cell === "number" ? number(cell) : cell))),
      }),
    ),
  );
}

/** Create a table; the first cell of each line is its header. `shown` is whether the caption is visible. */
export function table({ caption, columns, lines, shown = false }) {
  const container = h(
    "div",
    { class: "scroll" },
    h(
      "table",
      null,
      h("caption", shown ? null : { class: "unseen" }, caption),
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          columns.map((column) => h("th", { scope: "col" }, column)),
        ),
      ),
      h(
        "tbody",
        null,
        lines.map((line) =>
          h(
            "tr",
            null,
            line.map((cell, i) => (i ? h("td", null, cell) : h("th", { scope: "row" }, cell))),
          ),
        ),
      ),
    ),
  );
  // A table that scrolls must be reachable with the keyboard; others must not be further tab stops.
  const observer = new ResizeObserver(() => {
    const { scrollHeight, clientHeight, scrollWidth, clientWidth } = container;
    const scrolls = scrollHeight > clientHeight + 1 || scrollWidth > clientWidth + 1;
    for (const [name, value] of Object.entries({ tabindex: "0", role: "group", "aria-label": caption })) {
      if (scrolls) container.setAttribute(name, value);
      else container.removeAttribute(name);
    }
  });
  observer.observe(container);
  observer.observe(container.firstChild);
  return container;
}
