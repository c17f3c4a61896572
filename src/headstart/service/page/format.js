// Format numbers, times and metadata for people.

const whole = new Intl.NumberFormat("en");

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** Format a number with the digits that it needs, at most about three. */
export function number(value) {
  if (missing(value)) return "–";
  if (Math.abs(value - Math.round(value)) < 1e-5 && Math.abs(value) < 1e15)
    return whole.format(Math.round(value)).replace("-", "−");
  const text = estimate(value);
  return text.includes("e") ? text : text.replace(/\.?0+$/, "");
}

/** Format an estimate, always with the same digits, so that columns can be compared. */
export function estimate(value) {
  if (missing(value)) return "–";
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size !== 0 && (size < 0.0005 || size >= 1e6)) return sign + size.toExponential(1);
  return sign + size.toFixed(size < 0.1 ? 3 : size < 100 ? 2 : 0);
}

/** Format an estimate with its sign. */
export function signed(value) {
  return `${value < 0 ? "−" : "+"}${estimate(Math.abs(value))}`;
}

/** Format a count with its noun: "1 row", "2 rows". */
export function count(value, noun) {
  return `${whole.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Format a time in the time zone of the reader. */
export function formatTime(text) {
  return text ? new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : "";
}

/** Format a value of metadata. */
export function formatMetadata(value) {
  return Array.isArray(value) ? value.join(", ") : String(value);
}

/** Format an observed value: a label, or a number. */
export function formatValue(value) {
  return typeof value === "string" ? value : number(value);
}

/** Format a probability. */
export function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

/** Return the labels of a kind such as "binary:no,yes"; null if its values are numbers. */
export function levelsOf(kind) {
  const [type, ...rest] = kind.split(":");
  const text = rest.join(":");
  if (!["binary", "ordinal", "category"].includes(type) || !text) return null;
  const levels = text.startsWith("[") ? JSON.parse(text.slice(0, text.lastIndexOf("]") + 1)) : rest[0].split(",");
  return type === "ordinal" && levels.every((level) => level.trim() !== "" && !Number.isNaN(Number(level)))
    ? null
    : levels;
}

/** Format a kind: "rating:1:5" as "rating 1–5", "category:A,B" as "category (A, B)". */
export function formatKind(text) {
  const [type, low, high] = text.split(":");
  const levels = levelsOf(text);
  if (levels) return `${type} (${levels.slice(0, 4).join(", ")}${levels.length > 4 ? ", …" : ""})`;
  return type === "rating" ? `${type} ${low}–${high}` : type;
}
