// Numbers, times and metadata as people read them.

const whole = new Intl.NumberFormat("en");

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** A number with the digits that it needs, at most about three. */
export function number(value) {
  if (missing(value)) return "–";
  if (Math.abs(value - Math.round(value)) < 1e-5 && Math.abs(value) < 1e15)
    return whole.format(Math.round(value)).replace("-", "−");
  const text = estimate(value);
  return text.includes("e") ? text : text.replace(/\.?0+$/, "");
}

/** An estimate, always with the same digits, so that columns can be compared. */
export function estimate(value) {
  if (missing(value)) return "–";
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size !== 0 && (size < 0.0005 || size >= 1e6)) return sign + size.toExponential(1);
  return sign + size.toFixed(size < 0.1 ? 3 : size < 100 ? 2 : 0);
}

/** A number with its sign. */
export function signed(value) {
  return `${value < 0 ? "−" : "+"}${estimate(Math.abs(value))}`;
}

/** So many things: "1 row", "2 rows". */
export function count(value, noun) {
  return `${whole.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A moment in the reader's time zone. */
export function when(text) {
  return text ? new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : "";
}

/** A value of metadata. */
export function metadatum(value) {
  return Array.isArray(value) ? value.join(", ") : String(value);
}

/** What a kind means: "rating:1:5" is "rating 1–5". */
export function kind(text) {
  const [type, low, high] = text.split(":");
  return type === "rating" ? `${type} ${low}–${high}` : type;
}
