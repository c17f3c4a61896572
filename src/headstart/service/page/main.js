// Show the view of the address: "#/feature/NAME?search=…" calls feature(content, NAME, parameters).

import { get } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { problem } from "./parts.js";
import { add } from "./views/add.js";
import { feature } from "./views/feature.js";
import { features } from "./views/features.js";
import { quality } from "./views/quality.js";
import { row } from "./views/row.js";
import { rows } from "./views/rows.js";

const VIEWS = { features, feature, add, rows, row, quality };
const PARENTS = { feature: "features", add: "features", row: "rows" };
const main = document.getElementById("main");
let lastVisit = 0;

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
  const model = await get("v1/model");
  document.getElementById("model").textContent =
    `${count(model.features, "feature")}, ${count(model.rows, "row")}. Model ${model.model}.`;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address must stay that of the view
  main.focus();
});
addEventListener("hashchange", show);
show()
  .then(showModel)
  .catch(() => {});
