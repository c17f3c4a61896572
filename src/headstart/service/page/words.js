// What the user of the model calls rows, features and values. The names of the columns say it.

import { get } from "./api.js";

export const words = {
  row: "row",
  rows: "rows",
  feature: "feature",
  features: "features",
  value: "value",
  unit: null,
};

/** Read the words of the served model, and return its description. */
export async function loadWords() {
  const model = await get("v1/model");
  Object.assign(words, model.words);
  return model;
}

/** Begin a text with a capital letter. */
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Write a noun with its article: "a film", "an item". */
export const a = (noun) => `${/^(?!us|uni|eu|one)[aeiou]/i.test(noun) ? "an" : "a"} ${noun}`;

const whole = new Intl.NumberFormat("en");

/** Write a number of rows or features in their words: countOf(2, "row") is "2 users". */
export const countOf = (value, kind) =>
  `${whole.format(value)} ${value === 1 ? words[kind] : words[`${kind}s`]}`;

/** Write a message of the service in the words of the model: "unknown row 'x'" is "unknown user 'x'". */
export const inWords = (message) =>
  message.replace(/\b(rows?|features?)(?=:? ['"‘“])/g, (noun) => words[noun]);
