// What the page knows of the cluster: the overview of the server, which sends it whole once and then what differs, and what the map draws of it.

// The types of the server, which a test checks against the API, and what else has fields.
// @type update update
// @type this.overview head
// @type node Node
// @type pod Pod | Waiting
// @type gpu GPU
// @type strip.report GPU
// @type pool Pool
// @type a Node | Pod
// @type b Node | Pod
// @type holder Holder
// @type known Pool
// @own sums group nodes cells cell last told order gpus words texts text list strip q pods byNumber name free
const byNumber = new Intl.Collator("en", { numeric: true });
const podKey = (pod) => pod.namespace + "/" + pod.name;

export class Model {
  overview = null; // without its lists
  nodes = new Map(); // by name
  pods = new Map(); // by namespace/name
  waiting = new Map();
  #podsOn = new Map(); // names of pods by node
  #drawn = new Map(); // what the map draws of nodes, by name

  // apply takes an update and reports whether it is the first one.
  apply(update) {
    const first = this.overview === null;
    if (update.whole) {
      for (const list of [this.nodes, this.pods, this.waiting, this.#drawn]) list.clear();
    }
    this.overview = update.overview;
    for (const node of update.nodes ?? []) {
      this.nodes.set(node.name, node);
      this.#drawn.delete(node.name);
    }
    for (const name of update.gone?.nodes ?? []) {
      this.nodes.delete(name);
      this.#drawn.delete(name);
    }
    const touched = (pod) => pod && this.#drawn.delete(pod.node);
    for (const pod of update.pods ?? []) {
      touched(this.pods.get(podKey(pod)));
      touched(pod);
      this.pods.set(podKey(pod), pod);
    }
    for (const key of update.gone?.pods ?? []) {
      touched(this.pods.get(key));
      this.pods.delete(key);
    }
    for (const pod of update.waiting ?? []) this.waiting.set(podKey(pod), pod);
    for (const key of update.gone?.waiting ?? []) this.waiting.delete(key);
    this.#podsOn = Map.groupBy(this.pods.values(), (pod) => pod.node);
    return first;
  }

  podsOn(node) {
    return this.#podsOn.get(node) ?? [];
  }

  // namespaces returns the namespaces whose pods hold or want replicas, with how many replicas they hold, the most first.
  namespaces() {
    const sums = new Map();
    for (const pod of this.pods.values()) sums.set(pod.namespace, (sums.get(pod.namespace) ?? 0) + pod.replicas);
    for (const pod of this.waiting.values()) if (!sums.has(pod.namespace)) sums.set(pod.namespace, 0);
    return [...sums].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([namespace, replicas]) => ({ namespace, replicas }));
  }

  states() {
    const sums = new Map();
    for (const node of this.nodes.values()) sums.set(stateOf(node), (sums.get(stateOf(node)) ?? 0) + 1);
    return [...sums].sort(([a], [b]) => order.indexOf(a) - order.indexOf(b)).map(([state, nodes]) => ({ state, nodes }));
  }

  // drawn returns what the map draws of a node. It is the same object until the node or a pod on it changes.
  drawn(name) {
    let drawn = this.#drawn.get(name);
    if (!drawn) this.#drawn.set(name, (drawn = draw(this.nodes.get(name), this.podsOn(name))));
    return drawn;
  }

  // groups returns the nodes that a filter lets pass, by pool.
  groups({ q, pool, namespace, state }) {
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    const passes = (node) => {
      if (pool && (node.nodePool ?? "") !== pool || state && stateOf(node) !== state) return false;
      const pods = namespace || words.length ? this.podsOn(node.name) : [];
      if (namespace && !pods.some((pod) => pod.namespace === namespace)) return false;
      if (!words.length) return true;
      const texts = [node.name, node.nodeClaim, node.nodePool, node.instanceType, node.zone, node.capacityType, node.state, node.message];
      return words.every((word) => texts.some((text) => text?.toLowerCase().includes(word)) || pods.some((pod) => podKey(pod).toLowerCase().includes(word)));
    };
    const pools = Map.groupBy([...this.nodes.values()].filter(passes), (node) => node.nodePool ?? "");
    return [...pools].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, nodes]) => {
      const known = this.overview.pools.find((pool) => pool.name === name);
      nodes.sort((a, b) => b.gpus.length - a.gpus.length || byNumber.compare(a.name, b.name));
      const sum = (field) => nodes.reduce((total, node) => total + (node[field] ?? 0), 0);
      const group = {
        pool: name || "without a NodePool", note: known?.problem, nodes: nodes.map((node) => this.drawn(node.name)),
        used: sum("replicasHeld"), replicas: sum("replicas"),
        price: nodes.some((node) => node.microUSDPerHour !== undefined) ? sum("microUSDPerHour") : undefined,
      };
      group.version = JSON.stringify([group.note, nodes.length, group.used, group.replicas, group.price]);
      return group;
    });
  }
}

const order = ["Requested", "Launched", "Registered", "Initializing", "Started", "Idle", "Unhealthy", "Broken", "NodeMissing", "Replacing", "Disrupting", "Draining"];

// stateOf tells idle nodes from the others that have started.
export const stateOf = (node) => (node.severity === "idle" && node.state === "Started" ? "Idle" : node.state);

// reasonOf returns why a pod waits, in a word.
export const reasonOf = (pod) => (pod.nominatedNode ? "Nominated" : pod.reason || "Not planned yet");

export const starts = (node) => ["Requested", "Launched", "Registered", "Initializing"].includes(node.state);

// draw returns what the map draws of a node.
export function draw(node, pods) {
  return {
    name: node.name, short: shortened(node.name), type: node.instanceType, zone: node.zone?.replace(/^.*-(\d+[a-z])$/, "$1"), pool: node.nodePool,
    stateShort: stateOf(node), tone: node.severity === "good" ? "" : node.severity, message: node.message,
    used: node.replicasHeld, replicas: node.replicas, price: node.microUSDPerHour, gpus: gpusOf(node, pods),
  };
}

const shortened = (name) => name.replace(/\.(?:[a-z0-9-]+\.)?compute\.internal$|\.ec2\.internal$/, "");

// gpusOf returns the replicas of each GPU as cells. The agent tells which pod holds which. Without its report, the pods are spread as the agent would spread them.
export function gpusOf(node, pods) {
  const each = node.gpus.length ? Math.ceil(node.replicas / node.gpus.length) : 0;
  const promised = starts(node);
  const gpus = node.gpus.map((gpu) => ({
    index: gpu.index, out: gpu.healthy === false, assumed: !gpu.holders && pods.length > 0, report: gpu,
    cells: Array.from({ length: Math.max(gpu.replicas ?? each, gpu.replicas === undefined ? 0 : 1) }, () => ({ promised })),
  }));
  const told = new Set();
  gpus.forEach((strip) => {
    for (const holder of strip.report.holders ?? []) {
      const key = holder.namespace + "/" + holder.pod;
      told.add(key);
      for (const number of holder.replicas?.length ? holder.replicas : [0]) {
        while (strip.cells.length <= number && number < 512) strip.cells.push({});
        if (number < 512) strip.cells[number] = { pod: key, namespace: holder.namespace };
      }
    }
  });
  for (const pod of [...pods].sort((a, b) => (a.started < b.started ? -1 : a.started > b.started ? 1 : podKey(a) < podKey(b) ? -1 : 1))) {
    if (told.has(podKey(pod))) continue;
    for (let i = 0; i < pod.replicas; i++) {
      const free = gpus.map((strip) => strip.cells.filter((cell) => !cell.pod).length);
      const at = free.indexOf(Math.max(...free));
      if (at < 0 || free[at] === 0) break;
      const { cells } = gpus[at];
      cells[cells.findIndex((cell) => !cell.pod)] = { pod: podKey(pod), namespace: pod.namespace };
    }
  }
  for (const strip of gpus) {
    strip.cells = strip.cells.reduce((cells, cell) => {
      const last = cells.at(-1);
      if (last?.pod && last.pod === cell.pod) last.span++;
      else cells.push({ ...cell, span: 1 });
      return cells;
    }, []);
  }
  return gpus;
}
