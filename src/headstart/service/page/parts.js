// Pieces that several views use.

import { get } from "./api.js";
import { h, unique } from "./dom.js";
import { metadatum } from "./format.js";

/** What went wrong, with the fields that are meant. */
export function problem(error) {
  if (!("status" in error)) console.error(error);
  const fields = (error.errors ?? []).filter((each) => each.detail && each.detail !== error.message);
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("p", null, error.message),
    fields.length > 0 &&
      h(
        "ul",
        null,
        fields.slice(0, 8).map((each) => h("li", null, `${each.field ?? ""} ${each.detail}`.trim())),
      ),
  );
}

/** A part of a view that loads by itself, so that one that fails does not take the others with it. */
export function panel(title, load, attributes) {
  const id = unique("panel");
  const content = h("div", { "aria-busy": "true" }, h("p", { class: "muted" }, "Loading …"));
  const section = h(
    "section",
    { class: "card", "aria-labelledby": id, ...attributes },
    title && h("h2", { id }, title),
    content,
  );
  section.reload = async () => {
    try {
      content.replaceChildren(...[await load()].flat());
    } catch (error) {
      content.replaceChildren(problem(error));
    }
    content.removeAttribute("aria-busy");
  };
  section.reload();
  return section;
}

/** Ask before something that cannot be undone; resolves to the answer. */
export function confirmed(title, text, action) {
  const id = unique("ask");
  const dialog = h(
    "dialog",
    { "aria-labelledby": id },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id }, title),
      h("p", null, text),
      h(
        "div",
        { class: "buttons" },
        h("button", { value: "", autofocus: true }, "Cancel"),
        h("button", { class: "danger", value: "yes" }, action),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}

/** A field with its label. */
export function field(label, input, hint) {
  const id = input.id || unique("field");
  input.id = id;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    input,
    hint && h("p", { class: "hint", id: `${id}-hint` }, hint),
  );
}

/** Wait until someone stops typing. */
export function settled(action, milliseconds = 200) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), milliseconds);
  };
}

/** A list of names to choose from, asked of the service as someone types. */
export function suggesting(input, what) {
  const list = h("datalist", { id: unique("names") });
  input.setAttribute("list", list.id);
  const ask = async () => {
    const found = await get(`v1/${what}?limit=12&search=${encodeURIComponent(input.value)}`).catch(
      () => null,
    );
    if (found) list.replaceChildren(...found[what].map((each) => h("option", { value: each.name ?? each })));
  };
  input.addEventListener("focus", ask, { once: true });
  input.addEventListener("input", settled(ask));
  return list;
}

/** Links to earlier and later parts of a list. */
export function pager(total, offset, limit, address) {
  if (total <= limit) return null;
  const to = (place, text) =>
    place === null ? h("span", { class: "muted" }, text) : h("a", { href: address(place) }, text);
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    to(offset > 0 ? Math.max(0, offset - limit) : null, "← Before"),
    h(
      "span",
      null,
      `${(offset + 1).toLocaleString("en")}–${Math.min(total, offset + limit).toLocaleString("en")} of ${total.toLocaleString("en")}`,
    ),
    to(offset + limit < total ? offset + limit : null, "Next →"),
  );
}

/** What is known of a feature or row. */
export function described(metadata) {
  const entries = Object.entries(metadata).map(([key, value]) =>
    h("div", null, h("dt", { dir: "auto" }, key), h("dd", { dir: "auto" }, metadatum(value))),
  );
  return h(
    "section",
    { class: "card", "aria-labelledby": "metadata" },
    h("h2", { id: "metadata" }, "Metadata"),
    entries.length
      ? h("dl", { class: "facts" }, entries)
      : h("p", { class: "muted" }, "Nothing is known of it but its name."),
  );
}
