// The panel at the side: what is known of a node or a pod, and why it stays, goes or waits.
// The types of the server, which a test checks against the API, and what else has fields.
// @type answer PodAnswer | NodeAnswer
// @type pod Pod | Waiting
// @type waits Waiting
// @type node Node
// @type gpu GPU
// @type place Place
// @type machine Machine
// @type pool PoolAnswer
// @type counted NodeCount
// @type rule Rule
// @type cause Cause
// @type change Help
// @type wants Wants
// @type agent Agent
// @type address Link
// @type model.overview head
// @type a Pod
// @type b Pod
// @own fullName element link drawn title parts pods all pairs shown strip
import { byId, h, refill } from "./dom.js";
import { ago, count, duration, gib, month, plural, unknown, usd } from "./format.js";
import { reasonOf, stateOf } from "./model.js";

const mib = (value) => (value === undefined ? unknown : gib(value * 2 ** 20));

// when formats a time as a distance from now, and as a clock time for those who want to know it exactly.
function when(time) {
  if (!time || Date.parse(time) < 0) return undefined; // The zero time of Go is no time.
  const seconds = (Date.parse(time) - Date.now()) / 1000;
  return h("time", { datetime: time, title: new Date(time).toLocaleString() }, seconds >= 0 ? "in " + duration(seconds) : duration(-seconds) + " ago");
}

function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([name, ...value]) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value))));
}

const section = (title, ...content) => h("section", {}, h("h3", {}, title), ...content);

const badge = (text, tone) => h("span", { class: "badge " + (tone ?? "") }, text);

export class Panel {
  #opened = new Set(); // what was unfolded, by a key of its own
  #element; #server; #model; #map; #open; #shown = null; #reason = ""; #answer = null; #error = ""; #cut = null; #asked = 0; #timer;

  // open is called with a node or pod that was chosen in the panel, and with null to close it.
  constructor(element, { server, model, map, open }) {
    this.#element = element;
    this.#server = server;
    this.#model = model;
    this.#map = map;
    this.#open = open;
    byId("close").addEventListener("click", () => open(null));
    element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") open(null);
    });
    element.addEventListener("click", (event) => {
      const link = event.target.closest("[data-pod], [data-node]");
      if (link) open(link.dataset.pod ? { pod: link.dataset.pod } : { node: link.dataset.node });
    });
  }

  // show opens a node or a pod, or closes the panel. Focused says to move the focus into it.
  show({ node, pod, list, reason }, focused) {
    const key = node ? "node " + node : pod ? "pod " + pod : list ? "list" : null;
    const changed = key !== this.#shown;
    this.#shown = key;
    this.#reason = reason ?? "";
    this.#element.hidden = !key;
    document.body.classList.toggle("open", Boolean(key));
    if (!key) {
      this.#cut?.abort();
      return;
    }
    if (changed) {
      this.#answer = null;
      this.#error = "";
      this.#opened.clear();
      this.#ask();
      byId("details").scrollTop = 0;
    }
    this.#draw();
    if (focused) byId("panel-title").focus();
  }

  // update draws what has changed, and asks again for the reasons, at most every other second.
  update() {
    if (!this.#shown) return;
    this.#draw();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#ask(), Math.max(0, this.#asked + 2000 - Date.now()));
  }

  redraw() {
    if (this.#shown) this.#draw();
  }

  async #ask() {
    const shown = this.#shown;
    if (!shown || shown === "list" || document.hidden) return;
    const [kind, name] = shown.split(" ");
    if (kind === "node" && !this.#model.nodes.has(name)) return; // The server would answer 404.
    this.#cut?.abort();
    this.#cut = new AbortController();
    this.#asked = Date.now();
    try {
      const answer = await this.#server.json("explain", { [kind]: name }, this.#cut.signal);
      if (shown !== this.#shown) return;
      this.#answer = answer;
      this.#error = "";
    } catch (error) {
      if (error.name === "AbortError" || shown !== this.#shown) return;
      this.#error = error.message;
    }
    this.#draw();
  }

  #draw() {
    const [kind, name] = this.#shown.split(" ");
    const drawn = kind === "node" ? this.#node(name) : kind === "pod" ? this.#pod(name) : this.#waiting();
    const title = byId("panel-title");
    title.textContent = drawn.title;
    byId("panel-kind").textContent = drawn.kind;
    refill(byId("details"), ...drawn.content, this.#error && h("p", { class: "error", role: "alert" }, this.#error));
  }

  #node(name) {
    const node = this.#model.nodes.get(name), answer = this.#answer;
    if (!node) return { kind: "Node", title: name, content: [h("p", { class: "muted" }, "This node is gone.")] };
    const pods = this.#model.podsOn(name).toSorted((a, b) => (a.namespace + a.name < b.namespace + b.name ? -1 : 1));
    const drawn = this.#model.drawn(name);
    return {
      kind: "Node", title: name,
      content: [
        h("p", { class: "lead" }, badge(stateOf(node), node.severity), " ", answer?.summary ?? node.message),
        facts([
          ["NodePool", node.nodePool], ["Type", node.instanceType ?? unknown], ["Zone", node.zone ?? unknown], ["Capacity", node.capacityType],
          ["Price", usd(node.microUSDPerHour) + " /h", h("small", {}, month(node.microUSDPerHour) + " a month")],
          ["List price", node.listMicroUSDPerHour !== node.microUSDPerHour ? usd(node.listMicroUSDPerHour) + " /h" : undefined], ["Idle part", usd(node.idleMicroUSDPerHour) + " /h"],
          ["Replicas", `${count(node.replicasHeld)} of ${count(node.replicas)}`], ["Created", when(node.created)],
          ["Agent", agentWords(node.agent)], ["Deletion", when(answer?.goes ?? node.leavesAt)],
        ]),
        section("GPUs", node.gpus.map((gpu, i) => h("div", { class: "gpu-line" },
          h("div", { class: "line" }, h("span", {}, gpu.profile ? `MIG ${gpu.index}:${gpu.instance} ${gpu.profile}` : `GPU ${gpu.index}`, gpu.product && h("span", { class: "muted" }, " " + gpu.product)),
            h("span", { class: "muted" }, gpu.healthy === false ? badge("out of service", "bad") : gpu.cordoned ? badge("cordoned", "busy") : memory(gpu))),
          this.#map.strip(drawn.gpus[i]))), drawn.gpus.some((strip) => strip.assumed) && h("p", { class: "muted note" },
          node.gpus.length > 1 ? "No agent reports which GPU a pod is on: pods are drawn as the agent would spread them." : "No agent reports on this node.")),
        section(plural(pods.length, "pod"), pods.length ? this.#pods(pods) : h("p", { class: "muted" }, "No pod holds a replica.")),
        answer?.causes?.length ? section("Why it stays or is deleted", causes(answer.causes)) : !answer && !this.#error && h("p", { class: "muted" }, "Checking why it stays …"),
        answer?.until && section("Next", facts([["At the latest", when(answer.until)], ["Until then", answer.next], ["Otherwise", answer.late]])),
      ],
    };
  }

  #pods(pods) {
    const memories = pods.some((pod) => pod.usedMiB !== undefined || pod.statedMiB !== undefined);
    return h("table", { class: "pods" },
      h("thead", {}, h("tr", {}, h("th", {}, "Pod"), h("th", { class: "right" }, "Replicas"), memories && h("th", { class: "right" }, "Memory"), h("th", { class: "right" }, "$/h"), h("th", { class: "right" }, "Unused"))),
      h("tbody", {}, pods.map((pod) => h("tr", {},
        h("td", {}, this.#link(pod)), h("td", { class: "right" }, count(pod.replicas)), memories && h("td", { class: "right" }, mib(pod.usedMiB ?? pod.statedMiB)),
        h("td", { class: "right" }, usd(pod.microUSDPerHour).replace("$", "")), h("td", { class: "right" }, duration(pod.unusedSeconds))))));
  }

  #link(pod) {
    const key = pod.namespace + "/" + pod.name;
    return h("button", { class: "link", data: { pod: key, focus: key } }, h("i", { class: "swatch " + this.#map.colorOf(pod.namespace), "aria-hidden": "true" }), h("span", {}, pod.name), h("small", {}, pod.namespace));
  }

  // fold returns a word that unfolds a text, with the mouse and the keyboard.
  #fold(key, word, text) {
    if (!text || text === word) return word;
    // The event toggle comes later: the panel may be drawn again before it, and would fold the text.
    const clicked = (event) => (event.currentTarget.parentElement.open ? this.#opened.delete(key) : this.#opened.add(key));
    return h("details", { open: this.#opened.has(key) }, h("summary", { data: { focus: key }, onclick: clicked }, word), h("p", {}, text));
  }

  #waiting() {
    const pods = [...this.#model.waiting.values()].filter((pod) => !this.#reason || reasonOf(pod) === this.#reason);
    return {
      kind: this.#reason || "Pods", title: plural(pods.length, "waiting pod"),
      content: [pods.length ? h("table", { class: "pods" }, h("thead", {}, h("tr", {}, h("th", {}, "Pod"), h("th", {}, "Why"), h("th", { class: "right" }, "Since"))),
        h("tbody", {}, pods.slice(0, 500).map((pod) => h("tr", {}, h("td", {}, this.#link(pod)), h("td", {}, reasonOf(pod)), h("td", { class: "right" }, ago(pod.since))))))
        : h("p", { class: "muted" }, this.#reason ? "No pod waits for this reason any more." : "Every pod has a node."), pods.length > 500 && h("p", { class: "muted" }, `and ${count(pods.length - 500)} more`)],
    };
  }

  #pod(name) {
    const pod = this.#model.pods.get(name), waits = this.#model.waiting.get(name), answer = this.#answer;
    const place = answer?.place, machine = answer?.machine;
    const on = pod?.node ?? place?.node;
    const model = this.#model;
    if (!pod && !waits && !answer && this.#error) return { kind: "Pod", title: name, content: [] };
    const node = (to) => (to ? h("button", { class: "link plain", data: { node: to, focus: to } }, to) : undefined);
    return {
      kind: "Pod", title: name,
      content: [
        h("p", { class: "lead" }, badge(answer?.state ?? (pod ? "Running" : waits ? "Waiting" : "…"), pod ? "good" : "busy"), " ", answer?.summary ?? (waits ? "Checking why it waits …" : "")),
        answer?.message && !answer.summary.includes(answer.message) && h("p", {}, answer.message), // Most summaries quote it.
        facts([
          ["Requests", wantsWords(answer?.wants, pod ?? waits)], ["Node", node(on)], ["GPU", gpusOf(pod, place)], [pod ? "Running" : "Waiting", when(answer?.since ?? pod?.started ?? waits?.since)],
          ["Share of the price", pod && usd(pod.microUSDPerHour) + " /h"], ["GPU memory", pod && (pod.usedMiB !== undefined || pod.statedMiB !== undefined) && `${mib(pod.usedMiB)} used, ${mib(pod.statedMiB)} stated`], ["Wrong", pod?.statedProblem],
          ["SM", pod?.smPercent !== undefined && Math.round(pod.smPercent) + " %"], ["Unused for", pod?.unusedSeconds !== undefined && duration(pod.unusedSeconds)],
          ["Elsewhere", ...(model.overview.links ?? []).map((address) => elsewhere(address, name, on))],
        ].filter(([, value]) => value)),
        answer?.help && section("What would help", h("p", {}, help(answer.help))),
        answer?.nodePools?.length && section("NodePools", h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Pool"), h("th", {}, "Reason"), h("th", {}, "What would help"), h("th", { class: "right" }, "$/h"))),
          h("tbody", {}, answer.nodePools.map((pool) => h("tr", {}, h("td", {}, pool.nodePool), h("td", {}, this.#fold("reason " + pool.nodePool, pool.reason, pool.message)), h("td", {}, pool.help ? help(pool.help) : unknown),
            h("td", { class: "right" }, pool.help ? usd(pool.help.microUSDPerHour).replace("$", "") : unknown)))))),
        answer?.nodes?.length && section("Nodes", h("ul", { class: "plain" }, answer.nodes.map((counted) => h("li", {}, `${count(counted.count)} ${counted.why}`, counted.left && h("small", {}, ` ${counted.example} has ${counted.left} left`))))),
        machine && section("Machine", facts([["Node", node(this.#model.nodes.has(machine.name) ? machine.name : undefined) ?? machine.name ?? "to be launched"], ["NodePool", machine.nodePool], ["Type", machine.instanceType],
          ["Zone", machine.zone], ["Price", machine.microUSDPerHour ? usd(machine.microUSDPerHour) + " /h" : undefined],
          ["List price", machine.listMicroUSDPerHour && machine.listMicroUSDPerHour !== machine.microUSDPerHour ? usd(machine.listMicroUSDPerHour) + " /h" : undefined], ["State", machine.state], ["At the latest", when(machine.until)]])),
        answer?.rules?.length && section("Constraints", h("ul", { class: "plain" }, answer.rules.map((rule) => h("li", {}, h("b", {}, rule.kind), " ", rule.text)))),
        answer?.move && section("Consolidation", facts([["Stays because", answer.move.kept], ["Its restart costs", answer.move.costMicroUSD !== undefined ? usd(answer.move.costMicroUSD) : undefined],
          ["Without its node", answer.move.savingMicroUSDPerHour !== undefined ? usd(answer.move.savingMicroUSDPerHour) + " /h less" : undefined]])),
      ],
    };
  }
}

function memory(gpu) {
  const parts = [];
  if (gpu.smPercent !== undefined) parts.push(`SM ${Math.round(gpu.smPercent)} %`);
  if (gpu.memoryMiB !== undefined) parts.push(`${mib(gpu.usedMiB ?? gpu.statedMiB)} of ${mib(gpu.memoryMiB)} ${gpu.usedMiB !== undefined ? "used" : "stated"}`);
  return parts.join(" · ");
}

const agentWords = (agent) => (agent?.report === "Fresh" ? "reports, " + ago(agent.asOf) + " ago" : agent?.report === "Stale" ? "last heard " + ago(agent.asOf) + " ago" : agent?.report === "Invalid" ? "its report cannot be read" : "does not report");

const wantsWords = (wants, pod) => (wants?.resource ? `${count(wants.replicas)} × ${wants.resource}${wants.gpuMemoryBytes ? ", " + gib(wants.gpuMemoryBytes) : ""}` : pod ? plural(pod.replicas, "replica") : undefined);

function gpusOf(pod, place) {
  if (pod?.gpus?.length) return pod.gpus.join(", ");
  return place?.gpus?.length ? place.gpus.join(", ") + (place.gpusReported ? "" : " (assumed)") : undefined;
}

// elsewhere links to another page about a pod.
function elsewhere(address, fullName, node) {
  const [namespace, name] = fullName.split("/");
  const values = { namespace, pod: name, node: node ?? "" };
  return h("a", { class: "elsewhere", href: address.url.replace(/\{(namespace|pod|node)\}/g, (_, key) => encodeURIComponent(values[key])), target: "_blank", rel: "noopener noreferrer" }, address.title);
}

const help = (change) => [change.change, change.on && ` on ${change.on}`, change.at && [" ", when(change.at)]].flat().filter(Boolean);

function causes(all) {
  return h("ul", { class: "causes" }, all.map((cause) => h("li", { class: cause.applies ? "applies" : "" },
    h("div", { class: "line" }, h("b", {}, cause.reason), h("span", { class: "muted" }, cause.due ? when(cause.due) : cause.applies ? "applies" : "does not apply")),
    h("p", {}, cause.message), cause.kept && h("p", {}, "Kept: " + cause.kept, cause.retryAt && [", tried again ", when(cause.retryAt)]))));
}
