// The store of a run: layers, sizes, coverage, curvature spectra, the fingerprint of the weights.

async function storeView(root) {
  const { runs } = state.index;
  const s = state.store;
  if (!runById(s.run)) s.run = most(runs, (run) => (run.kind === "capture" ? 1 + run.rows : 0)).id;
  const body = el("div");
  root.append(el("section", { class: "card controls", "aria-label": "Controls of the store" }, field("Run", select(runs.map((run) => [run.id, run.name]), s.run, (value) => { s.run = value; draw(); }))), body);
  const draw = async () => {
    const part = await source.part(`store/${s.run}`);
    dropCharts(body);
    clear(body);
    if (part.problem) return void body.append(problem(part.problem));
    if (part.coverage) body.append(coverageCard(part.coverage));
    if (part.spectra.length) body.append(spectraCard(part.spectra));
    body.append(storesCard(part));
    for (const each of part.tables) body.append(tableCard(each));
  };
  root.refresh = draw;
  await draw();
}

function storesCard(part) {
  const rows = Object.entries(part.stores);
  const count = (n) => (n === null ? "" : num(n));
  const columns = [
    { label: "store", value: ([name]) => name, cell: ([name]) => name },
    { label: "state", value: ([, each]) => each.state, cell: ([, each]) => badge(each.state) },
    { label: "names", value: ([, each]) => each.names, cell: ([, each]) => count(each.names), right: true },
    { label: "rows", value: ([, each]) => each.rows, cell: ([, each]) => count(each.rows), right: true },
    { label: "entries", value: ([, each]) => each.entries, cell: ([, each]) => count(each.entries), right: true },
    { label: "segments", value: ([, each]) => each.segments, cell: ([, each]) => count(each.segments), right: true },
    { label: "size", value: ([, each]) => each.bytes, cell: ([, each]) => bytes(each.bytes), right: true },
  ];
  const card = el("section", { class: "card" }, el("h2", {}, "Stores"), el("p", { class: "path" }, part.path), dataTable(columns, rows, { caption: "Stores" }));
  for (const [name, each] of rows) if (each.problem) card.append(problem(`${name}: ${each.problem}`));
  return card;
}

const by = (shape) => shape.join(" × ");

function meter(share, label) {
  const bar = el("div", { class: "meter", role: "img", "aria-label": label });
  bar.append(el("span", {}));
  bar.firstChild.style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
  return bar;
}

function coverageCard(coverage) {
  const card = el("section", { class: "card" }, el("h2", {}, "What is watched"));
  if (coverage.share !== null) {
    const text = `${percent(coverage.share)} of the parameters: ${num(coverage.watched)} of ${num(coverage.parameters)}`;
    card.append(el("p", {}, el("strong", {}, text)), meter(coverage.share, text));
  } else card.append(el("p", {}, `${num(coverage.watched)} parameters are watched; the run does not say how many the model has.`));
  if (coverage.weights.length) card.append(el("p", {}, "Fingerprint of the weights: ", coverage.weights.map((each) => el("code", {}, each))));
  if (coverage.weights.length > 1) card.append(problem("Rows come from several states of the model. Their gradients cannot be compared."));
  const skipped = coverage.skipped || [];
  if (skipped.length) card.append(el("details", {}, el("summary", {}, `${plural(skipped.length, "tensor")} not watched`), el("ul", {}, skipped.slice(0, 200).map(([name, why]) => el("li", {}, el("code", {}, named(name)), `: ${why}`)))));
  const total = coverage.layers.reduce((sum, layer) => sum + layer.bytes, 0);
  const columns = [
    { label: "layer", value: (layer) => layer.name },
    { label: "gradient", value: (layer) => layer.parameters, cell: (layer) => by(layer.shape), right: true },
    { label: "stored", value: (layer) => layer.stored.reduce((a, b) => a * b, 1), cell: (layer) => (by(layer.shape) === by(layer.stored) ? "whole" : by(layer.stored)), right: true },
    { label: "parameters", value: (layer) => layer.parameters, cell: (layer) => num(layer.parameters), right: true },
    { label: "bytes / example", value: (layer) => layer.bytes, cell: (layer) => num(layer.bytes), right: true },
    { label: "share", value: (layer) => layer.bytes / total, cell: (layer) => meter(layer.bytes / total, percent(layer.bytes / total)) },
  ];
  card.append(dataTable(columns, coverage.layers, { caption: "Watched layers", page: 15 }));
  return card;
}

function spectraCard(spectra) {
  const card = el("section", { class: "card" }, el("h2", {}, "Curvature"), el("p", { class: "muted" }, "Eigenvalues of each layer, greatest first. A dotted line is what the default damping adds: directions below it are damped away."));
  const grid = el("div", { class: "grid two" });
  for (const each of spectra) {
    if (each.problem) card.append(problem(each.problem));
    if (!each.layers.length) continue;
    const layers = each.layers.slice(0, 30);
    // Eigenvalues that are zero but for rounding would leave no room for the others.
    const greatest = Math.max(...layers.map((layer) => layer.values[0]));
    const least = Math.min(...layers.flatMap((layer) => [layer.damping, ...layer.values]).filter((value) => value > greatest * 1e-9));
    const range = greatest > 0 ? [Math.log10(least) - 0.3, Math.log10(greatest) + 0.3] : undefined;
    grid.append(chart(`${each.kind}, ${each.count === null ? "unknown number of" : num(each.count)} examples`, () => ({
      traces: layers.flatMap((layer, at) => {
        const ranks = layer.ranks.map((rank) => rank + 1);
        const line = { color: colour(at), width: 1.6, dash: dash(at) };
        return [
          { x: ranks, y: layer.values.map((value) => (value > 0 ? value : null)), mode: "lines", name: plotText(layer.name), line, hovertemplate: "%{y:.3g}" },
          { x: [ranks[0], ranks[ranks.length - 1]], y: [layer.damping, layer.damping], mode: "lines", line: { color: faded(colour(at), 0.6), width: 1, dash: "dot" }, hoverinfo: "skip" },
        ];
      }),
      layout: { xaxis: { type: "log", dtick: 1, title: { text: "rank" } }, yaxis: { type: "log", range, title: { text: "eigenvalue" }, exponentformat: "power" } },
    }), { size: "medium", label: `Eigenvalues of ${each.kind} for ${each.layers.length} layers`, below: [layerLegend(layers), el("details", {}, el("summary", {}, "As a table"), plainTable(`Spectra of ${shown(each.kind)}`, ["layer", "directions", "greatest", "least", "damping"], each.layers.map((layer) => [layer.name, num(layer.directions), num(layer.values[0]), num(layer.values[layer.values.length - 1]), num(layer.damping)]), [1, 2, 3, 4]))] }));
    if (each.layers.length > layers.length) card.append(el("p", { class: "muted" }, `${each.layers.length - layers.length} more layers are in the table only.`));
  }
  card.append(grid);
  return card;
}

function layerLegend(layers) {
  const items = layers.map((layer, at) => el("li", { class: "run" }, el("span", { class: `dot c${at % PALETTE}`, "aria-hidden": "true" }), named(layer.name)));
  return el("ul", { class: "legend", "aria-label": "Colours" }, items);
}

function tableCard(each) {
  const card = el("section", { class: "card" }, el("h2", {}, `Tables of ${each.store}`));
  for (const one of each.problems) card.append(problem(`${one.file}: ${one.what}`));
  for (const table of each.tables) {
    const ids = `${table.first_ids.slice(0, 5).map(named).join(", ")}${table.rows_written > 5 ? ", … " + named(table.last_id) : ""}`;
    const columns = [
      { label: "column", value: (column) => column.name },
      { label: "type", value: (column) => `${typeof column.dtype === "string" ? column.dtype : JSON.stringify(column.dtype)}[${column.shape.join(", ")}]` },
      { label: "size", value: (column) => column.bytes, cell: (column) => bytes(column.bytes), right: true },
      { label: "norm of the last row", value: (column) => column.last && (column.last.norm ?? column.last.value), cell: (column) => (column.damage ? column.damage : num(column.last && (column.last.norm ?? column.last.value))), right: true },
    ];
    card.append(el("p", { class: "muted" }, `${plural(table.rows ?? table.rows_written, "row")}, ids ${ids}`), dataTable(columns, table.columns, { caption: `Columns of ${shown(each.store)}`, page: 15 }));
  }
  return card;
}
