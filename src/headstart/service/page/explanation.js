// Why a feature is predicted as it is for a row, as a waterfall chart.

import { post } from "./api.js";
import { waterfall } from "./charts.js";
import { h } from "./dom.js";
import { figure } from "./figures.js";
import { estimate, formatMetadata, signed } from "./format.js";
import { problem } from "./parts.js";
import { words } from "./words.js";

/** Create the card that `explain` fills. */
export const whyCard = (text) =>
  h(
    "section",
    { class: "card", "aria-live": "polite", "aria-labelledby": "why" },
    h("h2", { id: "why" }, "Why"),
    h("p", { class: "muted" }, text),
  );

/** Show in the card `why` why a feature is predicted as it is for a row; `jump` scrolls to it. */
export async function explain(name, feature, why, jump = true) {
  why.dataset.feature = feature;
  try {
    const explanation = await post("v1/explain", { row: name, feature, n: 10 });
    if (why.dataset.feature !== feature) return; // another feature was chosen meanwhile
    const parts = explanation.contributions.map((part) => ({
      label: labelOf(part),
      value: part.value,
      text: signed(part.value),
    }));
    const rest = explanation.output - explanation.baseline - parts.reduce((sum, part) => sum + part.value, 0);
    if (Math.abs(rest) > 5e-4) parts.push({ label: "everything else", value: rest, text: signed(rest) });
    const chart = waterfall(
      { label: "Baseline", value: explanation.baseline, text: estimate(explanation.baseline) },
      parts,
      { label: "Sum", value: explanation.output, text: estimate(explanation.output) },
    );
    const unit = explanation.unit === "log-odds" ? "log-odds" : (words.unit ?? "prediction");
    why.replaceChildren(
      figure({
        title: "Why",
        ...chart,
        summary: `${explanation.title || explanation.feature}: ${unit} from ${estimate(explanation.baseline)} to ${estimate(explanation.output)}; the parts add up.${Math.abs(explanation.mean - explanation.output) < 5e-3 ? "" : ` Predicted: ${estimate(explanation.mean)}.`}`,
        columns: ["Reason", "Contribution"],
        lines: [
          ["Baseline", explanation.baseline],
          ...parts.map((part) => [part.label, part.text]),
          ["Sum", explanation.output],
        ],
      }),
    );
    why.querySelector("h2").id = "why";
  } catch (error) {
    why.replaceChildren(h("h2", { id: "why" }, "Why"), problem(error));
  }
  if (jump) why.scrollIntoView({ block: "nearest", behavior: "smooth" });
}

// The label of the service, such as "year = 1971"; lists are joined here.
const labelOf = (part) =>
  Array.isArray(part.given) ? `${part.name} = ${formatMetadata(part.given)}` : part.label;
