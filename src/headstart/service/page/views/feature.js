// One feature: what is predicted, how that moved, what is alike, whom to ask, whom to show it to.

import { get, place, post, remove } from "../api.js";
import { h, say } from "../dom.js";
import { count, estimate, kind, when } from "../format.js";
import { observing } from "../observing.js";
import { confirmed, described, panel, problem } from "../parts.js";
import { audience, distribution, history, observations, similar, suggested } from "./feature_panels.js";

export async function feature(content, name) {
  const address = place("features", name);
  const [known, first] = await Promise.all([get(address), get(`${address}/distribution`)]);
  const state = { known, now: first, before: null };
  const facts = h("p", { class: "lead", id: "facts" }, factsOf(known));
  const effect = h("div", { class: "effect", role: "status" });
  const predicted = panel(null, () => distribution(state), {
    "aria-labelledby": null,
    "aria-label": "Predicted distribution",
  });
  const moved = panel(null, () => history(address, known), {
    "aria-labelledby": null,
    "aria-label": "How the prediction moved",
  });
  const asking = panel("Suggested rows to observe next", () => suggested(name, (row) => form.start(row)));
  const showing = panel("Audience", () => audience(known));
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
    h(
      "div",
      { class: "head" },
      h("h1", { dir: "auto" }, name),
      h("button", { class: "danger quiet", onclick: () => drop(name, address, content) }, "Remove"),
    ),
    facts,
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        null,
        predicted,
        h(
          "section",
          { class: "card", "aria-labelledby": "enter" },
          h("h2", { id: "enter" }, "Enter observations"),
          form.element,
          effect,
        ),
        moved,
        alike,
      ),
      h("div", null, asking, showing, described(known.metadata), seen),
    ),
  );
}

function factsOf(known) {
  const unsure = known.uncertainty === null ? "" : `, uncertainty ± ${estimate(known.uncertainty)}`;
  const since = known.added
    ? `. Added ${when(known.added)}`
    : known.fitted
      ? ". Known since the model was fitted"
      : "";
  return `${kind(known.kind)}, ${count(known.shots, "shot")}${unsure}${since}.`;
}

function effectOf({ now, before, known }, taken, warning) {
  const change = (label, from, to) =>
    h(
      "div",
      null,
      h("dt", null, label),
      h("dd", null, `${estimate(from)} → `, h("strong", null, estimate(to))),
    );
  return [
    h("p", null, `Taken: ${count(taken, "observation")}; it now has ${count(known.shots, "shot")}.`),
    h(
      "dl",
      { class: "changes" },
      change("Mean over rows", before.mean, now.mean),
      change("Uncertainty of one, ±", before.std, now.std),
      change("Rows differ by ±", before.spread, now.spread),
    ),
    warning && h("p", { class: "notice" }, warning),
  ].filter(Boolean);
}

async function drop(name, address, content) {
  if (
    !(await confirmed(
      "Remove this feature?",
      `“${name}” and everything that was observed of it will be removed. This cannot be undone.`,
      "Remove",
    ))
  )
    return;
  try {
    await remove(address);
    say(`Removed ${name}.`);
    location.hash = "#/features";
  } catch (error) {
    content.prepend(problem(error));
  }
}
