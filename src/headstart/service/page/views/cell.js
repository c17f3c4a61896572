// One cell: the prediction of a feature for a row, what was observed, and why.

import { get, pathOf, post } from "../api.js";
import { h, link } from "../dom.js";
import { explain, whyCard } from "../explanation.js";
import { bars, interval } from "../figures.js";
import { estimate, formatValue } from "../format.js";
import { field, problem, suggestNames } from "../parts.js";
import { a, capital, words } from "../words.js";

export async function cell(content, _, parameters) {
  const row = h("input", { required: true, value: parameters.get("row") ?? "", autocomplete: "off" });
  const feature = h("input", { required: true, value: parameters.get("feature") ?? "", autocomplete: "off" });
  const result = h("div", { "aria-live": "polite" });
  const show = async () => {
    const chosen = new URLSearchParams({ row: row.value, feature: feature.value });
    history.replaceState(null, "", `#/cell?${chosen}`);
    try {
      result.replaceChildren(await lookUp(row.value, feature.value));
    } catch (error) {
      result.replaceChildren(problem(error));
    }
  };
  content.append(
    h("h1", null, "Look up"),
    h("p", { class: "lead" }, `The prediction of ${a(words.feature)} for ${a(words.row)}, and why.`),
    h(
      "form",
      {
        class: "filters",
        role: "search",
        onsubmit(event) {
          event.preventDefault();
          show();
        },
      },
      field(capital(words.row), row),
      field(capital(words.feature), feature),
      h("div", { class: "buttons" }, h("button", { class: "primary" }, "Show")),
      suggestNames(row, "rows"),
      suggestNames(feature, "features"),
    ),
    result,
  );
  if (row.value && feature.value) await show();
}

async function lookUp(row, feature) {
  const [{ predictions, level }, about, known] = await Promise.all([
    post("v1/predict", { rows: [row], features: [feature] }),
    get(pathOf("rows", row)),
    get(pathOf("features", feature)),
  ]);
  const line = predictions[0];
  const observed = about.observations[known.name];
  const why = whyCard("");
  explain(row, feature, why, false);
  const range = known.low === null ? [line.low, line.high] : [known.low, known.high];
  return h(
    "div",
    { class: "columns" },
    h(
      "section",
      { class: "card", "aria-labelledby": "predicted" },
      h("h2", { id: "predicted" }, "Predicted"),
      h("p", null, link("row", about.name, about.title), " × ", link("feature", known.name, known.title)),
      line.probabilities
        ? bars(Object.keys(line.probabilities), Object.values(line.probabilities))
        : [
            h("p", { class: "values" }, estimate(line.mean)),
            interval(line, range),
            h(
              "p",
              { class: "muted" },
              `${Math.round(level * 100)} % interval: ${estimate(line.low)} to ${estimate(line.high)}.`,
            ),
          ],
      h(
        "p",
        { class: "muted" },
        observed === undefined ? "It was not observed." : `Observed: ${formatValue(observed)}.`,
      ),
    ),
    why,
  );
}
