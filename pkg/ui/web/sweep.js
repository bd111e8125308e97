// How many replicas a GPU should have: the price of all pods for the number of the slider, planned by the server. The prices that were asked for stay in the chart until
// the pods change.
// The types of the server, which a test checks against the API, and what else has fields.
// @type row SweepRow
// @type r SweepRow
// @own cut bar bars parts first
import { byId, h, setText } from "./dom.js";
import { count, plural, unknown, usd } from "./format.js";

const most = 48;
const first = [1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48]; // The chart begins with these.

export class Sweep {
  #server; #slider; #changed; #rows = new Map(); #bars = []; #cut = null; #timer; #pods = null; #fill = [];

  constructor({ server, changed }) {
    this.#server = server;
    this.#changed = changed;
    this.#slider = byId("replicas");
    const bars = byId("bars");
    for (let n = 1; n <= most; n++) {
      const bar = h("i", { data: { replicas: n } });
      this.#bars.push(bar);
      bars.append(bar);
    }
    this.#slider.addEventListener("input", () => this.#moved());
    bars.addEventListener("click", (event) => {
      if (!event.target.dataset.replicas) return;
      this.#slider.value = event.target.dataset.replicas;
      this.#moved();
    });
  }

  // set moves the slider without asking.
  set(replicas) {
    if (replicas) this.#slider.value = replicas;
    this.#draw();
  }

  // update asks anew if the pods are not those that were asked for. They are "" if there are none, and null if they are not known.
  update(pods) {
    if (pods === this.#pods) return;
    this.#pods = pods;
    this.#rows.clear();
    this.#fill = first.slice();
    this.#soon(400);
    this.#draw();
  }

  #moved() {
    this.#changed(this.#slider.value);
    this.#draw();
    this.#soon(120);
  }

  #soon(wait) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#ask(), wait);
  }

  // ask asks for the number of the slider, and when that is known for the next one of the chart. A new question cancels the one before.
  async #ask() {
    this.#cut?.abort();
    if (!this.#pods) return; // Nothing has a price.
    const wanted = Number(this.#slider.value);
    const n = this.#rows.has(wanted) ? this.#fill.find((other) => !this.#rows.has(other)) : wanted;
    if (n === undefined || document.hidden) return;
    const cut = (this.#cut = new AbortController());
    try {
      const row = await this.#server.json("sweep", { replicas: n }, cut.signal);
      if (cut.signal.aborted) return;
      this.#rows.set(n, row);
      this.#draw();
      this.#soon(n === wanted ? 300 : 60);
    } catch (error) {
      if (error.name !== "AbortError") setText(byId("sweep-note"), error.message);
    }
  }

  #draw() {
    const n = Number(this.#slider.value), row = this.#rows.get(n);
    setText(byId("replicas-value"), String(n));
    this.#slider.setAttribute("aria-valuetext", row ? `${n} replicas, ${usd(row.microUSDPerHour)} an hour` : `${n} replicas`);
    setText(byId("sweep-price"), row ? usd(row.microUSDPerHour) : unknown);
    // Pods that no number of replicas helps do not make a number worse than the others.
    const fewest = Math.min(...[...this.#rows.values()].map((r) => r.unplacedPods ?? 0));
    const lacks = (r) => (r.unplacedPods ?? 0) > fewest;
    const least = Math.min(...[...this.#rows.values()].filter((r) => !lacks(r)).map(minimized));
    setText(byId("sweep-note"), row ? note(row, this.#fill.every((other) => this.#rows.has(other)) && !lacks(row) && minimized(row) === least) : this.#pods ? "planning …" : this.#pods === "" ? "no pods" : "");
    // A GPU for each pod costs many times the least. Such bars are cut off, or all others would look alike.
    const top = Math.max(1, Math.min(4 * least, Math.max(...[...this.#rows.values()].map(minimized))));
    setText(byId("bars-top"), this.#rows.size ? usd(top) + " /h" : "");
    this.#bars.forEach((bar, i) => {
      const r = this.#rows.get(i + 1);
      bar.className = (i + 1 === n ? "at " : "") + (r ? (lacks(r) ? "partial" : minimized(r) === least ? "least" : "known") : "") + (r && minimized(r) > top ? " over" : "");
      bar.style.height = r ? Math.min(100, Math.max(6, (100 * minimized(r)) / top)) + "%" : "";
      bar.title = r ? `${i + 1}: ${usd(r.microUSDPerHour)} /h, ${plural(r.machines, "machine")}` : String(i + 1);
    });
  }
}

// minimized returns the price that the plan minimizes: that of the work of the pods if they state their throughput.
const minimized = (r) => r.workMicroUSDPerHour ?? r.microUSDPerHour;

function note(row, least) {
  const parts = [plural(row.machines, "machine") + (least ? (row.workMicroUSDPerHour === undefined ? ", the least" : ", the least for their work") : "")];
  if (row.listMicroUSDPerHour !== row.microUSDPerHour) parts.push(`${usd(row.listMicroUSDPerHour)} /h by the list`);
  if (row.unplacedPods) parts.push(`${count(row.unplacedPods)} without a place`);
  return parts.join("\n");
}
