// The map: pools, their nodes, the GPUs of a node, and the replicas of a GPU. Only what is in sight is in the document, so that it is as quick with thousands of
// nodes as with ten. It is a listbox: the focus stays on the map, and aria-activedescendant names the node.
// The types of the server, which a test checks against the API, and what else has fields.
// @type gpu.report GPU
// @own [].name [].gpus scroller group groups row rows size sizes style node nodes gpu gpus cell strip element drawn tile pod positions wanted active
import { h } from "./dom.js";
import { count, plural, unknown, usd } from "./format.js";

const gap = 8;
const beyond = 400; // pixels above and below that are drawn as well
const sizes = {
  normal: { least: 208, chrome: 56, gpu: 17, header: 40 },
  compact: { least: 136, chrome: 30, gpu: 11, header: 36 },
};

export class FleetMap {
  #scroller; #sizer; #open; #describe; #color;
  #groups = []; #rows = []; #nodes = []; #drawn = new Map(); #rowOf = new Map();
  #active = null; #selected = null; #compact = false; #columns = 1; #width = 0; #scheduled = false;

  // open is called with what was chosen: {node} or {pod}. color returns the class of a namespace's cells.
  constructor(scroller, { open, describe, color }) {
    this.#scroller = scroller;
    this.#open = open;
    this.#describe = describe;
    this.#color = color;
    this.#sizer = h("div", { class: "sizer", role: "presentation" });
    scroller.replaceChildren(this.#sizer);
    scroller.addEventListener("scroll", () => this.#soon(), { passive: true });
    scroller.addEventListener("keydown", (event) => this.#key(event));
    scroller.addEventListener("focus", () => this.#activate(this.#active ?? this.#nodes[0]?.name, false));
    scroller.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(() => {
      if (scroller.clientWidth !== this.#width) this.#layout();
      else this.#soon();
    }).observe(scroller);
  }

  // show draws groups of nodes: [{pool, title, nodes}]. A node that is the same object as before is not drawn again.
  show(groups, { compact, selected, again }) {
    this.#groups = groups;
    this.#compact = compact;
    this.#selected = selected;
    if (again) this.#clear();
    this.#layout();
  }

  focus() {
    this.#scroller.focus({ preventScroll: true });
  }

  #clear() {
    for (const drawn of this.#drawn.values()) drawn.element.remove();
    this.#drawn.clear();
  }

  #layout() {
    this.#width = this.#scroller.clientWidth;
    const size = this.#compact ? sizes.compact : sizes.normal;
    // What is left of the margin at the right when the scrollbar has its place.
    this.#sizer.style.setProperty("--right", Math.max(4, 20 - (this.#scroller.offsetWidth - this.#width)) + "px");
    const style = getComputedStyle(this.#sizer);
    const width = this.#sizer.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (width <= 0) return;
    this.#columns = Math.max(1, Math.floor((width + gap) / (size.least + gap)));
    const tile = (width - (this.#columns - 1) * gap) / this.#columns;
    this.#sizer.style.setProperty("--tile", tile + "px");
    this.#sizer.classList.toggle("compact", this.#compact);
    this.#rows = [];
    this.#nodes = [];
    this.#rowOf = new Map();
    let top = 0;
    for (const group of this.#groups) {
      this.#rows.push({ top, height: size.header, group });
      top += size.header;
      for (let i = 0; i < group.nodes.length;) {
        // Nodes in a row have as many GPUs, so that rows are even.
        const gpus = group.nodes[i].gpus.length, nodes = [];
        while (nodes.length < this.#columns && group.nodes[i]?.gpus.length === gpus) nodes.push(group.nodes[i++]);
        const height = size.chrome + size.gpu * Math.max(1, gpus);
        for (const node of nodes) {
          this.#rowOf.set(node.name, this.#rows.length);
          this.#nodes.push(node);
        }
        this.#rows.push({ top, height, nodes, tile });
        top += height + gap;
      }
      top += gap;
    }
    this.#sizer.style.height = top + "px";
    if (this.#active && !this.#rowOf.has(this.#active)) this.#active = null;
    this.#draw();
  }

  #soon() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      this.#draw();
    });
  }

  #draw() {
    const from = this.#scroller.scrollTop - beyond, to = this.#scroller.scrollTop + this.#scroller.clientHeight + beyond;
    const wanted = new Set();
    let low = 0, high = this.#rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#rows[middle].top + this.#rows[middle].height < from) low = middle + 1;
      else high = middle;
    }
    const place = (key, version, make, left, row) => {
      wanted.add(key);
      let drawn = this.#drawn.get(key);
      if (!drawn || drawn.version !== version) {
        const element = make();
        if (drawn) drawn.element.replaceWith(element);
        else this.#sizer.append(element);
        drawn = { element, version };
        this.#drawn.set(key, drawn);
      }
      const at = `translate(${left}px, ${row.top}px)`;
      if (drawn.at !== at) drawn.element.style.transform = drawn.at = at;
      if (drawn.height !== row.height) drawn.element.style.height = (drawn.height = row.height) + "px";
      return drawn.element;
    };
    const positions = new Map(this.#nodes.map((node, i) => [node.name, i + 1]));
    for (let i = low; i < this.#rows.length && this.#rows[i].top <= to; i++) {
      const row = this.#rows[i];
      if (row.group) {
        const element = place("pool/" + row.group.pool, row.group.version, () => header(row.group), 0, row);
        element.classList.add("full");
        continue;
      }
      row.nodes.forEach((node, column) => {
        const element = place("node/" + node.name, node, () => this.#tile(node), column * (row.tile + gap), row);
        element.id = "node-" + positions.get(node.name);
        element.setAttribute("aria-posinset", positions.get(node.name));
        element.setAttribute("aria-setsize", this.#nodes.length);
        element.setAttribute("aria-selected", String(node.name === this.#selected));
        element.classList.toggle("active", node.name === this.#active);
      });
    }
    for (const [key, drawn] of this.#drawn) {
      if (wanted.has(key)) continue;
      drawn.element.remove();
      this.#drawn.delete(key);
    }
    const active = this.#active && this.#drawn.get("node/" + this.#active);
    if (active) this.#scroller.setAttribute("aria-activedescendant", active.element.id);
    else this.#scroller.removeAttribute("aria-activedescendant");
  }

  #tile(node) {
    const tile = h("div", { class: "tile" + (node.tone ? " " + node.tone : ""), role: "option", "aria-label": this.#describe(node), data: { node: node.name } });
    tile.append(
      h("div", { class: "line" }, h("span", { class: "name" }, node.short), h("span", { class: "state" }, node.stateShort)),
      h("div", { class: "line meta" }, h("span", { class: "type" }, [node.type, node.zone].filter(Boolean).join(" · ") || unknown), h("span", { class: "figures" },
        h("span", {}, `${count(node.used)}/${count(node.replicas)}`), h("span", { class: "price" }, usd(node.price)))),
    );
    for (const gpu of node.gpus) tile.append(this.strip(gpu));
    return tile;
  }

  colorOf(namespace) {
    return this.#color(namespace);
  }

  // strip draws the replicas of a GPU.
  strip(gpu) {
    const strip = h("div", { class: "gpu" + (gpu.out ? " out" : gpu.report.cordoned ? " cordoned" : "") + (gpu.cells.length > 24 ? " fine" : ""), "aria-hidden": "true" });
    for (const cell of gpu.cells) {
      const element = document.createElement("i");
      if (cell.pod) {
        element.className = this.#color(cell.namespace);
        element.dataset.pod = cell.pod;
        if (cell.span > 1) element.style.flexGrow = cell.span;
      } else element.className = cell.promised ? "promised" : "free";
      strip.append(element);
    }
    return strip;
  }

  #activate(name, scroll = true) {
    if (name === undefined || name === null) return;
    this.#active = name;
    const row = this.#rows[this.#rowOf.get(name)];
    if (row && scroll) {
      const top = this.#scroller.scrollTop, view = this.#scroller.clientHeight;
      if (row.top - 44 < top) this.#scroller.scrollTop = Math.max(0, row.top - 44);
      else if (row.top + row.height + gap > top + view) this.#scroller.scrollTop = row.top + row.height + gap - view;
    }
    this.#draw();
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.#nodes.length) return;
    const at = this.#nodes.findIndex((node) => node.name === this.#active);
    const last = this.#nodes.length - 1;
    const page = Math.max(1, Math.floor(this.#scroller.clientHeight / 90)) * this.#columns;
    const to = {
      ArrowLeft: () => at - 1, ArrowRight: () => at + 1, ArrowUp: () => this.#vertical(at, -1), ArrowDown: () => this.#vertical(at, 1),
      Home: () => 0, End: () => last, PageUp: () => at - page, PageDown: () => at + page,
    }[event.key];
    if (to) {
      event.preventDefault();
      this.#activate(this.#nodes[Math.min(last, Math.max(0, at < 0 ? 0 : to()))].name);
    } else if ((event.key === "Enter" || event.key === " ") && at >= 0) {
      event.preventDefault();
      this.#open({ node: this.#active, byKey: true });
    }
  }

  // vertical returns the node above or below, across the borders of pools.
  #vertical(at, step) {
    let row = this.#rowOf.get(this.#nodes[at].name);
    const column = this.#rows[row].nodes.indexOf(this.#nodes[at]);
    do row += step; while (this.#rows[row]?.group);
    const nodes = this.#rows[row]?.nodes;
    return nodes ? this.#nodes.indexOf(nodes[Math.min(column, nodes.length - 1)]) : at;
  }

  #click(event) {
    const tile = event.target.closest(".tile");
    if (!tile) return;
    this.#active = tile.dataset.node;
    const pod = event.target.closest("[data-pod]");
    this.#open(pod ? { pod: pod.dataset.pod } : { node: tile.dataset.node });
  }
}

function header(group) {
  return h("div", { class: "pool", role: "presentation" }, h("h2", {}, group.pool),
    h("span", {}, plural(group.nodes.length, "node")), h("span", {}, `${count(group.used)}/${count(group.replicas)} replicas`),
    h("span", {}, usd(group.price) + " /h"), group.note && h("span", { class: "note" }, group.note));
}
