// A form for observations of one feature or row: lines of a row or feature and its value.

import { Problem } from "./api.js";
import { h } from "./dom.js";
import { field, problem, suggestNames } from "./parts.js";
import { capital, words } from "./words.js";

/**
 * Create fields of names and values: `element`, `read()` → {name: value}, `start(name)` and `clear()`.
 * The names are rows, for observations of a feature of this `kind`; or features, whose values are of any kind.
 */
export function observationFields({ low, high, kind, levels, of = "row" }) {
  const anyKind = of === "feature";
  if (kind.startsWith("click")) [low, high] = [null, null]; // predictions are limited to 0–1, values are not
  const bounded = !levels && low !== null && low !== undefined;
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
        : anyKind
          ? h("input", { autocomplete: "off" })
          : h("input", { type: "number", step: "any", min: low, max: high, inputmode: "decimal" });
    lines.append(
      h(
        "div",
        { class: "line" },
        field(capital(words[of]), name),
        field(bounded ? `${capital(words.value)} (${low}–${high})` : capital(words.value), value),
        suggestNames(name, `${of}s`),
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
        if (!name.value) throw new Problem(422, `Name the ${words[of]} of each ${words.value}.`);
        if (filled.filter(([other]) => other.value === name.value).length > 1)
          throw new Problem(422, `${name.value} is there twice; keep one value.`);
        if (!value.value) throw new Problem(422, `Enter the ${words.value} of ${name.value}.`);
      }
      return Object.fromEntries(
        filled.map(([name, value]) => [name.value, levels ? value.value : numberOrText(value.value, anyKind)]),
      );
    },
  };
}

// A feature of labels has texts as values; the service explains which ones.
const numberOrText = (text, anyKind) => (anyKind && Number.isNaN(Number(text)) ? text : Number(text));

/** Create the form; `submit` is called with {name: value}. */
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
            throw new Problem(422, `Enter at least one ${words[known.of ?? "row"]} and its ${words.value}.`);
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
