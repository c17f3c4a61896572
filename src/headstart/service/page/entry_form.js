// The form for a new feature or row: its name, metadata and first observations.

import { h, uniqueId } from "./dom.js";
import { number } from "./format.js";
import { field, problem } from "./parts.js";
import { a, capital, words } from "./words.js";

const TYPES = { number: "number", date: "date" };
const HINTS = {
  labels: "Separate several labels by commas.",
  vector: "Numbers separated by commas.",
  image: "Rows of numbers, such as [[0, 1], [1, 0]].",
  date: "A day, such as 2026-05-01.",
};

/**
 * Create the page of a form for a new "feature" or "row".
 *
 * `lead` is a sentence above the form, `columns` is the metadata schema, `fields` are further fields, and
 * `observations` is an element in which observations are entered. `submit` is called with {name, metadata}.
 */
export function entryPage(noun, { lead, columns, fields = [], observations, submit }) {
  const list = `#/${noun}s`;
  const name = h("input", { required: true, maxlength: 500, autocomplete: "off" });
  const metadata = columns
    .filter((column) => !["ignore", "custom"].includes(column.type))
    .map((column) => metadataField(column));
  const message = h("div");
  const button = h("button", { class: "primary" }, "Add it");
  const form = h(
    "form",
    {
      class: "card narrow",
      async onsubmit(event) {
        event.preventDefault();
        message.replaceChildren();
        button.disabled = true;
        try {
          await submit({ name: name.value, metadata: readMetadata(metadata) });
        } catch (error) {
          message.replaceChildren(problem(error));
          message.firstChild.scrollIntoView({ block: "nearest" });
        }
        button.disabled = false;
      },
    },
    field("Name", name),
    fields,
    metadata.length > 0 &&
      h(
        "fieldset",
        null,
        h("legend", null, "Metadata"),
        h(
          "p",
          { class: "hint" },
          "Optional. Metadata improves the predictions while there are few observations.",
        ),
        metadata.map((column) => column.element),
      ),
    h(
      "fieldset",
      null,
      h("legend", null, "First observations"),
      h("p", { class: "hint" }, "Optional; more can be entered at any time."),
      observations,
    ),
    message,
    h("div", { class: "buttons" }, button, h("a", { class: "button", href: list }, "Cancel")),
  );
  return [
    h("p", { class: "crumbs" }, h("a", { href: list }, capital(words[`${noun}s`]))),
    h("h1", null, `Add ${a(words[noun])}`),
    h("p", { class: "lead" }, lead),
    form,
  ];
}

/** Split a text at its commas. */
export const splitCommas = (text) =>
  text
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean);

const readMetadata = (columns) =>
  Object.fromEntries(
    columns.map((column) => [column.name, column.read()]).filter(([, value]) => value !== null),
  );

function metadataField(column) {
  if (["text", "tokens"].includes(column.type))
    return createField(column, h("textarea", { rows: 3 }), (text) => text);
  const input = h("input", {
    type: TYPES[column.type] ?? "text",
    step: column.type === "number" ? "any" : null,
    autocomplete: "off",
  });
  const hint =
    column.type === "number" && column.low !== undefined && column.low !== null
      ? `Known: ${formatBound(column.low)} to ${formatBound(column.high)}.`
      : HINTS[column.type];
  const list = column.values?.length ? h("datalist", { id: uniqueId("values") }) : null;
  if (list) {
    input.setAttribute("list", list.id);
    // Complete the last of several labels: the entries are whole texts, so they change with the input.
    const updateList = () => {
      const parts = input.value.split(",");
      const prefix =
        column.type === "labels" && parts.length > 1
          ? `${parts
              .slice(0, -1)
              .map((part) => part.trim())
              .join(", ")}, `
          : "";
      list.replaceChildren(
        ...column.values.slice(0, 500).map((value) => h("option", { value: prefix + value })),
      );
    };
    updateList();
    if (column.type === "labels") input.addEventListener("input", updateList);
  }
  return createField(column, input, readers[column.type] ?? ((text) => text), hint, list);
}

const formatBound = (value) => (Number.isInteger(value) ? String(value) : number(value));
const readRows = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return text; // the service explains what an image is
  }
};
const readers = {
  number: Number,
  labels: splitCommas,
  vector: (text) => splitCommas(text).map(Number),
  image: readRows,
};

function createField(column, input, read, hint, list) {
  return {
    name: column.name,
    element: h("div", null, field(column.name, input, hint), list),
    read: () => (input.value.trim() === "" ? null : read(input.value.trim())),
  };
}
