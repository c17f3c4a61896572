// Parts of pages that several views use.

import { get } from "./api.js";
import { h, uniqueId } from "./dom.js";
import { formatMetadata } from "./format.js";
import { inWords } from "./words.js";

/** Show an error, with the fields that it concerns. */
export function problem(error) {
  if (!("status" in error)) console.error(error);
  const fields = (error.errors ?? []).filter(({ detail }) => detail && detail !== error.message);
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("p", null, inWords(error.message)),
    fields.length > 0 &&
      h(
        "ul",
        null,
        fields.slice(0, 8).map(({ field, detail }) => h("li", null, `${field ?? ""} ${inWords(detail)}`.trim())),
      ),
  );
}

/** Create a section that loads its own content, so that an error in it does not affect the others. */
export function panel(title, load, attributes) {
  const id = uniqueId("panel");
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

/** Ask before an action that cannot be undone; resolves to whether it was confirmed. */
export function askToConfirm(title, text, action) {
  const id = uniqueId("ask");
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

/** Create a field with its label. */
export function field(label, input, hint) {
  const id = input.id || uniqueId("field");
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

/** Return a function that calls `action` when no further call has come for some milliseconds. */
export function debounce(action, milliseconds = 200) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

/** Complete the names of `collection` in an input, with suggestions of the service. */
export function suggestNames(input, collection) {
  const list = h("datalist", { id: uniqueId("names") });
  input.setAttribute("list", list.id);
  const ask = async () => {
    const query = `limit=12&search=${encodeURIComponent(input.value)}`;
    const answer = await get(`v1/${collection}?${query}`).catch(() => null);
    if (answer)
      list.replaceChildren(
        ...answer[collection].map((item, i) =>
          h("option", { value: item.name ?? item }, item.title ?? answer.titles?.[i] ?? null),
        ),
      );
  };
  input.addEventListener("focus", ask, { once: true });
  input.addEventListener("input", debounce(ask));
  return list;
}

/** Create links to the previous and next page of a list. */
export function pager(total, offset, limit, address) {
  if (total <= limit) return null;
  const to = (start, text) =>
    start === null ? h("span", { class: "muted" }, text) : h("a", { href: address(start) }, text);
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    to(offset > 0 ? Math.max(0, offset - limit) : null, "← Previous"),
    h(
      "span",
      null,
      `${(offset + 1).toLocaleString("en")}–${Math.min(total, offset + limit).toLocaleString("en")} of ${total.toLocaleString("en")}`,
    ),
    to(offset + limit < total ? offset + limit : null, "Next →"),
  );
}

/** Create a card of the metadata of a feature or row. */
export function metadataCard(metadata) {
  const entries = Object.entries(metadata).map(([key, value]) =>
    h("div", null, h("dt", { dir: "auto" }, key), h("dd", { dir: "auto" }, formatMetadata(value))),
  );
  return h(
    "section",
    { class: "card", "aria-labelledby": "metadata" },
    h("h2", { id: "metadata" }, "Metadata"),
    entries.length
      ? h("dl", { class: "facts" }, entries)
      : h("p", { class: "muted" }, "It has no metadata."),
  );
}
