// The list of runs: searched, sorted, chosen and compared; what failed, and its last values.

const runsKeep = {};
const lastsKeep = {};
const MOST_COMPARED = 12;

async function runsView(root) {
  const head = el("div");
  const list = el("section", { class: "card" });
  const compared = el("div");
  const failed = el("div");
  root.append(head, list, compared, failed);
  const draw = async () => {
    drawFacts(clear(head));
    clear(list).append(el("h2", {}, "Runs"));
    drawRuns(list, compared);
    await Promise.all([drawComparison(compared), drawFailures(failed)]);
  };
  root.refresh = draw;
  await draw();
}

function drawFacts(root) {
  const { runs } = state.index;
  root.append(facts([
    [plural(runs.length, "run"), state.index.left_out ? `${num(state.index.left_out)} more are left out` : "in all"],
    [plural(runs.filter((run) => run.state === "writing").length, "run"), "being written"],
    [plural(runs.filter((run) => ["failed", "damaged", "unreadable"].includes(run.state)).length, "run"), "failed or damaged"],
    [bytes(runs.reduce((sum, run) => sum + run.bytes, 0)), "on disk"],
  ]));
}

function facts(items) {
  return el("ul", { class: "facts" }, items.map(([big, small]) => el("li", { class: "card" }, el("strong", {}, big), el("span", {}, small))));
}

/** The settings in which runs differ; all of them for a single run. */
function varied(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
  const text = (run, name) => JSON.stringify(ownValue(run.config, name) ?? null);
  return names.filter((name) => runs.length === 1 || runs.some((run) => text(run, name) !== text(runs[0], name)));
}

/** The settings that all runs have with the same value. */
function shared(runs) {
  const text = (run, name) => JSON.stringify(ownValue(run.config, name));
  return Object.keys(runs[0].config).filter((name) => runs.every((run) => text(run, name) === text(runs[0], name)));
}

/** The settings that have several values among the runs that have them: what was tried. */
function choices(runs) {
  const values = new Map();
  for (const run of runs) {
    for (const [name, value] of Object.entries(run.config)) {
      if (!values.has(name)) values.set(name, new Set());
      values.get(name).add(JSON.stringify(value));
    }
  }
  return [...values].filter(([name, own]) => own.size > 1 && name !== "key").map(([name]) => name);
}

const setting = (run, name) => {
  const value = ownValue(run.config, name);
  if (typeof value === "number") return Number(value.toPrecision(12)); // without what binary fractions add
  if (value === null) return "none";
  if (Array.isArray(value) && value.every((each) => ["string", "number"].includes(typeof each))) return value.join(", ") || "none";
  return value === undefined ? "" : typeof value === "object" && value !== null ? JSON.stringify(value) : value;
};

/** Seconds from the creation of a run to what it wrote last. */
function lasted(run) {
  const seconds = (Date.parse(run.written) - Date.parse(run.created)) / 1000;
  return seconds >= 0 ? seconds : null;
}

function drawRuns(list, compared) {
  const { runs } = state.index;
  const choose = (run, on) => {
    if (on) state.selected.add(run.id);
    else state.selected.delete(run.id);
    state.curves.page = 0;
    told();
    drawComparison(compared);
  };
  const box = (run) => el("input", { type: "checkbox", "aria-label": `Compare ${named(run.name)}`, checked: state.selected.has(run.id), onchange: (event) => choose(run, event.target.checked) });
  const settings = choices(runs).slice(0, 6);
  const columns = [
    ...(runs.length > 1 ? [{ label: "compare", cell: box }] : []),
    { label: "run", value: (run) => run.name, cell: (run) => el("span", { class: "run" }, el("span", { class: `dot c${colourOf(run) % PALETTE}`, "aria-hidden": "true" }), el("span", {}, breakable(run.name))) },
    { label: "state", value: (run) => run.state, cell: (run) => badge(run.state) },
    { label: "written", value: (run) => run.written || "", cell: (run) => el("span", { class: "one-line", title: date(run.written) }, ago(run.written)) },
    { label: "duration", value: (run) => lasted(run), cell: (run) => duration(lasted(run)), right: true },
    { label: "entries", value: (run) => run.entries, cell: (run) => num(run.entries), right: true },
    { label: "rows", value: (run) => run.rows, cell: (run) => num(run.rows), right: true },
    { label: "size", value: (run) => run.bytes, cell: (run) => bytes(run.bytes), right: true },
    ...settings.map((name) => ({ label: name, value: (run) => setting(run, name), cell: (run) => (typeof ownValue(run.config, name) === "number" ? num(ownValue(run.config, name)) : String(setting(run, name))), right: runs.every((run) => typeof (ownValue(run.config, name) ?? 0) === "number") })),
  ];
  const note = el("p", { class: "muted", role: "status" });
  const told = () => add(clear(note), [state.selected.size ? `${plural(state.selected.size, "run")} chosen: curves and comparison show these.` : "Choose runs to compare them; without a choice, curves show the first 16."]);
  told();
  const buttons = el("div", { class: "row" },
    el("button", { type: "button", class: "quiet", onclick: () => { runs.forEach((run) => state.selected.add(run.id)); redo(); } }, "Choose all"),
    el("button", { type: "button", class: "quiet", onclick: () => { state.selected.clear(); redo(); } }, "Choose none"));
  const redo = () => { clear(list).append(el("h2", {}, "Runs")); drawRuns(list, compared); drawComparison(compared); };
  const empty = runs.length ? "No run matches." : "No runs yet. They appear here as they begin.";
  add(list, [dataTable(columns, runs, { caption: "Runs", search: "Search runs", header: runs.length > 1 ? 1 : 0, keep: runsKeep, page: 50, empty }), ...(runs.length > 1 ? [note, buttons] : [])]);
}

async function drawComparison(root) {
  const logged = comparedRuns();
  const all = logged.length ? logged : state.index.runs;
  const chosen = all.slice(0, MOST_COMPARED);
  if (!chosen.length) return void clear(root);
  const names = chosen.length === 1 || state.selected.size ? varied(chosen) : choices(chosen);
  const labels = [chosen.length === 1 ? "setting" : "setting that differs", ...chosen.map((run) => run.name)];
  const card = el("section", { class: "card" }, el("h2", {}, chosen.length === 1 ? "Configuration" : "Comparison"));
  if (all.length > chosen.length) card.append(el("p", { class: "muted" }, `The first ${chosen.length} of ${plural(all.length, "run")}.`));
  if (chosen.length === 1) card.append(el("p", { class: "path" }, chosen[0].path));
  if (chosen[0].problem) card.append(problem(chosen[0].problem));
  if (names.length) card.append(plainTable("Settings", labels, names.map((name) => [name, ...chosen.map((run) => String(setting(run, name)))])));
  else card.append(el("p", { class: "muted" }, chosen.length === 1 ? "It has no configuration." : varied(chosen).length ? "No setting that several of them have differs. Choose runs to compare all of their settings." : "Their settings are the same."));
  const same = chosen.length > 1 ? shared(chosen) : [];
  if (same.length) card.append(el("details", { open: !names.length }, el("summary", {}, `${plural(same.length, "setting")} that all of them share`), plainTable("Shared settings", ["setting", "value"], same.map((name) => [name, String(setting(chosen[0], name))]))));
  const turn = (root.turn = (root.turn || 0) + 1);
  const parts = await Promise.all(chosen.map((run) => source.part(`curves/${run.id}`)));
  if (turn !== root.turn) return; // another choice was made since
  clear(root).append(card);
  const lasts = parts.map((part) => new Map((part.series || []).map((series) => [series.name, series.last])));
  const series = [...new Set(lasts.flatMap((map) => [...map.keys()]))];
  if (!series.length) return;
  const columns = [{ label: "last value of", value: (name) => name }, ...chosen.map((run, at) => ({ label: run.name, value: (name) => lasts[at].get(name), cell: (name) => num(lasts[at].get(name)), right: true }))];
  card.append(el("h3", {}, "Last values"), dataTable(columns, series, { caption: "Last values", page: 15, keep: lastsKeep, search: "Search names" }));
}

/** Where runs failed: the last values of each, and what stopped being finite, and when. */
async function drawFailures(root) {
  const failed = state.index.runs.filter((run) => ["failed", "unfinished", "damaged", "unreadable"].includes(run.state)).slice(0, 12);
  if (!failed.length) return void clear(root);
  const card = el("section", { class: "card" }, el("h2", {}, "Where runs stopped"));
  for (const run of failed) {
    const part = await source.part(`curves/${run.id}`);
    card.append(el("h3", {}, named(run.name), " ", badge(run.state)), el("p", { class: "muted" }, `Written last ${ago(run.written)} (${date(run.written)}).`));
    if (run.error) card.append(problem(`Its last words: ${run.error}`));
    if (run.problem) card.append(problem(run.problem));
    if (part.problem) card.append(problem(part.problem));
    const series = part.series || [];
    const odd = series.flatMap((each) => each.curves.slice(0, 1).filter((c) => c.nonfinite).map((c) => ({ name: each.name, ...c })));
    odd.sort((a, b) => a.first_nonfinite - b.first_nonfinite);
    if (odd.length) card.append(el("ul", {}, odd.slice(0, 5).map((c) => el("li", {}, el("strong", {}, named(c.name)), ` was NaN or infinite ${plural(c.nonfinite, "time")}, first at ${c.axis === null ? "entry" : named(c.axis)} ${num(c.first_nonfinite)}.`))));
    const steps = (each) => Object.entries(each.last_steps).map(([axis, step]) => `${named(axis)} ${num(step)}`).join(", ");
    if (series.length) card.append(plainTable(`Last values of ${named(run.name)}`, ["last value of", "value", "at"], series.slice(0, 20).map((each) => [each.name, num(each.last), steps(each)]), [1]));
  }
  clear(root).append(card);
}
