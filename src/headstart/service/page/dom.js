// Elements from plain calls. Texts become text nodes, so nothing that a name contains is ever read as HTML.

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

/** An HTML element: h("a", { href: "#/", onclick }, "text", element, [more]). */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

let numbers = 0;

/** An id that no other element has. */
export function unique(prefix) {
  numbers += 1;
  return `${prefix}-${numbers}`;
}

/** A link to a view; names are encoded. */
export function link(view, name, attributes) {
  return h("a", { href: href(view, name), dir: "auto", ...attributes }, name);
}

/** The address of a view. */
export function href(view, name) {
  return name === undefined ? `#/${view}` : `#/${view}/${encodeURIComponent(name)}`;
}

/** Say something to everyone: shown for a while, and read aloud. */
export function say(text) {
  const place = document.getElementById("said");
  place.replaceChildren(h("p", null, text));
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.replaceChildren(), 9000);
}
