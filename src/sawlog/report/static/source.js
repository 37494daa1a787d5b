// Where data comes from: parts inside the page, or parts that the server of a live page sends.

const source = {
  base: document.body.dataset.base,
  cache: new Map(),

  get live() {
    return this.base !== "";
  },

  /** A part by name, such as "curves/RUN"; the same promise until it is forgotten. */
  part(name) {
    if (!this.cache.has(name)) {
      const found = this.live ? this.fetched(name) : Promise.resolve().then(() => this.embedded(name));
      this.cache.set(name, found);
      found.catch(() => this.cache.delete(name));
    }
    return this.cache.get(name);
  },

  embedded(name) {
    for (const script of document.querySelectorAll("script.part")) {
      if (script.dataset.name === name) return JSON.parse(script.textContent);
    }
    return { problem: "This page does not contain it." };
  },

  async fetched(name) {
    const answer = await fetch(`${this.base}data/${name}`, { credentials: "omit", cache: "no-store" });
    if (!answer.ok) return { problem: `The server answered ${answer.status}. Is sawlog view still running?` };
    return answer.json();
  },

  forget(run) {
    for (const name of [...this.cache.keys()]) if (name.split("/")[1] === run) this.cache.delete(name);
  },
};

/** Numbers that were packed by report/_encode.py. */
function unpacked(packed) {
  if (Array.isArray(packed)) return packed.map(Number);
  if ("n" in packed) return Array.from({ length: packed.n }, (_, i) => packed.from + packed.by * i);
  const wide = "f8" in packed;
  const text = atob(wide ? packed.f8 : packed.f4);
  const data = new DataView(new ArrayBuffer(text.length));
  for (let i = 0; i < text.length; i += 1) data.setUint8(i, text.charCodeAt(i));
  const size = wide ? 8 : 4;
  return Array.from({ length: text.length / size }, (_, i) => (wide ? data.getFloat64(i * 8, true) : data.getFloat32(i * 4, true)));
}

// What people chose; views draw themselves from it.
const state = {
  index: null,
  view: "runs",
  selected: new Set(),
  curves: { search: "", axis: "", mode: "auto", band: "std", smooth: 0, logX: false, logY: false, from: "", to: "", page: 0, hidden: new Set() },
  arrays: { run: "", name: "", at: null },
  store: { run: "" },
  attribution: { choice: "", a: 0, b: -1, fold: true, show: 10, column: "", drop: 5 },
  labels: { run: "", drop: 5 },
};

const runById = (id) => state.index.runs.find((run) => run.id === id);

/** The runs that are compared: the chosen ones, or the first few. */
function comparedRuns() {
  const chosen = state.index.runs.filter((run) => state.selected.has(run.id));
  return chosen.length ? chosen : state.index.runs.filter((run) => run.entries).slice(0, 16);
}

/** The first of the items with the greatest number. */
const most = (items, number) => items.reduce((a, b) => (number(b) > number(a) ? b : a));

function colourOf(run) {
  const at = state.index.runs.indexOf(run);
  return at < 0 ? 0 : at;
}
