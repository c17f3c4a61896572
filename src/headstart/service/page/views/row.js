// One row: its observations, its recommended features, and the reasons of predictions.

import { get, pathOf, post, remove } from "../api.js";
import { waterfall } from "../charts.js";
import { h, link, announce } from "../dom.js";
import { bars, figure, interval, table } from "../figures.js";
import { count, estimate, formatMetadata, formatValue, number, signed, formatTime } from "../format.js";
import { askToConfirm, metadataCard, panel, problem } from "../parts.js";

const LIMIT = 100; // of observations in the list
const MAX_ANSWERS = 12; // features whose answers are shown

export async function row(content, name) {
  const address = pathOf("rows", name);
  const [known, { features, total }] = await Promise.all([get(address), get("v1/features?limit=1000")]);
  const labelled = features.filter(({ name, levels }) => levels && !(name in known.observations));
  const numbers = total > features.filter(({ kind }) => kind.startsWith("category")).length;
  const why = h(
    "section",
    { class: "card", "aria-live": "polite", "aria-labelledby": "why" },
    h("h2", { id: "why" }, "Why"),
    h("p", { class: "muted" }, "Choose “Why” beside a prediction."),
  );
  const observed = Object.keys(known.observations).length;
  const since = known.added
    ? ` Added ${formatTime(known.added)}.`
    : known.fitted
      ? " In the model since the fit."
      : "";
  const facts = Object.keys(known.metadata).length > 0 && metadataCard(known.metadata);
  content.append(
    h("p", { class: "crumbs" }, h("a", { href: "#/rows" }, "Rows")),
    h(
      "div",
      { class: "head" },
      h("h1", { dir: "auto" }, name),
      h(
        "button",
        { class: "danger quiet", onclick: () => removeRow(name, address, content) },
        "Remove this row",
      ),
    ),
    h("p", { class: "lead" }, `Observed ${count(observed, "feature")}.${since}`),
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        null,
        numbers && panel("Recommended features", () => recommendations(name, why), { class: "card tall" }),
        labelled.length > 0 && panel("Predicted answers", () => answers(name, labelled, why)),
      ),
      h(
        "div",
        null,
        why,
        panel("Observations", () => observations(known)),
        facts,
      ),
    ),
  );
}

async function recommendations(name, why) {
  const { ranking, level } = await post("v1/recommend", { row: name, n: 10, mixed_kinds: true });
  if (!ranking.length) return h("p", { class: "muted" }, "It has observations of all features.");
  const range = [Math.min(...ranking.map(({ low }) => low)), Math.max(...ranking.map(({ high }) => high))];
  const whyButton = (feature) =>
    h(
      "button",
      { class: "small", "aria-label": `Why ${feature}`, onclick: () => explain(name, feature, why) },
      "Why",
    );
  if (why.dataset.feature === undefined) explain(name, ranking[0].feature, why, false);
  return [
    h("p", { class: "muted" }, `The highest predictions, with ${Math.round(level * 100)} % intervals.`),
    table({
      caption: "Features with the highest predictions",
      columns: ["Feature", "Predicted", "Reasons"],
      lines: ranking.map((line) => [
        line.title
          ? h("span", null, link("feature", line.feature), " ", h("span", { class: "muted" }, line.title))
          : link("feature", line.feature),
        h(
          "span",
          { class: "stack" },
          h(
            "span",
            null,
            estimate(line.mean),
            h("small", null, `${estimate(line.low)} to ${estimate(line.high)}`),
          ),
          interval(line, range),
        ),
        whyButton(line.feature),
      ]),
    }),
  ];
}

// The probabilities of the labels of features that the row has not observed.
async function answers(name, labelled, why) {
  const features = labelled.slice(0, MAX_ANSWERS).map((feature) => feature.name);
  const { predictions } = await post("v1/predict", { rows: [name], features });
  const more = labelled.length > MAX_ANSWERS ? ` The first ${MAX_ANSWERS} of ${number(labelled.length)}.` : "";
  return [
    h("p", { class: "muted" }, `The probability of each answer.${more}`),
    ...predictions.map((line) =>
      h(
        "div",
        { class: "answer" },
        h(
          "p",
          null,
          link("feature", line.feature),
          h(
            "button",
            { class: "small", "aria-label": `Why ${line.feature}`, onclick: () => explain(name, line.feature, why) },
            "Why",
          ),
        ),
        bars(Object.keys(line.probabilities), Object.values(line.probabilities)),
      ),
    ),
  ];
}

async function explain(name, feature, why, jump = true) {
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
    const unit = explanation.unit ? ` in ${explanation.unit}` : "";
    why.replaceChildren(
      figure({
        title: "Why",
        ...chart,
        summary: `${explanation.feature}: from ${estimate(explanation.baseline)} to ${estimate(explanation.output)}${unit}; the parts add up.${Math.abs(explanation.mean - explanation.output) < 5e-3 ? "" : ` Predicted: ${estimate(explanation.mean)}.`}`,
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

function observations(known) {
  const entries = Object.entries(known.observations);
  if (!entries.length) return h("p", { class: "muted" }, "None yet.");
  return [
    entries.length > LIMIT && h("p", { class: "muted" }, `The first ${LIMIT} of ${number(entries.length)}.`),
    table({
      caption: "Observed values by feature",
      columns: ["Feature", "Value"],
      lines: entries.slice(0, LIMIT).map(([feature, value]) => [link("feature", feature), formatValue(value)]),
    }),
  ].filter(Boolean);
}

async function removeRow(name, address, content) {
  if (
    !(await askToConfirm(
      "Remove this row?",
      `“${name}” and all its observations will be removed from the features and the store. This cannot be undone.`,
      "Remove",
    ))
  )
    return;
  try {
    await remove(address);
    announce(`Removed ${name}.`);
    location.hash = "#/rows";
  } catch (error) {
    content.prepend(problem(error));
  }
}
