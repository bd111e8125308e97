// Wires the page: the address, the server's updates, the tiles, the filters, the map and the panel.
// The types of the server, which a test checks against the API, and what else has fields.
// @type model.overview head
// @type controller Leader
// @type t Totals
// @type pod Pod | Waiting
// @type node Node
// @type totals Totals
// @type pool Pool
// @type slot Reservation
// @type room Room
// @own drawn model map server sweep panel state shades tip address select what live lines box tile cell option groups group wanted reasons entries dataset namespaces kept held theme text tones value pairs sound there used slots prices
import * as address from "./address.js";
import { byId, h, refill, setText } from "./dom.js";
import { ago, count, month, percent, plural, unknown, usd } from "./format.js";
import { FleetMap } from "./map.js";
import { Model, reasonOf } from "./model.js";
import { login } from "./login.js";
import { Panel } from "./panel.js";
import { Server } from "./server.js";
import { Shades } from "./shades.js";
import { Sweep } from "./sweep.js";

const names = ["q", "pool", "namespace", "state", "view", "node", "pod", "reason", "replicas"]; // what the address says
const many = 150; // With more nodes than this, the map is compact unless the user has said something else.

const server = new Server(address.takeToken());
const model = new Model();
let state = address.read(names);
let arrived = 0; // when something was last heard of the server
const shades = new Shades(); // the class of each namespace's cells

const shadeOf = (namespace) => shades.of(namespace) + (state.namespace && state.namespace !== namespace ? " dim" : "");

const map = new FleetMap(byId("map"), {
  open: ({ node, pod, byKey }) => open(node ? { node } : { pod }, byKey),
  describe: (drawn) => [drawn.name, drawn.pool && "pool " + drawn.pool, drawn.type, drawn.message || drawn.stateShort, `${count(drawn.used)} of ${count(drawn.replicas)} replicas used`,
    drawn.price === undefined ? "price not known" : usd(drawn.price) + " an hour"].filter(Boolean).join(", "),
  color: shadeOf,
});
const panel = new Panel(byId("panel"), { server, model, map, open });
const sweep = new Sweep({ server, changed: (replicas) => set({ replicas }) });
const ask = login(server, () => follow());

// set changes what the address says, and shows it.
function set(changes, step = false) {
  state = { ...state, ...changes };
  address.write(names, state, step);
}

function open(what, focused = false) {
  const before = byId("panel").hidden;
  set({ node: what?.node ?? "", pod: what?.pod ?? (what?.list ? "*" : ""), reason: what?.reason ?? "" }, true);
  showPanel(focused);
  if (!what && !before) map.focus();
  draw();
}

const showPanel = (focused) => panel.show(state.pod === "*" ? { list: true, reason: state.reason } : state.node ? { node: state.node } : { pod: state.pod }, focused);

const compact = () => (state.view ? state.view === "compact" : model.nodes.size > many);

// draw shows the map and the filters. Again says that colors have changed, so that everything is drawn again.
function draw(again = false) {
  if (!model.overview) return;
  const groups = model.groups(state);
  const shown = groups.reduce((sum, group) => sum + group.nodes.length, 0);
  const pod = model.pods.get(state.pod);
  map.show(groups, { compact: compact(), selected: state.node || pod?.node, again });
  const filtered = state.q || state.pool || state.namespace || state.state;
  setText(byId("shown"), filtered ? `${count(shown)} of ${count(model.nodes.size)} nodes` : "");
  byId("empty").hidden = shown > 0 || !model.overview.totals;
  setText(byId("empty"), filtered && model.nodes.size ? "No node matches the filters." : "There is no node with shared GPUs yet. Karve launches nodes when pods wait for replicas.");
  byId("view").setAttribute("aria-pressed", String(compact()));
}

function options(select, values, all, label = (value) => value) {
  const current = state[select.id];
  const wanted = ["", ...new Set([...values, current].filter(Boolean))];
  if (wanted.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
    select.replaceChildren(...wanted.map((value) => h("option", { value }, value ? label(value) : all)));
  }
  select.value = current;
}

// colorNamespaces gives colors to the namespaces with the most replicas that have none yet, and reports whether it did.
function colorNamespaces(namespaces) {
  shades.use("karve-colors " + (model.overview.cluster ?? ""));
  return shades.give(namespaces.map(({ namespace }) => namespace));
}

function drawLegend(namespaces) {
  const others = namespaces.filter(({ namespace }) => !shades.has(namespace)).length;
  const entry = (shade, text, namespace) => h("li", {}, namespace
    ? h("button", { type: "button", class: "quiet" + (state.namespace === namespace ? " on" : ""), "aria-pressed": String(state.namespace === namespace), data: { namespace, focus: namespace } }, h("i", { class: "swatch " + shade, "aria-hidden": "true" }), text)
    : h("span", {}, h("i", { class: "swatch " + shade, "aria-hidden": "true" }), text));
  const entries = namespaces.filter(({ namespace }) => shades.has(namespace)).map(({ namespace }) => entry(shades.of(namespace), namespace, namespace));
  if (others) entries.push(entry("other", plural(others, "other")));
  entries.push(entry("free", "unused"));
  refill(byId("legend"), ...entries);
}

function drawTiles() {
  const { totals, headroomReplicas, problem, note, controller } = model.overview;
  const t = totals ?? {}; // Nothing is known of a cluster that was never read.
  const partly = t.unpricedNodes ? `\nwithout ${plural(t.unpricedNodes, "node")}` : "";
  const priced = t.unpricedNodes !== t.nodes || t.nodes === 0 ? t.microUSDPerHour : undefined;
  setText(byId("price"), usd(priced));
  const list = t.listMicroUSDPerHour;
  const bound = t.boundMicroUSDPerHour;
  const above = bound > 0 && priced !== undefined ? (priced > bound * 1.0005 ? `\n${percent(priced - bound, bound)} above it` : model.waiting.size ? "" : "\noptimal") : "";
  setText(byId("bound"), `bound ${usd(bound)}${above}${partly}`);
  byId("bound").title = `At least ${usd(bound)} an hour, whatever nodes hold these pods. Now ${month(priced)} a month, and ${usd(list)} an hour at list prices.`;
  const free = totals && t.replicas - t.replicasHeld;
  setText(byId("used"), count(t.replicasHeld));
  setText(byId("of"), "of " + count(t.replicas));
  setText(byId("free"), `${count(free)} free\nheadroom ${count(headroomReplicas)}`);
  const [held, kept] = byId("meter").children;
  held.style.width = (t.replicas ? (100 * t.replicasHeld) / t.replicas : 0) + "%";
  kept.style.width = (t.replicas ? (100 * Math.min(free ?? 0, headroomReplicas ?? 0)) / t.replicas : 0) + "%";
  setText(byId("waiting").firstElementChild, count(totals && model.waiting.size));
  const reasons = new Map();
  for (const pod of model.waiting.values()) {
    const why = reasonOf(pod);
    reasons.set(why, (reasons.get(why) ?? 0) + 1);
  }
  refill(byId("reasons"), ...[...reasons].sort((a, b) => b[1] - a[1]).map(([why, n]) => h("li", {}, h("button", { type: "button", class: "chip plain", data: { reason: why, focus: why } }, `${count(n)} ${why}`))));
  const idle = t.unpricedNodes === t.nodes && t.nodes ? undefined : t.idleMicroUSDPerHour;
  let unused, known = false;
  for (const pod of model.pods.values()) {
    if (pod.unusedSeconds === undefined) continue;
    known = true;
    unused = (unused ?? 0) + (pod.microUSDPerHour ?? 0);
  }
  setText(byId("unused"), usd(idle === undefined ? undefined : idle + (unused ?? 0)));
  setText(byId("unused-note"), `free replicas ${usd(idle)}${known ? `\nunused pods ${usd(unused)}` : ""}`);
  setText(byId("nodes"), count(t.nodes));
  const tones = new Map([...model.nodes.values()].map((node) => [node.severity === "idle" ? "Idle" : node.state, node.severity]));
  refill(byId("states"), ...model.states().map(({ state: name, nodes }) => h("li", {}, h("button", { type: "button", class: "chip " + (tones.get(name) ?? ""), "aria-pressed": String(state.state === name), data: { state: name, focus: name } }, `${count(nodes)} ${name}`))));
  setText(byId("cluster"), model.overview.cluster ?? "");
  say("banner", problem && (totals ? `The cluster cannot be read, and this is as it was: ${problem}` : `The cluster cannot be read: ${problem}`));
  const stopped = ["Stopped", "Missing"].includes(controller.state);
  say("stopped", stopped && sentence(controller.message));
  byId("stopped").title = stopped && controller.lastSeen ? new Date(controller.lastSeen).toLocaleString() : "";
  say("note", note && `Note: ${note}.`);
  document.title = `Karve ${usd(priced)} /h${t.nodes === 0 ? " – no nodes" : ""}`;
}

// drawReservations lists the machines of reservations: those that are used, and what the free ones cost and would hold.
function drawReservations() {
  const { reservations } = model.overview;
  const slots = reservations ?? [];
  byId("reservations").hidden = slots.length === 0;
  const prices = slots.map((slot) => slot.freeMicroUSDPerHour).filter((micro) => micro !== undefined);
  setText(byId("reservations-price"), prices.length ? `${usd(prices.reduce((sum, micro) => sum + micro, 0))} /h for free machines` : "");
  const right = { scope: "col", class: "right" };
  refill(byId("slots"),
    h("thead", {}, h("tr", {}, ["reservation", "type", "zone"].map((title) => h("th", { scope: "col" }, title)), ["used", "free", "others", "free /h"].map((title) => h("th", right, title)),
      ["would hold", "ends"].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, slots.map((slot) => h("tr", { title: slot.asOf ? "counted " + new Date(slot.asOf).toLocaleString() : "not counted yet" },
      [slot.id, slot.instanceType, slot.zone].map((text) => h("td", {}, text)),
      [count(slot.used), slot.asOf ? count(slot.free) : unknown, count(slot.others), usd(slot.freeMicroUSDPerHour)].map((text) => h("td", { class: "right" }, text)),
      h("td", {}, slot.holds?.map((room) => `${count(room.replicas)} ${room.resource} in ${room.nodePool}`).join(", ") ?? unknown),
      h("td", {}, slot.leaves ? `${moment(slot.leaves)}, with its nodes` : slot.end ? moment(slot.end) : "never")))));
}

const moment = (time) => new Date(time).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });

const sentence = (text) => text[0].toUpperCase() + text.slice(1) + ".";

function say(id, text) {
  byId(id).hidden = !text;
  setText(byId(id), text || "");
}

function update(data) {
  arrived = Date.now();
  const first = model.apply(data);
  const namespaces = model.namespaces();
  const again = colorNamespaces(namespaces);
  options(byId("pool"), model.overview.pools.map((pool) => pool.name), "All pools");
  options(byId("namespace"), namespaces.map(({ namespace }) => namespace).sort(), "All namespaces");
  options(byId("state"), model.states().map(({ state }) => state), "All states");
  drawLegend(namespaces);
  drawTiles();
  drawReservations();
  draw(again);
  const { totals } = model.overview;
  sweep.update(totals ? (model.pods.size + model.waiting.size ? `${model.pods.size}/${model.waiting.size}/${totals.replicasHeld}` : "") : null);
  if (first) {
    sweep.set(state.replicas);
    showPanel(false);
    requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.painted = String(Math.round(performance.now())); }));
  } else panel.update();
}

function connection(kind, why) {
  const live = byId("live");
  live.className = kind;
  live.title = why ?? "";
  const texts = { live: "Live", stale: "Not current", closed: arrived ? `Not connected, as of ${ago(new Date(arrived))} ago` : "Not connected", connecting: "Connecting" };
  setText(live.lastElementChild, texts[kind] ?? "Refused");
}

function follow() {
  server.follow("events", {
    event: (data) => {
      update(data);
      connection(model.overview.problem ? "stale" : "live", model.overview.problem);
    },
    state: (kind, why) => {
      connection(kind, why);
      if (kind === "refused") ask(why);
    },
  });
}

// Filters.
let typing;
byId("q").value = state.q;
byId("q").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => { set({ q: byId("q").value.trim() }); draw(); }, 120);
});
function filter(changes) {
  const recolor = "namespace" in changes;
  set(changes);
  for (const id of ["pool", "namespace", "state"]) byId(id).value = state[id];
  if (model.overview) {
    drawLegend(model.namespaces());
    drawTiles();
    draw(recolor);
    if (recolor) panel.redraw();
  }
}
for (const id of ["pool", "namespace", "state"]) byId(id).addEventListener("change", () => filter({ [id]: byId(id).value }));
document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
byId("legend").addEventListener("click", (event) => {
  const namespace = event.target.closest("[data-namespace]")?.dataset.namespace;
  if (namespace) filter({ namespace: state.namespace === namespace ? "" : namespace });
});
byId("states").addEventListener("click", (event) => {
  const name = event.target.closest("[data-state]")?.dataset.state;
  if (name) filter({ state: state.state === name ? "" : name });
});
byId("view").addEventListener("click", () => { set({ view: compact() ? "normal" : "compact" }); draw(true); });
byId("waiting").addEventListener("click", () => open({ list: true }, true));
byId("reasons").addEventListener("click", (event) => {
  const reason = event.target.closest("[data-reason]")?.dataset.reason;
  if (reason) open({ list: true, reason }, true);
});
byId("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("karve-theme", theme);
});
addEventListener("popstate", () => {
  state = address.read(names);
  byId("q").value = state.q;
  filter({});
  draw(true);
  sweep.set(state.replicas);
  showPanel(false);
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    byId("q").focus();
  } else if (event.key === "Escape" && !byId("panel").hidden) open(null);
});

// One tooltip for all cells.
const tip = byId("tip");
byId("map").addEventListener("pointermove", (event) => {
  const cell = event.target.closest(".gpu > i"), tile = event.target.closest(".tile");
  if (!tile) { tip.hidden = true; return; }
  const pod = model.pods.get(cell?.dataset.pod), node = model.nodes.get(tile.dataset.node);
  const lines = pod ? [pod.name, `${pod.namespace} · ${plural(pod.replicas, "replica")} · ${usd(pod.microUSDPerHour)} /h`] : node ? [node.name, [node.state, node.message].filter((text, i, all) => text && text !== all[i - 1]).join(" · ")] : [];
  if (cell?.className === "free") lines.push("an unused replica");
  tip.replaceChildren(...lines.filter(Boolean).map((line, i) => h(i ? "span" : "b", {}, line)));
  tip.hidden = !lines.length;
  const box = tip.getBoundingClientRect();
  tip.style.transform = `translate(${Math.min(event.clientX + 12, innerWidth - box.width - 8)}px, ${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 8 : event.clientY + 18}px)`;
});
byId("map").addEventListener("pointerleave", () => { tip.hidden = true; });
byId("map").addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

setInterval(() => {
  if (byId("live").className === "closed") connection("closed", byId("live").title);
}, 1000);

follow();
