// A new feature.

import { get, post } from "../api.js";
import { announce, h, href } from "../dom.js";
import { entryPage, splitCommas } from "../entry_form.js";
import { count, formatKind, levelsOf } from "../format.js";
import { observationFields } from "../observation_form.js";
import { field } from "../parts.js";
import { words } from "../words.js";

export async function add(content) {
  const schema = await get("v1/schema");
  const allKinds = [schema.usual_kind, ...schema.kinds];
  const kinds = allKinds.filter(
    (kind, i) => allKinds.findIndex((other) => formatKind(other) === formatKind(kind)) === i,
  );
  const kind = h(
    "select",
    null,
    kinds.map((text) => h("option", { value: text }, formatKind(text))),
  );
  const options = h("input", { autocomplete: "off" });
  const optionsField = field("Options", options, "The possible answers, separated by commas.");
  const observations = h("div");
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
  content.append(
    ...entryPage("feature", {
      lead: `It can be predicted for every ${words.row} as soon as it is added.`,
      columns: schema.features,
      fields: [
        kinds.length > 1 && field("Kind", kind, `The values of the ${words.feature}.`),
        optionsField,
      ],
      observations,
      async submit(entry) {
        const chosen =
          kind.value === "category" ? `category:${JSON.stringify(splitCommas(options.value))}` : kind.value;
        const answer = await post("v1/features", { ...entry, kind: chosen, observations: fields.read() });
        announce(
          `Added ${answer.name} with ${count(answer.observations, "observation")}. Its predictions are ready.`,
        );
        location.hash = href("feature", answer.name);
      },
    }),
  );
}
