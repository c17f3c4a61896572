// What surrounds charts: a title, a summary, the numbers as a table; and charts inside tables.

import { h, s } from "./dom.js";
import { number } from "./format.js";

/** A bar inside a line of a table, beside the number that it shows. */
export function meter(share) {
  const width = Math.max(0, Math.min(1, share || 0)) * 100;
  return s(
    "svg",
    { class: "meter", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("rect", { class: "track", width: 100, height: 8 }),
    s("rect", { class: "value", width, height: 8 }),
  );
}

/** A mean with its interval inside a line of a table. */
export function interval(line, [low, high]) {
  const at = (value) => 4 + 112 * Math.max(0, Math.min(1, (value - low) / (high - low || 1)));
  return s(
    "svg",
    { class: "interval", viewBox: "0 0 120 14", "aria-hidden": "true" },
    s("line", { class: "axis", x1: 4, x2: 116, y1: 7, y2: 7 }),
    s("line", { class: "range", x1: at(line.low), x2: at(line.high), y1: 7, y2: 7 }),
    s("circle", { class: "dot", cx: at(line.mean), cy: 7, r: 4 }),
  );
}

/** A chart with its title, a sentence that says what it shows, and its numbers as a table. */
export function figure({ title, summary, height = 220, draw, columns, lines, level = "h2", legend = [] }) {
  const place = h("div", { class: "chart" });
  let drawn = 0;
  const redraw = () => {
    const width = Math.round(place.clientWidth);
    if (!width || width === drawn) return;
    drawn = width;
    place.replaceChildren(
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
  new ResizeObserver(redraw).observe(place);
  return h(
    "figure",
    null,
    h("figcaption", null, h(level, null, title), h("p", { class: "muted" }, summary)),
    place,
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

/** A table; the first cell of each line is its header. */
export function table({ caption, columns, lines, shown = false }) {
  const place = h(
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
            line.map((cell, place) => (place ? h("td", null, cell) : h("th", { scope: "row" }, cell))),
          ),
        ),
      ),
    ),
  );
  // What scrolls must be reached with the keyboard; what does not is no further stop on the way.
  const watching = new ResizeObserver(() => {
    const scrolls = place.scrollHeight > place.clientHeight + 1 || place.scrollWidth > place.clientWidth + 1;
    for (const [name, value] of Object.entries({ tabindex: "0", role: "group", "aria-label": caption })) {
      if (scrolls) place.setAttribute(name, value);
      else place.removeAttribute(name);
    }
  });
  watching.observe(place);
  watching.observe(place.firstChild);
  return place;
}
