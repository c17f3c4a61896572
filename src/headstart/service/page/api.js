// Requests to the service. If it needs a token, the page asks for it and keeps it for this tab only.

import { h, uniqueId } from "./dom.js";

const TOKEN_KEY = "headstart-token";

/** An error of the service; `message` is for a person. */
export class Problem extends Error {
  constructor(status, message, errors = []) {
    super(message);
    this.status = status;
    this.errors = errors;
  }
}

async function send(method, path, body) {
  const headers = { Accept: "application/json" };
  const token = sessionStorage.getItem(TOKEN_KEY);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Problem(0, "The service cannot be reached. Is it running?");
  }
}

async function call(method, path, body) {
  let response = await send(method, path, body);
  while (response.status === 401 && (await askToken(Boolean(sessionStorage.getItem(TOKEN_KEY))))) {
    response = await send(method, path, body);
  }
  const content = await response.json().catch(() => ({}));
  if (response.ok) return content;
  throw new Problem(
    response.status,
    content.detail ?? content.title ?? `Status ${response.status}`,
    content.errors,
  );
}

export const get = (path) => call("GET", path);
export const post = (path, body) => call("POST", path, body);
export const remove = (path) => call("DELETE", path);

/**
 * Return the path of a feature or row in the API. Browsers resolve "." and ".." in paths, also if they are encoded;
 * spaces around a name do not count.
 */
export const pathOf = (collection, name) =>
  `v1/${collection}/${encodeURIComponent(name === "." || name === ".." ? ` ${name}` : name)}`;

let openDialog = null;

/** Ask for a token, with one dialog for all requests that wait; resolves to whether one was entered. */
function askToken(wrong) {
  openDialog ??= openTokenDialog(wrong).finally(() => {
    openDialog = null;
  });
  return openDialog;
}

function openTokenDialog(wrong) {
  const id = uniqueId("token");
  const input = h("input", {
    id,
    type: "password",
    autocomplete: "off",
    required: true,
    pattern: "\\s*[!-~]+\\s*",
  });
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: `${id}-title` }, "A token is needed"),
    h(
      "p",
      { class: wrong ? "problem" : "muted" },
      wrong
        ? "This token is not valid, or not valid any more."
        : "This service answers only with a token. It is kept until you close this tab.",
    ),
    h("label", { for: id }, "Token"),
    input,
    h(
      "div",
      { class: "buttons" },
      h("button", { class: "primary", value: "ok" }, "Use it"),
      h("button", { value: "", formnovalidate: true }, "Cancel"),
    ),
  );
  const dialog = h("dialog", { "aria-labelledby": `${id}-title` }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const token = dialog.returnValue === "ok" && input.value.trim();
      if (token) sessionStorage.setItem(TOKEN_KEY, token);
      dialog.remove();
      resolve(Boolean(token));
    });
  });
}
