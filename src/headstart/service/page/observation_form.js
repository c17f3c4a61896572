// A form for observations of one feature: lines of a row and its value.

import { Problem } from "./api.js";
import { h } from "./dom.js";
import { field, problem, suggestNames } from "./parts.js";

/** Create fields of rows and values: `element`, `read()` → {row: value}, `start(row)` and `clear()`. */
export function observationFields({ low, high, kind, levels }) {
  if (kind.startsWith("click")) [low, high] = [null, null]; // predictions are limited to 0–1, values are not
  const lines = h("div", { class: "lines" });
  const add = (row = "") => {
    const name = h("input", { value: row, autocomplete: "off" });
    const value =
      levels || kind === "binary"
        ? h(
            "select",
            null,
            h("option", { value: "" }, ""),
            levels
              ? levels.map((level) => h("option", { value: level }, level))
              : [h("option", { value: "1" }, "1 (yes)"), h("option", { value: "0" }, "0 (no)")],
          )
        : h("input", { type: "number", step: "any", min: low, max: high, inputmode: "decimal" });
    lines.append(
      h(
        "div",
        { class: "line" },
        field("Row", name),
        field(levels || low === null || low === undefined ? "Value" : `Value (${low}–${high})`, value),
        suggestNames(name, "rows"),
      ),
    );
    return { name, value };
  };
  const inputs = () => [...lines.children].map((line) => [...line.querySelectorAll("input, select")]);
  const clear = () => {
    lines.replaceChildren();
    add();
  };
  clear();
  return {
    element: h(
      "div",
      null,
      lines,
      h("button", { type: "button", class: "small", onclick: () => add().name.focus() }, "One more line"),
    ),
    clear,
    start(row) {
      const free = inputs().find(([name, value]) => !name.value && !value.value);
      if (free) free[0].value = row;
      (free ? free[1] : add(row).value).focus();
    },
    read() {
      const filled = inputs().filter(([name, value]) => name.value || value.value);
      for (const [name, value] of filled) {
        if (!name.value) throw new Problem(422, "Name the row of each value.");
        if (filled.filter(([other]) => other.value === name.value).length > 1)
          throw new Problem(422, `${name.value} is there twice; keep one value.`);
        if (!value.value) throw new Problem(422, `Enter the value of ${name.value}.`);
      }
      return Object.fromEntries(
        filled.map(([name, value]) => [name.value, levels ? value.value : Number(value.value)]),
      );
    },
  };
}

/** Create the form; `submit` is called with {row: value}. */
export function observationForm({ known, submit }) {
  const fields = observationFields(known);
  const message = h("div");
  const button = h("button", { class: "primary" }, "Save observations");
  const element = h(
    "form",
    {
      async onsubmit(event) {
        event.preventDefault();
        message.replaceChildren();
        button.disabled = true;
        try {
          const observations = fields.read();
          if (!Object.keys(observations).length)
            throw new Problem(422, "Enter at least one row and its value.");
          await submit(observations);
          fields.clear();
        } catch (error) {
          message.replaceChildren(problem(error));
        }
        button.disabled = false;
      },
    },
    fields.element,
    message,
    h("div", { class: "buttons" }, button),
  );
  return { element, start: fields.start };
}
