// One feature: its predictions and their history, similar features, rows to observe next, and its audience.

import { get, pathOf, post, remove } from "../api.js";
import { h, announce } from "../dom.js";
import { count, estimate, formatKind, formatTime } from "../format.js";
import { observationForm } from "../observation_form.js";
import { askToConfirm, metadataCard, panel, problem } from "../parts.js";
import { capital, words } from "../words.js";
import { audience, distribution, history, observations, similar, suggestions } from "./feature_panels.js";

export async function feature(content, name) {
  const address = pathOf("features", name);
  const [known, first] = await Promise.all([get(address), get(`${address}/distribution`)]);
  const state = { known, now: first, before: null };
  const facts = h("p", { class: "lead", id: "facts" }, factsOf(known));
  const effect = h("div", { class: "effect", role: "status" });
  const distributionPanel = panel(null, () => distribution(state), {
    "aria-labelledby": null,
    "aria-label": "Predicted distribution",
  });
  const isCategory = known.kind.startsWith("category");
  const historyPanel = isCategory
    ? null
    : panel(null, () => history(address, known), {
        "aria-labelledby": null,
        "aria-label": "How the prediction moved",
      });
  const suggestionPanel = panel(`Suggested ${words.rows} to observe next`, () => suggestions(name, (row) => form.start(row)));
  const audiencePanel = panel("Audience", () => audience(known));
  const observationPanel = panel("Observations", () => observations(state.known));
  const similarPanel = panel(`Most similar ${words.features}`, () => similar(name));

  const panels = [
    distributionPanel,
    historyPanel,
    suggestionPanel,
    audiencePanel,
    observationPanel,
    similarPanel,
  ].filter(Boolean);

  const form = observationForm({
    known,
    async submit(observations) {
      const triples = Object.entries(observations).map(([row, value]) => ({ row, feature: name, value }));
      const answer = await post("v1/observations", { observations: triples });
      const [changed, now] = await Promise.all([get(address), get(`${address}/distribution`)]);
      Object.assign(state, { known: changed, before: state.now, now });
      facts.textContent = factsOf(changed);
      effect.replaceChildren(...effectOf(state, triples.length, answer.warning));
      await Promise.all(panels.map((panel) => panel.reload()));
    },
  });

  content.append(
    h("p", { class: "crumbs" }, h("a", { href: "#/features" }, capital(words.features))),
    h(
      "div",
      { class: "head" },
      h("h1", { dir: "auto" }, known.title || name),
      h("button", { class: "danger quiet", onclick: () => removeFeature(name, address, content) }, "Remove"),
    ),
    known.title && known.title !== name ? h("p", { class: "muted", dir: "auto" }, name) : "",
    facts,
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        null,
        distributionPanel,
        h(
          "section",
          { class: "card", "aria-labelledby": "enter" },
          h("h2", { id: "enter" }, "Enter observations"),
          form.element,
          effect,
        ),
        historyPanel,
        similarPanel,
      ),
      h("div", null, suggestionPanel, audiencePanel, metadataCard(known.metadata), observationPanel),
    ),
  );
}

function factsOf(known) {
  const uncertainty = known.uncertainty === null ? "" : `, uncertainty ± ${estimate(known.uncertainty)}`;
  const since = known.added
    ? `. Added ${formatTime(known.added)}`
    : known.fitted
      ? ". In the saved model"
      : "";
  return `${formatKind(known.kind)}, ${count(known.shots, "observation")}${uncertainty}${since}.`;
}

function effectOf({ now, before, known }, added, warning) {
  const change = (label, from, to) =>
    h(
      "div",
      null,
      h("dt", null, label),
      h("dd", null, `${estimate(from)} → `, h("strong", null, estimate(to))),
    );
  return [
    h("p", null, `Added ${count(added, "observation")}; the ${words.feature} now has ${count(known.shots, "observation")}.`),
    now.levels
      ? null
      : h(
          "dl",
          { class: "changes" },
          change(`Mean over ${words.rows}`, before.mean, now.mean),
          change(`Uncertainty of one ${words.row}, ±`, before.std, now.std),
          change(`${capital(words.rows)} differ by ±`, before.spread, now.spread),
        ),
    warning && h("p", { class: "notice" }, warning),
  ].filter(Boolean);
}

async function removeFeature(name, address, content) {
  if (
    !(await askToConfirm(
      `Remove this ${words.feature}?`,
      `“${name}” and all its observations will be removed. This cannot be undone.`,
      "Remove",
    ))
  )
    return;
  try {
    await remove(address);
    announce(`Removed ${name}.`);
    location.hash = "#/features";
  } catch (error) {
    content.prepend(problem(error));
  }
}
