// One feature: what is predicted, how that moved, what is alike, whom to ask, whom to show it to.

import { get, place, post, remove } from "../api.js";
import { curve, figure, histogram, interval, meter, table } from "../charts.js";
import { h, link, say } from "../dom.js";
import { count, estimate, kind, metadatum, number, when } from "../format.js";
import { observing } from "../observing.js";
import { confirmed, panel, problem } from "../parts.js";

export async function feature(content, name) {
  const address = place("features", name);
  const [known, first] = await Promise.all([get(address), get(`${address}/distribution`)]);
  const state = { known, now: first, before: null };
  const facts = h("p", { class: "lead", id: "facts" }, factsOf(known));
  const effect = h("div", { class: "effect", role: "status" });
  const predicted = panel(null, () => distribution(state), { "aria-labelledby": null, "aria-label": "Predicted distribution" });
  const moved = panel(null, () => history(address, known), { "aria-labelledby": null, "aria-label": "How the prediction moved" });
  const asking = panel("Whom to ask next", () => suggested(name, (row) => form.start(row)));
  const showing = panel("Whom to show it to", () => audience(known));
  const seen = panel("Observations", () => observations(state.known));
  const alike = panel("Most similar features", () => similar(name));

  const form = observing({
    known,
    async submit(observations) {
      const triples = Object.entries(observations).map(([row, value]) => ({ row, feature: name, value }));
      const answer = await post("v1/observations", { observations: triples });
      const [changed, now] = await Promise.all([get(address), get(`${address}/distribution`)]);
      Object.assign(state, { known: changed, before: state.now, now });
      facts.textContent = factsOf(changed);
      effect.replaceChildren(...effectOf(state, triples.length, answer.warning));
      await Promise.all([predicted, moved, asking, showing, seen, alike].map((each) => each.reload()));
    },
  });

  content.append(
    h("p", { class: "crumbs" }, h("a", { href: "#/features" }, "Features")),
    h("div", { class: "head" }, h("h1", { dir: "auto" }, name), h("button", { class: "danger quiet", onclick: () => drop(name, address, content) }, "Remove")),
    facts,
    h("div", { class: "columns" },
      h("div", null, predicted,
        h("section", { class: "card", "aria-labelledby": "enter" }, h("h2", { id: "enter" }, "Enter observations"), form.element, effect),
        moved, alike),
      h("div", null, asking, showing, described(known), seen)));
}

function factsOf(known) {
  const unsure = known.uncertainty === null ? "" : `, uncertainty ± ${estimate(known.uncertainty)}`;
  const since = known.added ? `. Added ${when(known.added)}` : known.fitted ? ". Known since the model was fitted" : "";
  return `${kind(known.kind)}, ${count(known.shots, "shot")}${unsure}${since}.`;
}

function distribution({ known, now, before }) {
  const compared = before ? ` Before: mean ${estimate(before.mean)}.` : "";
  const lines = now.counts.map((each, place) => [`${number(now.edges[place])} to ${number(now.edges[place + 1])}`, each, ...(before ? [sameBins(now, before) ? before.counts[place] : "–"] : [])]);
  return figure({
    title: "Predicted distribution",
    summary: `Predictions for ${count(now.rows, "row")}: mean ${estimate(now.mean)}, rows differ by ± ${estimate(now.spread)}, each is sure to ± ${estimate(now.std)}.${compared}`,
    columns: ["Predicted value", "Rows", ...(before ? ["Rows before"] : [])], lines, height: 240,
    legend: before ? [["now", "now"], ["earlier", "before"]] : [],
    draw: histogram(now, before, known.kind === "binary" ? "predicted probability" : "predicted value"),
  });
}

const sameBins = (one, other) => one.edges.every((edge, place) => edge === other.edges[place]);

function effectOf({ now, before, known }, taken, warning) {
  const change = (label, from, to) => h("div", null, h("dt", null, label), h("dd", null, `${estimate(from)} → `, h("strong", null, estimate(to))));
  return [
    h("p", null, `Taken: ${count(taken, "observation")}; it now has ${count(known.shots, "shot")}.`),
    h("dl", { class: "changes" }, change("Mean over rows", before.mean, now.mean), change("Sure to ±", before.std, now.std), change("Rows differ by ±", before.spread, now.spread)),
    warning && h("p", { class: "notice" }, warning),
  ].filter(Boolean);
}

async function history(address, known) {
  const { history: points } = await get(`${address}/history`);
  if (points.length < 2) {
    return [h("h2", null, "How the prediction moved"), h("p", { class: "muted" }, known.fitted
      ? "Nothing has arrived since the model was fitted. The line begins with the first observation."
      : "Nothing was observed yet. The line begins with the first observation.")];
  }
  const last = points.at(-1);
  return figure({
    title: "How the prediction moved",
    summary: `The mean over rows went from ${estimate(points[0].mean)} to ${estimate(last.mean)}, its typical uncertainty (band) from ± ${estimate(points[0].std)} to ± ${estimate(last.std)}.`,
    columns: ["Shots", "Mean", "Uncertainty", "Rows differ by"], lines: points.map((each) => [each.shots, each.mean, each.std, each.spread]),
    draw: curve(points.map((each) => ({ x: each.shots, y: each.mean, error: each.std })), { xLabel: "shots", xs: wholes(points.map((each) => each.shots)) }),
  });
}

const wholes = (shots) => (shots.length <= 10 ? shots : undefined);

async function suggested(name, choose) {
  const { rows } = await post("v1/suggest", { feature: name, n: 6 });
  return [h("p", { class: "muted" }, "Their observations would tell most about this feature."),
    h("ul", { class: "names" }, rows.map((row) => h("li", null, link("row", row),
      h("button", { class: "small", "aria-label": `Enter the value of ${row}`, onclick: () => choose(row) }, "Enter"))))];
}

async function audience(known) {
  const { ranking, level } = await post("v1/audience", { feature: known.name, n: 6 });
  if (!ranking.length) return h("p", { class: "muted" }, "Every row has observed it.");
  const range = known.low === null ? [Math.min(...ranking.map((each) => each.low)), Math.max(...ranking.map((each) => each.high))] : [known.low, known.high];
  return [h("p", { class: "muted" }, `The highest predictions, with ${Math.round(level * 100)} % intervals.`),
    table({ caption: "Rows with the highest predictions", columns: ["Row", "Predicted", "Interval"],
      lines: ranking.map((each) => [link("row", each.row), estimate(each.mean), h("span", { class: "measure" }, interval(each, range), `${estimate(each.low)} to ${estimate(each.high)}`)]) })];
}

async function similar(name) {
  const found = await post("v1/similar", { feature: name, n: 6 });
  return table({ caption: "Features whose predictions go together with it", columns: ["Feature", "Similarity"],
    lines: found.similar.map((each) => [link("feature", each.feature), h("span", { class: "measure" }, meter(Math.abs(each.similarity)), each.similarity.toFixed(3))]) });
}

function described(known) {
  const entries = Object.entries(known.metadata);
  return h("section", { class: "card", "aria-labelledby": "metadata" }, h("h2", { id: "metadata" }, "Metadata"),
    entries.length ? h("dl", { class: "facts" }, entries.map(([key, value]) => h("div", null, h("dt", { dir: "auto" }, key), h("dd", { dir: "auto" }, metadatum(value)))))
      : h("p", { class: "muted" }, "Nothing is known of it but its name."));
}

function observations(known) {
  const entries = Object.entries(known.observations);
  if (!entries.length) return h("p", { class: "muted" }, "None yet.");
  const more = known.shots > entries.length ? ` The first ${number(entries.length)} of ${number(known.shots)}.` : "";
  return [more && h("p", { class: "muted" }, more), table({ caption: "Observed values by row", columns: ["Row", "Value"], lines: entries.map(([row, value]) => [link("row", row), number(value)]) })];
}

async function drop(name, address, content) {
  if (!(await confirmed("Remove this feature?", `“${name}” and everything that was observed of it will be removed. This cannot be undone.`, "Remove"))) return;
  try {
    await remove(address);
    say(`Removed ${name}.`);
    location.hash = "#/features";
  } catch (error) {
    content.prepend(problem(error));
  }
}
