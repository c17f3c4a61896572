// A form for a new feature, created from the metadata schema of the model.

import { get, post } from "../api.js";
import { h, href, announce, uniqueId } from "../dom.js";
import { count, formatKind, levelsOf, number } from "../format.js";
import { observationFields } from "../observation_form.js";
import { field, problem } from "../parts.js";
import { a, capital, words } from "../words.js";

const TYPES = { number: "number", date: "date" };
const HINTS = {
  labels: "Separate several labels by commas.",
  vector: "Numbers separated by commas.",
  image: "Rows of numbers, such as [[0, 1], [1, 0]].",
  date: "A day, such as 2026-05-01.",
};

export async function add(content) {
  const schema = await get("v1/schema");
  const name = h("input", { required: true, maxlength: 500, autocomplete: "off" });
  const allKinds = [schema.usual_kind, ...schema.kinds];
  const kinds = allKinds.filter(
    (kind, i) => allKinds.findIndex((other) => formatKind(other) === formatKind(kind)) === i,
  );
  const kind = h(
    "select",
    null,
    kinds.map((text) => h("option", { value: text }, formatKind(text))),
  );
  const columns = metadataFields(schema.features);
  const options = h("input", { autocomplete: "off" });
  const optionsField = field("Options", options, "The possible answers, separated by commas.");
  const observations = h("div");
  const message = h("div");
  const button = h("button", { class: "primary" }, "Add it");
  let fields;
  // The values that can be entered depend on the kind.
  const setKind = () => {
    const [type, low, high] = kind.value.split(":");
    const bounds = type === "rating" ? { low: Number(low), high: Number(high) } : { low: null, high: null };
    optionsField.hidden = type !== "category";
    options.required = type === "category";
    const levels = type === "category" ? splitCommas(options.value) : levelsOf(kind.value);
    fields = observationFields({ kind: type, levels, ...bounds });
    observations.replaceChildren(fields.element);
  };
  options.addEventListener("change", setKind);
  setKind();
  kind.addEventListener("change", setKind);

  const form = h(
    "form",
    {
      class: "card narrow",
      async onsubmit(event) {
        event.preventDefault();
        message.replaceChildren();
        button.disabled = true;
        try {
          const chosen = kind.value === "category" ? `category:${JSON.stringify(splitCommas(options.value))}` : kind.value;
          const body = {
            name: name.value,
            kind: chosen,
            observations: fields.read(),
            metadata: readMetadata(columns),
          };
          const answer = await post("v1/features", body);
          announce(
            `Added ${answer.name} with ${count(answer.observations, "observation")}. Its predictions are ready.`,
          );
          location.hash = href("feature", answer.name);
        } catch (error) {
          message.replaceChildren(problem(error));
          message.firstChild.scrollIntoView({ block: "nearest" });
        }
        button.disabled = false;
      },
    },
    field("Name", name),
    kinds.length > 1 ? field("Kind", kind, `The values of the ${words.feature}.`) : null,
    optionsField,
    metadataFieldset(columns),
    h(
      "fieldset",
      null,
      h("legend", null, "First observations"),
      h("p", { class: "hint" }, "Optional; more can be entered at any time."),
      observations,
    ),
    message,
    h("div", { class: "buttons" }, button, h("a", { class: "button", href: "#/features" }, "Cancel")),
  );
  content.append(
    h("p", { class: "crumbs" }, h("a", { href: "#/features" }, capital(words.features))),
    h("h1", null, `Add ${a(words.feature)}`),
    h("p", { class: "lead" }, `It can be predicted for every ${words.row} as soon as it is added.`),
    form,
  );
}

/** Create a field for each metadata column that a person can enter. */
export const metadataFields = (columns) =>
  columns.filter((column) => !["ignore", "custom"].includes(column.type)).map(metadataField);

/** Create a group of the fields; null if there are none. */
export const metadataFieldset = (columns) =>
  columns.length > 0
    ? h(
        "fieldset",
        null,
        h("legend", null, "Metadata"),
        h(
          "p",
          { class: "hint" },
          "Optional. Metadata improves the predictions while there are few observations.",
        ),
        columns.map((column) => column.element),
      )
    : null;

/** Return the metadata that was entered, by column. */
export const readMetadata = (columns) =>
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
const splitCommas = (text) =>
  text
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean);
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
