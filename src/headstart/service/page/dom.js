// Create elements. Texts become text nodes, so that HTML in a name is never interpreted.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Create an HTML element: h("a", { href: "#/", onclick }, "text", element, [more]). */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

let lastNumber = 0;

/** Return an id that no other element has. */
export function uniqueId(prefix) {
  lastNumber += 1;
  return `${prefix}-${lastNumber}`;
}

/** Create a link to the view of a feature or row; the title is shown, and the name after it. */
export function link(view, name, title) {
  const anchor = h("a", { href: href(view, name), dir: "auto" }, title || name);
  return title && title !== name
    ? h("span", null, anchor, " ", h("small", { class: "inline", dir: "auto" }, name))
    : anchor;
}

/** Return the address of a view; names are encoded. */
export function href(view, name) {
  return name === undefined ? `#/${view}` : `#/${view}/${encodeURIComponent(name)}`;
}

/** Show a message for a while; screen readers read it aloud. */
export function announce(text) {
  const status = document.getElementById("status");
  status.replaceChildren(h("p", null, text));
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => status.replaceChildren(), 9000);
}
