// The page of costs over time: what machines have cost in a range, and who used them. The address has the range and the grouping.
// The types of the server, which a test checks against the API, and what else has fields.
// @type answer costAnswer
// @type line costLine
// @type row costRow
// @type span costSpan
// @own state server shades address said names presets next today cut mine day hour text level parts column part amount response link colored
import * as address from "./address.js";
import { byId, h, refill, setText } from "./dom.js";
import { cents, count, plural } from "./format.js";
import { login } from "./login.js";
import { Refused, Server } from "./server.js";
import { Shades } from "./shades.js";

const names = ["since", "from", "to", "month", "by"];
const presets = ["24h", "7d", "30d", "90d"];

const server = new Server(address.takeToken());
const shades = new Shades();
const ask = login(server, () => show());
let state = read();
let cut = null;
let answer = null;

// read returns what the address says, and what it means if it says nothing.
function read() {
  const said = address.read(names);
  if (!said.since && !said.from && !said.month) said.since = "30d";
  said.by ||= "namespace";
  return said;
}

// query returns what the server is asked.
const query = () => Object.fromEntries(names.filter((name) => state[name]).map((name) => [name, state[name]]));

// controls shows the state in the form.
function controls() {
  const range = state.month ? "month" : state.from ? "dates" : presets.includes(state.since) ? state.since : "other";
  if (range === "other" && !byId("range").querySelector("[value=other]")) byId("range").append(h("option", { value: "other" }, "Since " + state.since));
  byId("range").value = range;
  byId("month").hidden = range !== "month";
  byId("from").hidden = byId("to").hidden = range !== "dates";
  byId("month").value = state.month;
  byId("from").value = state.from.slice(0, 10);
  byId("to").value = state.to.slice(0, 10);
  const labeled = state.by.startsWith("label:");
  byId("by").value = labeled ? "label" : state.by;
  byId("label").hidden = !labeled;
  if (labeled) byId("label").value = state.by.slice("label:".length);
}

// choose changes the state by the form, and shows it.
function choose() {
  const range = byId("range").value, label = byId("label").value.trim();
  const today = new Date().toISOString();
  const next = { ...state, since: "", from: "", to: "", month: "" };
  if (range === "month") next.month = byId("month").value || today.slice(0, 7);
  else if (range === "dates") Object.assign(next, { from: byId("from").value || today.slice(0, 8) + "01", to: byId("to").value });
  else next.since = range === "other" ? state.since : range;
  next.by = byId("by").value === "label" ? "label:" + label : byId("by").value;
  state = next;
  controls();
  address.write(names, state, true);
  if (state.by === "label:") byId("label").focus();
  else show();
}

// show asks the server, and draws the answer.
async function show() {
  cut?.abort();
  const mine = (cut = new AbortController());
  setText(byId("busy"), "Loading");
  try {
    answer = await server.json("cost", query(), mine.signal);
    server.heard = true;
    say("problem", "");
    draw();
  } catch (error) {
    if (mine.signal.aborted) return;
    if (error instanceof Refused) ask(error.message);
    answer = null;
    say("problem", error.message);
    say("notes", "");
    byId("result").hidden = true;
    byId("export").disabled = true;
  }
  setText(byId("busy"), "");
}

function say(id, text) {
  byId(id).hidden = !text;
  setText(byId(id), text);
}

const day = new Intl.DateTimeFormat("en", { month: "short", day: "numeric", timeZone: "UTC" });
const hour = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: "UTC" });
const hourly = () => answer.spans.every((span) => span.hours === 1);
const moment = (time) => day.format(new Date(time)) + (hourly() ? " " + hour.format(new Date(time)) : "");

function draw() {
  setText(byId("cluster"), answer.cluster ?? "");
  say("notes", answer.notes.map((text) => text[0].toUpperCase() + text.slice(1) + ".").join(" "));
  byId("result").hidden = false;
  byId("export").disabled = false;
  setText(byId("sum"), cents(answer.total.totalCents));
  setText(byId("list"), answer.discounted ? `${cents(answer.total.listCents)} by the list` : "");
  setText(byId("unit"), hourly() ? "US dollars per hour" : "US dollars per day");
  setText(byId("span"), `${day.format(new Date(answer.from))} ${hour.format(new Date(answer.from))} to ${day.format(new Date(answer.to))} ${hour.format(new Date(answer.to))} UTC`);
  document.title = `Karve cost ${cents(answer.total.totalCents)}`;
  drawChart();
  drawRows();
}

// shadeOf returns the class of a line. What has no name is gray: the others, and what nobody used.
const shadeOf = (line) => (line.key ? shades.of(line.key) : line.name === "(unused)" ? "free" : "other");

function drawChart() {
  // Namespaces have the colors that they have on the other page.
  shades.use("karve-colors " + (answer.cluster ?? "") + (state.by === "namespace" ? "" : " " + state.by));
  shades.give(answer.lines.map((line) => line.key).filter(Boolean));
  const sums = answer.spans.map((_, i) => answer.lines.reduce((sum, line) => sum + line.microUSD[i], 0));
  const step = stepFor(Math.max(1e4, ...sums) / 1e6);
  const most = Math.max(1, Math.ceil(Math.max(...sums, 1) / 1e6 / step)) * step;
  refill(byId("levels"), ...Array.from({ length: Math.round(most / step) + 1 }, (_, i) => {
    const level = h("span", {}, h("b", {}, dollars(i * step)));
    level.style.bottom = (100 * i * step) / most + "%";
    return level;
  }));
  refill(byId("columns"), ...answer.spans.map((span, i) => {
    const parts = answer.lines.map((line) => ({ line, micro: line.microUSD[i] })).filter(({ micro }) => micro > 0);
    const column = h("div", { class: "column" + (span.missingMinutes ? " gap" : ""), title: [
      moment(span.from) + ": " + dollars(sums[i] / 1e6), ...parts.map(({ line, micro }) => `${line.name}: ${dollars(micro / 1e6)}`),
      span.missingMinutes && `no data for ${plural(span.missingMinutes, "minute")}`].filter(Boolean).join("\n") });
    column.style.flexGrow = span.hours;
    column.append(...parts.map(({ line, micro }) => {
      const part = h("i", { class: shadeOf(line) });
      part.style.height = (100 * micro) / 1e6 / most + "%";
      return part;
    }));
    return column;
  }));
  byId("columns").classList.toggle("dense", byId("columns").clientWidth < 4 * answer.spans.length);
  byId("columns").setAttribute("aria-label", `Costs from ${moment(answer.from)} to ${moment(answer.to)}, in the table below`);
  const ticks = Math.max(2, Math.min(8, Math.floor(byId("columns").clientWidth / 90), answer.spans.length));
  refill(byId("times"), ...Array.from({ length: ticks }, (_, i) => {
    const span = answer.spans[Math.floor((i * answer.spans.length) / ticks)];
    return h("span", {}, moment(span.from));
  }));
  const gaps = answer.spans.some((span) => span.missingMinutes);
  refill(byId("colors"), ...answer.lines.map((line) => h("li", {}, h("i", { class: "swatch " + shadeOf(line), "aria-hidden": "true" }), line.name)),
    gaps && h("li", {}, h("i", { class: "swatch gap", "aria-hidden": "true" }), "data is missing"));
}

// stepFor returns the step between about four levels up to an amount: 1, 2 or 5 times a power of ten.
function stepFor(most) {
  const power = 10 ** Math.floor(Math.log10(most / 4));
  return [1, 2, 5, 10].find((times) => times * power >= most / 4) * power;
}

const dollars = (amount) => "$" + amount.toLocaleString("en", { minimumFractionDigits: amount % 1 ? 2 : 0, maximumFractionDigits: 2 });

function drawRows() {
  const listed = answer.discounted;
  const amounts = (row) => [row.usedCents, row.idleCents, row.overheadCents, row.totalCents, ...(listed ? [row.listCents] : [])].map((n) => h("td", { class: "right" }, cents(n)));
  const colored = new Map(answer.lines.map((line) => [line.name, shadeOf(line)]));
  const titles = answer.titles.map((title) => h("th", { scope: "col" }, title));
  refill(byId("rows"),
    h("thead", {}, h("tr", {}, titles, ["used", "idle", "overhead", "total", ...(listed ? ["list"] : [])].map((title) => h("th", { scope: "col", class: "right" }, title + " $")))),
    h("tbody", {}, answer.rows.map((row) => {
      const name = row.cells.filter(Boolean).join("/");
      return h("tr", {}, row.cells.map((cell, i) => h("td", {}, i === 0 && h("i", { class: "swatch " + (colored.get(name) ?? "other"), "aria-hidden": "true" }), " ", cell)), amounts(row));
    })),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row", colspan: answer.titles.length }, "total"), amounts(answer.total))));
  setText(byId("more"), answer.more ? `${count(answer.more)} more rows are in the CSV.` : "");
}

// download saves the CSV. A link could not send the token.
async function download() {
  try {
    const response = await server.get("cost.csv?" + new URLSearchParams(query()));
    const at = URL.createObjectURL(new Blob([await response.text()], { type: "text/csv" }));
    const link = h("a", { href: at, download: `karve-cost-${answer.from.slice(0, 10)}-${answer.to.slice(0, 10)}.csv` });
    document.body.append(link);
    link.click();
    link.remove();
    URL.revokeObjectURL(at);
  } catch (error) {
    say("problem", error.message);
  }
}

for (const id of ["range", "month", "from", "to", "by", "label"]) byId(id).addEventListener("change", choose);
byId("wanted").addEventListener("submit", (event) => event.preventDefault());
byId("export").addEventListener("click", download);
byId("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("karve-theme", theme);
});
addEventListener("popstate", () => { state = read(); controls(); show(); });
let width = 0;
addEventListener("resize", () => {
  if (answer && width !== innerWidth) drawChart();
  width = innerWidth;
});

controls();
show();
