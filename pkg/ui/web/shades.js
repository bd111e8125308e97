// Colors of things with names. A thing keeps its color: this browser remembers it, until a new thing needs that of one that is gone.

const colors = 7; // Further things are gray.

export class Shades {
  #of = new Map(); // the class of each name
  #key = "";

  // use takes the remembered colors of a kind of things.
  use(key) {
    if (key === this.#key) return;
    this.#key = key;
    this.#of = remembered(key);
  }

  has(name) { return this.#of.has(name); }

  // of returns the class of a name: c0 to c6, or other.
  of(name) { return this.#of.get(name) ?? "other"; }

  // give gives colors to the first names that have none yet, and reports whether it did.
  give(names) {
    const there = new Set(names);
    let news = false;
    for (const name of names) {
      if (this.#of.has(name)) continue;
      if (this.#of.size >= colors) this.#of.delete([...this.#of.keys()].find((old) => !there.has(old)));
      if (this.#of.size >= colors) break;
      const used = new Set(this.#of.values());
      this.#of.set(name, Array.from({ length: colors }, (_, i) => "c" + i).find((shade) => !used.has(shade)));
      news = true;
    }
    if (news) try { localStorage.setItem(this.#key, JSON.stringify([...this.#of])); } catch { /* The colors last as long as the page. */ }
    return news;
  }
}

// remembered returns the colors in the storage of the browser, which anything may have written.
function remembered(key) {
  try {
    const pairs = JSON.parse(localStorage.getItem(key) ?? "[]");
    const sound = new Map(pairs.filter(([name, shade]) => typeof name === "string" && /^c[0-6]$/.test(shade)));
    return new Set(sound.values()).size === sound.size ? sound : new Map();
  } catch {
    return new Map();
  }
}
