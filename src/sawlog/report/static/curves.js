// Curves of all names over any step axis: each run, or mean and spread of groups of runs.

const PER_PAGE = 12;
const ENTRY = "";
const MOST_BANDS = 6; // runs whose ranges are drawn; more would hide each other

async function curvesView(root) {
  const controls = el("section", { class: "card controls", "aria-label": "Controls of curves" });
  const view = { notes: el("div"), legend: el("div"), grid: el("div", { class: "grid" }), pager: el("div", { class: "pager" }), charts: new Map(), loaded: null };
  root.append(controls, view.notes, view.legend, view.grid, view.pager);
  view.loaded = await loadCurves();
  let waiting = false;
  const draw = () => { // once for each frame: a slider sends many changes
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; if (root.isConnected) drawCurves(view, draw); });
  };
  let axes = "";
  const drawAxes = () => {
    const now = JSON.stringify(view.loaded.axes);
    if (now === axes || controls.contains(document.activeElement)) return;
    axes = now;
    drawControls(clear(controls), view.loaded, draw);
  };
  drawAxes();
  drawCurves(view, draw);
  root.refresh = async () => {
    view.loaded = await loadCurves();
    drawAxes();
    draw();
  };
}

async function loadCurves() {
  const runs = comparedRuns();
  const parts = await Promise.all(runs.map((run) => source.part(`curves/${run.id}`)));
  const byName = new Map();
  const axes = new Set();
  const problems = [];
  let leftOut = 0;
  parts.forEach((part, at) => {
    if (part.problem) problems.push(`${named(runs[at].name)}: ${part.problem}`);
    leftOut += part.left_out || 0;
    for (const series of part.series || []) {
      if (series.damage) problems.push(`${named(runs[at].name)}, ${named(series.name)}: ${series.damage}`);
      for (const curve of series.curves) axes.add(curve.axis ?? ENTRY);
      if (!byName.has(series.name)) byName.set(series.name, []);
      byName.get(series.name).push({ run: runs[at], series });
    }
  });
  const points = Math.max(0, ...parts.map((part) => part.points || 0));
  return { runs, byName, axes: [...axes], problems, leftOut, points };
}

function drawControls(root, loaded, draw) {
  const c = state.curves;
  const change = (name) => (value) => { c[name] = value; c.page = 0; draw(); };
  const search = el("input", { type: "search", placeholder: "loss, grad/…", value: c.search, oninput: () => change("search")(search.value) });
  const axes = [["auto", "first axis of each"], ...loaded.axes.map((axis) => [`=${axis}`, axis === ENTRY ? "number of the entry" : axis])];
  const smooth = el("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(c.smooth), oninput: () => { told.value = smooth.value; change("smooth")(Number(smooth.value)); } });
  const told = el("output", { class: "hint" }, String(c.smooth));
  const bound = (name, label) => { const input = el("input", { type: "number", step: "any", value: c[name], class: "short", onchange: () => change(name)(input.value) }); return field(label, input); };
  add(root, [
    field("Names", search),
    field("Over", select(axes, c.axis || "auto", change("axis"))),
    field("Show", select([["auto", "automatic"], ["runs", "each run"], ["groups", "mean and spread"]], c.mode, change("mode"))),
    field("Spread", select([["std", "standard deviation"], ["range", "least to greatest"]], c.band, change("band"))),
    el("div", { class: "field" }, el("label", { for: (smooth.id = newId("smooth")) }, "Smoothing"), el("div", { class: "row" }, smooth, told)),
    bound("from", "From step"),
    bound("to", "To step"),
    el("div", { class: "checks" }, toggle("Log values", c.logY, change("logY")), toggle("Log steps", c.logX, change("logX"))),
  ]);
}

function drawCurves(view, draw) {
  const c = state.curves;
  const { loaded, grid } = view;
  const wanted = c.search.trim().toLowerCase();
  const names = inSections([...loaded.byName.keys()].filter((name) => name.toLowerCase().includes(wanted) && loaded.byName.get(name).some(({ series }) => chosenCurve(series))));
  const pages = Math.max(1, Math.ceil(names.length / PER_PAGE));
  c.page = Math.min(c.page, pages - 1);
  clear(view.notes);
  for (const text of loaded.problems.slice(0, 5)) view.notes.append(problem(text));
  const all = [...new Set(names.flatMap((name) => loaded.byName.get(name).map((each) => each.run)))];
  view.notes.append(el("p", { class: "muted", role: "status" }, curveNotes(loaded, names, all).join(" ")));
  keepingFocus(view.legend, () => { clear(view.legend).append(legendOf(all, draw)); });
  drawGrid(view, names.slice(c.page * PER_PAGE, (c.page + 1) * PER_PAGE), names, all);
  if (!names.length) grid.append(el("p", { class: "muted" }, loaded.byName.size ? "No name matches." : "These runs logged no numbers by step."));
  keepingFocus(view.pager, () => drawPager(view.pager, c.page, pages, names.length, (page) => { c.page = page; drawCurves(view, draw); document.getElementById("main").scrollIntoView(); }));
}

/** Put the charts of a page into the grid. Those that are drawn stay, with what people zoomed into. */
function drawGrid(view, shownNames, names, all) {
  const { grid, charts, loaded } = view;
  const sections = sectionsOf(names);
  const section = (name) => sections.get(name);
  const several = new Set(sections.values()).size > 1;
  const nodes = [];
  shownNames.forEach((name, at) => {
    if (several && (at === 0 || section(name) !== section(shownNames[at - 1]))) {
      const count = names.filter((each) => section(each) === section(name)).length;
      nodes.push(el("h2", { class: "section" }, section(name) ? named(section(name)) : "other names", el("span", { class: "muted" }, ` ${num(count)}`)));
    }
    if (!charts.has(name)) charts.set(name, curveChart(name));
    nodes.push(charts.get(name));
  });
  for (const [name, figure] of charts) if (!shownNames.includes(name)) { dropCharts(figure); charts.delete(name); }
  const same = nodes.length === grid.children.length && nodes.every((node, at) => (node.tagName === "H2" ? grid.children[at].tagName === "H2" : node === grid.children[at]));
  if (!same) grid.replaceChildren(...nodes);
  grid.classList.toggle("few", shownNames.length < 3);
  for (const name of shownNames) charts.get(name).update(linesOf(loaded.byName.get(name)), all);
}

/** The section of each name: what is before its first slash, if two names or more have it. */
function sectionsOf(names) {
  const first = (name) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : "");
  const counts = new Map();
  for (const name of names) counts.set(first(name), (counts.get(first(name)) || 0) + 1);
  return new Map(names.map((name) => [name, counts.get(first(name)) > 1 ? first(name) : ""]));
}

/** Names in the order of their sections, those without a section first. */
function inSections(names) {
  const sections = sectionsOf(names);
  const order = [...new Set(["", ...sections.values()])];
  return order.flatMap((section) => names.filter((name) => sections.get(name) === section));
}

/** What is drawn, and what is thinned or left out. */
function curveNotes(loaded, names, all) {
  const c = state.curves;
  const total = state.index.runs.filter((run) => run.entries).length;
  const some = loaded.runs.length < total && !state.selected.size ? `the first ${num(loaded.runs.length)} of ${plural(total, "run")}` : plural(loaded.runs.length, "run");
  const said = [`${plural(names.length, "name")} of ${some}.`];
  const grouped = isGrouped(all);
  if (grouped) said.push(`A line is the mean over the runs of a folder, and the band their ${c.band === "range" ? "range" : "standard deviation"}. Runs with other steps are interpolated.`);
  const curves = [...loaded.byName.values()].flat().flatMap(({ series }) => series.curves);
  const range = grouped ? "" : all.length <= MOST_BANDS ? ", and the band their range" : "; their ranges are in the tables";
  const long = curves.filter((curve) => curve.distinct > loaded.points);
  if (curves.some((curve) => curve.entries > curve.distinct)) said.push(`Where a step has several entries, a point is their mean${long.length ? "" : range}.`);
  if (long.length) {
    const longest = long.reduce((most, curve) => Math.max(most, curve.entries), 0);
    said.push(`Long series (up to ${num(longest)} entries) are thinned to ${num(loaded.points)} points: a point is the mean of consecutive entries${range}.`);
  }
  if (loaded.leftOut) said.push(`${num(loaded.leftOut)} names are left out.`);
  return said;
}

function chosenCurve(series) {
  const wanted = state.curves.axis;
  const curve = !wanted || wanted === "auto" ? series.curves[0] : series.curves.find((each) => `=${each.axis ?? ENTRY}` === wanted);
  return curve && curve.entries ? curve : null;
}

/** The curve of each run over the chosen axis, as numbers. */
function linesOf(all) {
  const found = [];
  for (const { run, series } of all) {
    const curve = chosenCurve(series);
    if (!curve) continue;
    if (!curve.read) curve.read = { x: unpacked(curve.x), mean: unpacked(curve.mean), least: curve.least && unpacked(curve.least), greatest: curve.greatest && unpacked(curve.greatest) };
    found.push({ run, axis: curve.axis, last: series.last, curve, ...curve.read });
  }
  return found;
}

function smoothed(values, weight) {
  if (!weight) return values;
  let total = 0;
  let mass = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return NaN;
    total = weight * total + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return total / mass;
  });
}

/** A chart of one name; figure.update(lines, all) draws other runs or settings, in place. */
function curveChart(name) {
  let lines = [];
  let all = [];
  const odd = el("p", { class: "note warn", hidden: true });
  const table = el("div");
  const details = el("details", { ontoggle: () => drawTable() }, el("summary", {}, "As a table"), table);
  const figure = chart(named(name), () => ({ traces: tracesOf(lines.filter((line) => !isHidden(line.run, all)), all), layout: curveLayout(lines) }), { label: named(name), below: [odd, details], large: true });
  const drawTable = () => {
    if (!details.open) return;
    const extreme = (pick, values) => { // of no values, Math.min is Infinity
      const finite = values.filter(Number.isFinite);
      return finite.length ? num(pick(...finite)) : "none";
    };
    const rows = lines.map((line) => [line.run.name, num(line.last), extreme(Math.min, line.least || line.mean), extreme(Math.max, line.greatest || line.mean), num(line.curve.entries)]);
    clear(table).append(plainTable(`Values of ${named(name)}`, ["run", "last", "least", "greatest", "entries"], rows, [1, 2, 3, 4]));
  };
  figure.update = (newLines, newAll) => {
    [lines, all] = [newLines, newAll];
    const wrong = lines.filter((line) => line.curve.nonfinite);
    odd.hidden = !wrong.length;
    clear(odd);
    if (wrong.length) add(odd, [`NaN or infinite: ${wrong.slice(0, 3).map((line) => `${named(line.run.name)} ${plural(line.curve.nonfinite, "time")}, first at ${num(line.curve.first_nonfinite)}`).join("; ")}${wrong.length > 3 ? `; ${wrong.length - 3} more runs` : ""}.`]);
    figure.plot.setAttribute("aria-label", shown(`${named(name)}: ${plural(lines.length, "run")}, last values ${lines.slice(0, 4).map((line) => num(line.last)).join(", ")}`));
    drawTable();
    figure.redraw();
  };
  return figure;
}

const hiddenKey = (run, all) => (isGrouped(all) ? `group ${run.group}` : `run ${run.id}`);
const isHidden = (run, all) => state.curves.hidden.has(hiddenKey(run, all));

/** Which colour is which run, or group of runs: buttons that hide and show them. */
function legendOf(runs, draw) {
  const items = isGrouped(runs) ? groupsOf(runs).map((group, at) => [`group ${group}`, group ? named(group) : "runs", at]) : runs.map((run) => [`run ${run.id}`, named(run.name), colourOf(run)]);
  const { hidden } = state.curves;
  if (items.length < 2) return el("span");
  const flip = (key) => {
    if (!hidden.delete(key)) hidden.add(key);
    draw();
  };
  const buttons = items.slice(0, 40).map(([key, name, at]) => el("li", {}, el("button", { type: "button", class: "key", "aria-pressed": String(!hidden.has(key)), title: hidden.has(key) ? "Show" : "Hide", onclick: () => flip(key) }, el("span", { class: `dot c${at % PALETTE}`, "aria-hidden": "true" }), name)));
  return el("ul", { class: "legend", "aria-label": "Colours" }, buttons, items.length > 40 ? el("li", {}, `and ${items.length - 40} more`) : null);
}

const groupsOf = (runs) => [...new Set(runs.map((run) => run.group))];

/** Whether the mean of groups is drawn: if chosen, or if there are many runs in few groups. */
function isGrouped(runs) {
  const { mode } = state.curves;
  return mode === "groups" || (mode === "auto" && runs.length > 4 && runs.length >= 2 * groupsOf(runs).length);
}

/** The axis of the lines; all of them, if runs have different first axes. */
function axisTitle(lines) {
  const axes = [...new Set(lines.map((line) => line.axis ?? null))].map((axis) => (axis === null ? "entry" : named(axis)));
  return axes.length > 3 ? `${axes.slice(0, 2).join(" or ")} or ${axes.length - 2} others` : axes.join(" or ");
}

function curveLayout(lines) {
  const c = state.curves;
  const given = [c.from, c.to].map((text) => (text === "" ? null : Number(text)));
  const at = (value) => (value === null || !Number.isFinite(value) ? null : c.logX ? Math.log10(Math.max(value, 1e-300)) : value);
  const range = given.some((value) => value !== null) ? given.map(at) : undefined;
  return {
    uirevision: JSON.stringify([c.axis, c.logX, c.logY, c.from, c.to]), // what people zoomed into stays as it is
    xaxis: { type: c.logX ? "log" : "linear", title: { text: plotText(axisTitle(lines)) }, range, autorange: range ? (range[0] === null ? "min" : range[1] === null ? "max" : false) : true },
    yaxis: { type: c.logY ? "log" : "linear", dtick: c.logY ? 1 : undefined, exponentformat: "power" },
  };
}

function tracesOf(lines, all) {
  if (!isGrouped(all)) return lines.flatMap((line) => runTraces(line, lines.length <= MOST_BANDS));
  return groupsOf(all).flatMap((group, at) => {
    const own = lines.filter((line) => line.run.group === group);
    return own.length ? groupTraces(group, own, at) : [];
  });
}

const points = (x, y) => x.map((step, at) => [step, y[at]]);

function runTraces(line, ranged) {
  const at = colourOf(line.run);
  const tint = colour(at);
  const { x } = line;
  const traces = ranged && line.least ? band(x, line.least, line.greatest, line.mean, faded(tint, 0.15)) : [];
  const weight = state.curves.smooth;
  if (weight) traces.push({ x, y: line.mean, mode: "lines", line: { color: faded(tint, 0.3), width: 1 }, hoverinfo: "skip" });
  const mode = x.length < 2 ? "markers" : x.length < 30 ? "lines+markers" : "lines";
  traces.push({ x, y: smoothed(line.mean, weight), mode, name: plotText(named(line.run.name)), line: { color: tint, width: 1.8, dash: dash(at) }, marker: { color: tint, size: 5 }, hovertemplate: "%{y:.5g}" });
  return traces;
}

function band(x, lows, high, mean, fill) {
  // A logarithmic axis has no zero: what reaches below ends at the least value that is drawn.
  const floor = state.curves.logY ? [...mean, ...high].reduce((least, value) => (value > 0 && value < least ? value : least), Infinity) : -Infinity;
  const low = lows.map((value) => (value <= 0 ? Math.max(value, floor) : value));
  const kept = points(x, low.map((value, at) => [value, high[at]])).filter(([, [a, b]]) => Number.isFinite(a) && Number.isFinite(b));
  const steps = kept.map(([step]) => step);
  const none = { mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
  return [{ ...none, x: steps, y: kept.map(([, pair]) => pair[0]) }, { ...none, x: steps, y: kept.map(([, pair]) => pair[1]), fill: "tonexty", fillcolor: fill }];
}

/** Mean and spread over the runs of a group, at the steps of the longest of them. */
function groupTraces(group, lines, at) {
  const longest = lines.reduce((a, b) => (b.x.length > a.x.length ? b : a));
  const { x } = longest;
  const same = lines.every((line) => line.x.length === x.length && line.x.every((step, i) => step === x[i]));
  const rows = lines.map((line) => smoothed(same ? line.mean : interpolated(line.x, line.mean, x), state.curves.smooth));
  const mean = [];
  const low = [];
  const high = [];
  const counts = [];
  x.forEach((_, i) => {
    const values = rows.map((row) => row[i]).filter(Number.isFinite);
    counts.push(values.length);
    const middle = values.reduce((a, b) => a + b, 0) / values.length;
    const spread = Math.sqrt(values.reduce((a, b) => a + (b - middle) ** 2, 0) / Math.max(1, values.length - 1));
    const whole = state.curves.band === "range";
    mean.push(values.length ? middle : NaN);
    low.push(values.length ? (whole ? Math.min(...values) : middle - spread) : NaN);
    high.push(values.length ? (whole ? Math.max(...values) : middle + spread) : NaN);
  });
  const tint = colour(at);
  const name = `${group ? named(group) : "runs"} (${lines.length})`;
  const text = mean.map((_, i) => `${num(low[i])} to ${num(high[i])}${counts[i] < lines.length ? `, ${counts[i]} of ${lines.length} runs` : ""}`);
  return [...band(x, low, high, mean, faded(tint, 0.2)), { x, y: mean, text, mode: "lines", name: plotText(name), line: { color: tint, width: 2, dash: dash(at) }, hovertemplate: "%{y:.5g} (%{text})" }];
}

function interpolated(steps, values, at) {
  let i = 0;
  return at.map((step) => {
    if (step < steps[0] || step > steps[steps.length - 1]) return NaN;
    while (i < steps.length - 2 && steps[i + 1] < step) i += 1;
    const width = steps[i + 1] - steps[i];
    return width ? values[i] + ((step - steps[i]) / width) * (values[i + 1] - values[i]) : values[i];
  });
}
