// One row: its observations, its recommended features, and the reasons of predictions.

import { get, pathOf, post, remove } from "../api.js";
import { h, link, announce } from "../dom.js";
import { explain, whyCard } from "../explanation.js";
import { bars, interval, table } from "../figures.js";
import { count, estimate, formatValue, number, formatTime } from "../format.js";
import { observationForm } from "../observation_form.js";
import { askToConfirm, metadataCard, panel, problem } from "../parts.js";
import { capital, countOf, words } from "../words.js";

const LIMIT = 100; // of observations in the list
const MAX_ANSWERS = 12; // features whose answers are shown
const CRITERIA = {
  mean: "The highest predictions first.",
  relevance: "The most probable choices with a high value first: popular ones rank higher.",
};

export async function row(content, name) {
  const address = pathOf("rows", name);
  const [known, { features, total }] = await Promise.all([get(address), get("v1/features?limit=1000")]);
  const labelled = features.filter(({ name, levels }) => levels && !(name in known.observations));
  const numbers = total > features.filter(({ kind }) => kind.startsWith("category")).length;
  const why = whyCard("Choose “Why” beside a prediction.");
  const lead = h("p", { class: "lead" });
  const since = known.added
    ? ` Added ${formatTime(known.added)}.`
    : known.fitted
      ? " In the saved model."
      : "";
  const showLead = ({ observations }) => {
    lead.textContent = `Observed ${countOf(Object.keys(observations).length, "feature")}.${since}`;
  };
  showLead(known);
  const state = { known };
  const panels = [
    numbers &&
      panel(`Recommended ${words.features}`, () => recommendations(name, why), { class: "card tall" }),
    labelled.length > 0 && panel("Predicted answers", () => answers(name, labelled, why)),
    panel("Observations", () => observations(state.known)),
  ];
  const effect = h("div", { class: "effect", role: "status" });
  const form = observationForm({
    known: { kind: "any", of: "feature" },
    async submit(values) {
      const triples = Object.entries(values).map(([feature, value]) => ({ row: name, feature, value }));
      const answer = await post("v1/observations", { observations: triples });
      state.known = await get(address);
      showLead(state.known);
      delete why.dataset.feature;
      effect.replaceChildren(
        h("p", null, `Added ${count(triples.length, "observation")}.`),
        answer.warning ? h("p", { class: "notice" }, answer.warning) : "",
      );
      await Promise.all(panels.filter(Boolean).map((panel) => panel.reload()));
    },
  });
  const facts = Object.keys(known.metadata).length > 0 && metadataCard(known.metadata);
  content.append(
    h("p", { class: "crumbs" }, h("a", { href: "#/rows" }, capital(words.rows))),
    h(
      "div",
      { class: "head" },
      h("h1", { dir: "auto" }, known.title || name),
      h(
        "button",
        { class: "danger quiet", onclick: () => removeRow(name, address, content) },
        `Remove this ${words.row}`,
      ),
    ),
    known.title && known.title !== name ? h("p", { class: "muted", dir: "auto" }, name) : "",
    lead,
    h(
      "div",
      { class: "columns" },
      h("div", null, panels[0], panels[1]),
      h(
        "div",
        null,
        why,
        h(
          "section",
          { class: "card", "aria-labelledby": "enter" },
          h("h2", { id: "enter" }, "Enter observations"),
          form.element,
          effect,
        ),
        panels[2],
        facts,
      ),
    ),
  );
}

async function recommendations(name, why) {
  const { ranking, level, by } = await post("v1/recommend", { row: name, n: 10, mixed_kinds: true });
  if (!ranking.length) return h("p", { class: "muted" }, `It has observations of all ${words.features}.`);
  const range = [Math.min(...ranking.map(({ low }) => low)), Math.max(...ranking.map(({ high }) => high))];
  const whyButton = (feature) =>
    h(
      "button",
      { class: "small", "aria-label": `Why ${feature}`, onclick: () => explain(name, feature, why) },
      "Why",
    );
  if (why.dataset.feature === undefined) explain(name, ranking[0].feature, why, false);
  return [
    h("p", { class: "muted" }, `${CRITERIA[by]} Predictions have ${Math.round(level * 100)} % intervals.`),
    table({
      caption: `Recommended ${words.features}`,
      columns: [capital(words.feature), "Predicted", "Reasons"],
      lines: ranking.map((line) => [
        link("feature", line.feature, line.title),
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

function observations(known) {
  const entries = Object.entries(known.observations);
  if (!entries.length) return h("p", { class: "muted" }, "None yet.");
  return [
    entries.length > LIMIT && h("p", { class: "muted" }, `The first ${LIMIT} of ${number(entries.length)}.`),
    table({
      caption: `Observed values by ${words.feature}`,
      columns: [capital(words.feature), capital(words.value)],
      lines: entries
        .slice(0, LIMIT)
        .map(([feature, value]) => [link("feature", feature, known.titles[feature]), formatValue(value)]),
    }),
  ].filter(Boolean);
}

async function removeRow(name, address, content) {
  if (
    !(await askToConfirm(
      `Remove this ${words.row}?`,
      `“${name}” and all its observations will be removed from the ${words.features} and the store. This cannot be undone.`,
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
