// A form for a new feature, made from the metadata schema of the model.

import { get, post } from "../api.js";
import { h, href, say, unique } from "../dom.js";
import { count, kind as kindText, number } from "../format.js";
import { observationFields } from "../observing.js";
import { field, problem } from "../parts.js";

const TYPES = { number: "number", date: "date" };
const HINTS = {
  labels: "Several are separated by commas.",
  vector: "Numbers, separated by commas.",
  date: "A day, such as 2026-05-01.",
};

export async function add(content) {
  const schema = await get("v1/schema");
  const name = h("input", { required: true, maxlength: 500, autocomplete: "off" });
  const every = [schema.usual_kind, ...schema.kinds];
  const kinds = every.filter(
    (each, place) => every.findIndex((other) => kindText(other) === kindText(each)) === place,
  );
  const kind = h(
    "select",
    null,
    kinds.map((each) => h("option", { value: each }, kindText(each))),
  );
  const columns = schema.features
    .filter((column) => !["ignore", "custom"].includes(column.type))
    .map(metadataField);
  const observations = h("div");
  const failed = h("div");
  const button = h("button", { class: "primary" }, "Add it");
  let fields;
  // Which values can be entered depends on the kind.
  const setKind = () => {
    const [type, low, high] = kind.value.split(":");
    const bounds = type === "rating" ? { low: Number(low), high: Number(high) } : { low: null, high: null };
    fields = observationFields({ kind: type, ...bounds });
    observations.replaceChildren(fields.element);
  };
  setKind();
  kind.addEventListener("change", setKind);

  const form = h(
    "form",
    {
      class: "card narrow",
      async onsubmit(event) {
        event.preventDefault();
        failed.replaceChildren();
        button.disabled = true;
        try {
          const given = { name: name.value, kind: kind.value, observations: fields.read(), metadata: {} };
          for (const column of columns) {
            const value = column.read();
            if (value !== null) given.metadata[column.name] = value;
          }
          const answer = await post("v1/features", given);
          say(
            `Added ${answer.name} with ${count(answer.observations, "observation")}. It is predicted already.`,
          );
          location.hash = href("feature", answer.name);
        } catch (error) {
          failed.replaceChildren(problem(error));
          failed.firstChild.scrollIntoView({ block: "nearest" });
        }
        button.disabled = false;
      },
    },
    field("Name", name),
    kinds.length > 1 ? field("Kind", kind, "Which values it takes.") : null,
    columns.length > 0 &&
      h(
        "fieldset",
        null,
        h("legend", null, "Metadata"),
        h(
          "p",
          { class: "hint" },
          "All optional. The more is known, the better it is predicted before anyone has observed it.",
        ),
        columns.map((column) => column.element),
      ),
    h(
      "fieldset",
      null,
      h("legend", null, "First observations"),
      h("p", { class: "hint" }, "Optional; more can be entered at any time."),
      observations,
    ),
    failed,
    h("div", { class: "buttons" }, button, h("a", { class: "button", href: "#/features" }, "Cancel")),
  );
  content.append(
    h("p", { class: "crumbs" }, h("a", { href: "#/features" }, "Features")),
    h("h1", null, "Add a feature"),
    h("p", { class: "lead" }, "It is predicted for every row as soon as it is added."),
    form,
  );
}

function metadataField(column) {
  if (column.type === "text") return made(column, h("textarea", { rows: 3 }), (text) => text);
  const input = h("input", {
    type: TYPES[column.type] ?? "text",
    step: column.type === "number" ? "any" : null,
    autocomplete: "off",
  });
  const hint =
    column.type === "number" && column.low !== undefined && column.low !== null
      ? `Known: ${plain(column.low)} to ${plain(column.high)}.`
      : HINTS[column.type];
  const list = column.values?.length ? h("datalist", { id: unique("values") }) : null;
  if (list) {
    input.setAttribute("list", list.id);
    // Of several labels the last is completed: the list offers whole texts, so it is made anew as someone types.
    const offer = () => {
      const parts = input.value.split(",");
      const begin =
        column.type === "labels" && parts.length > 1
          ? `${parts
              .slice(0, -1)
              .map((part) => part.trim())
              .join(", ")}, `
          : "";
      list.replaceChildren(
        ...column.values.slice(0, 500).map((value) => h("option", { value: begin + value })),
      );
    };
    offer();
    if (column.type === "labels") input.addEventListener("input", offer);
  }
  return made(column, input, readers[column.type] ?? ((text) => text), hint, list);
}

const plain = (value) => (Number.isInteger(value) ? String(value) : number(value));
const parts = (text) =>
  text
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean);
const readers = { number: Number, labels: parts, vector: (text) => parts(text).map(Number) };

function made(column, input, read, hint, list) {
  return {
    name: column.name,
    element: h("div", null, field(column.name, input, hint), list),
    read: () => (input.value.trim() === "" ? null : read(input.value.trim())),
  };
}
