// What every part of the page uses.
const all = (query, from = document) => [...from.querySelectorAll(query)];
const byId = (id) => document.getElementById(id);
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
for (const element of all("[data-js]")) element.hidden = false;

/** An element with a text and, in front of it, a bold one. */
function element(tag, text = "", options = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  return Object.assign(made, options);
}

/** A length of time with every nanosecond of it. */
function duration(ns) {
  const size = Math.abs(ns);
  const [unit, one] =
    size < 1e3 ? ["ns", 1] : size < 1e6 ? ["µs", 1e3] : size < 1e10 ? ["ms", 1e6] : ["s", 1e9];
  const digits = { ns: 0, µs: 3, ms: 6, s: 9 }[unit];
  return `${(ns / one).toLocaleString("en", { maximumFractionDigits: digits })} ${unit}`;
}

/** A length of time as texts write it, with three or four digits that count. */
function rounded(ns) {
  const size = Math.abs(ns);
  const [unit, one] =
    size < 1e3 ? ["ns", 1] : size < 1e6 ? ["µs", 1e3] : size < 1e10 ? ["ms", 1e6] : ["s", 1e9];
  const digits = unit === "ns" ? 0 : size < 1e7 && unit === "ms" ? 2 : unit === "s" ? 2 : 1;
  const number = (ns / one).toLocaleString("en", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
  return `${number} ${unit}`;
}

/** From one length of time to another, as texts write it. */
function between(low, high) {
  const [from, to] = [low, high].map(rounded);
  if (from === to) return to;
  return low ? `${from} to ${to}` : `up to ${to}`;
}
