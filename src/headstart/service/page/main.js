// Which view is shown: "#/feature/NAME?search=…" calls feature(main, NAME, parameters).

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
let shown = 0;

function read(hash) {
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

function mark(view) {
  for (const each of document.querySelectorAll("[data-view]")) {
    if (each.dataset.view === (PARENTS[view] ?? view)) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
}

async function show() {
  const { view, name, query } = read(location.hash);
  const own = ++shown;
  const content = h("div", { class: `view ${view}` });
  mark(view);
  main.setAttribute("aria-busy", "true");
  try {
    await (VIEWS[view] ?? features)(content, name, query);
  } catch (error) {
    content.replaceChildren(
      h("h1", null, error.status === 503 ? "One moment" : "This did not work"),
      problem(error),
    );
    // The model is being loaded, or the store is away for a while: both end by themselves.
    if (error.status === 503) setTimeout(() => own === shown && show(), 2000);
  }
  if (own !== shown) return; // another view was asked for meanwhile
  main.replaceChildren(content);
  main.removeAttribute("aria-busy");
  const heading = content.querySelector("h1");
  document.title = `${heading?.textContent ?? "Headstart"} · Headstart`;
  if (own > 1) {
    // keyboards and screen readers go on at the new view; the first view leaves them at the top
    heading?.setAttribute("tabindex", "-1");
    heading?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

async function describe() {
  const model = await get("v1/model");
  document.getElementById("model").textContent =
    `${count(model.features, "feature")}, ${count(model.rows, "row")}. Model ${model.model}.`;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which view is shown
  main.focus();
});
addEventListener("hashchange", show);
show()
  .then(describe)
  .catch(() => {});
