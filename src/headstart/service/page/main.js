// Show the view of the address: "#/feature/NAME?search=…" calls feature(content, NAME, parameters).

import { h } from "./dom.js";
import { problem } from "./parts.js";
import { add } from "./views/add.js";
import { cell } from "./views/cell.js";
import { feature } from "./views/feature.js";
import { features } from "./views/features.js";
import { quality } from "./views/quality.js";
import { row } from "./views/row.js";
import { addRow, rows } from "./views/rows.js";
import { capital, countOf, loadWords, words } from "./words.js";

const VIEWS = { features, feature, add, rows, row, "add-row": addRow, cell, quality };
const PARENTS = { feature: "features", add: "features", row: "rows", "add-row": "rows" };
const main = document.getElementById("main");
let lastVisit = 0;
let wordsLoaded = false;

function parseAddress(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [view, name] = path.split("/");
  try {
    return {
      view: view || "features",
      name: name && decodeURIComponent(name),
      query: new URLSearchParams(query),
    };
  } catch {
    return { view: "features", query: new URLSearchParams() };
  }
}

function markCurrent(view) {
  for (const item of document.querySelectorAll("[data-view]")) {
    if (item.dataset.view === (PARENTS[view] ?? view)) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
}

async function show() {
  const { view, name, query } = parseAddress(location.hash);
  const visit = ++lastVisit;
  const content = h("div", { class: `view ${view}` });
  markCurrent(view);
  main.setAttribute("aria-busy", "true");
  try {
    if (!wordsLoaded) await showModel();
    await (VIEWS[view] ?? features)(content, name, query);
  } catch (error) {
    content.replaceChildren(
      h("h1", null, error.status === 503 ? "One moment" : "This did not work"),
      problem(error),
    );
    // The model is being loaded or the store cannot be reached; try again.
    if (error.status === 503) setTimeout(() => visit === lastVisit && show(), 2000);
  }
  if (visit !== lastVisit) return; // the address has changed meanwhile
  main.replaceChildren(content);
  main.removeAttribute("aria-busy");
  const heading = content.querySelector("h1");
  document.title = `${heading?.textContent ?? "Headstart"} · Headstart`;
  if (visit > 1) {
    // Move the focus of keyboards and screen readers to the new view; not on the first visit.
    heading?.setAttribute("tabindex", "-1");
    heading?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

async function showModel() {
  const model = await loadWords();
  wordsLoaded = true;
  for (const item of document.querySelectorAll('[data-view="features"], [data-view="rows"]'))
    item.textContent = capital(words[item.dataset.view]);
  document.getElementById("model").textContent =
    `${countOf(model.features, "feature")}, ${countOf(model.rows, "row")}. Model ${model.model}.`;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address must stay that of the view
  main.focus();
});
addEventListener("hashchange", show);
show();
