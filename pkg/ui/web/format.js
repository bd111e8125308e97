// Values that are not known are a dash, never 0.
export const unknown = "–";

const known = (value) => value !== undefined && value !== null && !Number.isNaN(value);
const numbers = new Intl.NumberFormat("en");

export const count = (n) => (known(n) ? numbers.format(n) : unknown);

// usd formats micro-dollars per hour.
export function usd(micro) {
  if (!known(micro)) return unknown;
  const dollars = micro / 1e6;
  const digits = Math.abs(dollars) >= 100 ? 2 : 3;
  return "$" + dollars.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// month formats micro-dollars per hour as whole dollars for a month of 730 hours.
export const month = (micro) => (known(micro) ? "$" + numbers.format(Math.round((micro * 730) / 1e6)) : unknown);

export function gib(bytes) {
  if (!known(bytes)) return unknown;
  const g = bytes / 2 ** 30;
  return (g >= 100 || Number.isInteger(g) ? Math.round(g) : g.toFixed(1)) + " GiB";
}

export const percent = (part, whole) => (known(part) && whole > 0 ? Math.round((100 * part) / whole) + " %" : unknown);

// ago formats how long before now a time was: 42s, 7m, 3h10m, 2d4h.
export function ago(time, now = Date.now()) {
  const at = Date.parse(time);
  return Number.isNaN(at) ? unknown : duration((now - at) / 1000);
}

export function duration(seconds) {
  if (!known(seconds)) return unknown;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return s + "s";
  if (s < 3600) return Math.floor(s / 60) + "m" + (s < 600 && s % 60 ? (s % 60) + "s" : "");
  if (s < 86400) return Math.floor(s / 3600) + "h" + (Math.floor((s % 3600) / 60) ? Math.floor((s % 3600) / 60) + "m" : "");
  return Math.floor(s / 86400) + "d" + (Math.floor((s % 86400) / 3600) ? Math.floor((s % 86400) / 3600) + "h" : "");
}

export const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;

// cents formats cents as dollars.
export const cents = (n) => (known(n) ? "$" + (n / 100).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : unknown);
