// The frame: tabs, theme, and updates of a live page.

const VIEWS = [
  ["runs", "Runs", runsView, () => true],
  ["curves", "Curves", curvesView, (index) => index.runs.some((run) => run.entries)],
  ["arrays", "Arrays", arraysView, (index) => index.arrays && index.runs.some((run) => run.entries)],
  ["store", "Store", storeView, (index) => index.runs.length > 0],
  ["attribution", "Attribution", attributionView, (index) => index.runs.some((run) => run.attributions.length)],
  ["labels", "Label errors", labelsView, (index) => index.runs.some((run) => run.labels)],
];
const LIVE_MS = 2000;

const main = document.getElementById("main");
let panel = null;

function openViews() {
  return VIEWS.filter(([, , , open]) => open(state.index));
}

function drawTabs() {
  const tabs = clear(document.getElementById("tabs"));
  for (const [name, label] of openViews()) {
    tabs.append(el("button", {
      type: "button", role: "tab", id: `tab-${name}`, class: "tab", "aria-selected": String(name === state.view), "aria-controls": "panel",
      tabindex: name === state.view ? "0" : "-1", onclick: () => show(name), onkeydown: moveTab,
    }, label));
  }
}

function moveTab(event) {
  const names = openViews().map(([name]) => name);
  const at = names.indexOf(state.view);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const name = names[(to + names.length) % names.length];
  show(name);
  document.getElementById(`tab-${name}`).focus();
}

async function show(name) {
  const found = openViews().find(([own]) => own === name) || openViews()[0];
  [state.view] = found;
  if (panel) dropCharts(panel);
  drawTabs();
  const own = el("div", { role: "tabpanel", id: "panel", "aria-labelledby": `tab-${found[0]}`, tabindex: "0" });
  panel = own;
  clear(main).append(own);
  if (location.hash.slice(1) !== found[0]) history.replaceState(null, "", `#${found[0]}`);
  try {
    await found[2](own);
  } catch (error) {
    own.append(problem(`This view cannot be drawn: ${error.message}`));
    throw error;
  }
}

// -- theme

const THEMES = ["auto", "light", "dark"];
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const THEME_KEY = "sawlog theme";
let theme = "auto";

function setTheme(wanted) {
  theme = THEMES.includes(wanted) ? wanted : "auto";
  const dark = theme === "dark" || (theme === "auto" && darkSystem.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.textContent = `Theme: ${theme}`;
  button.setAttribute("aria-label", `Theme: ${theme}. Change it.`);
  redrawCharts();
}

/** Read or write what is remembered between visits; some browsers refuse it. */
function remembered(value) {
  try {
    if (value !== undefined) localStorage.setItem(THEME_KEY, value);
    return localStorage.getItem(THEME_KEY);
  } catch {
    return null;
  }
}

document.getElementById("theme").addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
  remembered(theme);
});
darkSystem.addEventListener("change", () => setTheme(theme));
setTheme(remembered());

// -- start, and updates

function drawFrame() {
  const { index } = state;
  document.getElementById("title").textContent = shown(index.title);
  const made = document.getElementById("made");
  clear(made);
  if (source.live) made.append(el("span", { class: "live" }, "live"), ` ${plural(index.runs.length, "run")}`);
  else add(made, [`made ${date(index.made)}`]);
  add(clear(document.getElementById("foot")), [`Made by sawlog ${index.version}. ${source.live ? "Nothing is changed by looking; only this computer can see it." : "Everything is in this file; it loads nothing from elsewhere."}`]);
}

let stale = false; // whether something changed that the view does not show yet
let pressed = false;
document.addEventListener("pointerdown", () => { pressed = true; });
for (const end of ["pointerup", "pointercancel", "blur"]) window.addEventListener(end, () => { pressed = false; });

/** Say whether the server of a live page answers. */
function connected(on) {
  const live = document.querySelector(".live");
  if (!live || live.classList.contains("off") === !on) return;
  live.classList.toggle("off", !on);
  live.textContent = on ? "live" : "not connected";
  live.title = on ? "" : "Is sawlog view still running?";
  announce(on ? "live again" : "The server does not answer. Is sawlog view still running?");
}

/** What tells that a run changed. */
const mark = (run) => JSON.stringify([run.written, run.entries, run.rows, run.bytes, run.state, run.attributions]);

async function update() {
  const fresh = await source.fetched("index");
  if (fresh.problem) return void connected(false);
  connected(true);
  const before = new Map(state.index.runs.map((run) => [run.id, mark(run)]));
  const changed = fresh.runs.filter((run) => before.get(run.id) !== mark(run));
  const gone = fresh.runs.length !== before.size;
  if (!changed.length && !gone) return;
  changed.forEach((run) => source.forget(run.id));
  state.index = fresh;
  drawFrame();
  drawTabs();
  stale = true;
}

/** Draw the view again, unless a control is being dragged: then later. */
async function refresh() {
  if (!stale || pressed) return;
  stale = false;
  if (panel.refresh) await keepingFocus(panel, panel.refresh);
}

async function keepUpdating() {
  for (;;) {
    await new Promise((done) => setTimeout(done, LIVE_MS));
    if (document.hidden) continue;
    try {
      await update();
    } catch {
      connected(false);
    }
    await refresh();
  }
}

async function start() {
  const index = await source.part("index");
  const loading = document.getElementById("loading");
  if (index.problem) return void (loading.textContent = shown(index.problem));
  state.index = index;
  drawFrame();
  window.addEventListener("hashchange", () => { if (location.hash.slice(1) !== state.view) show(location.hash.slice(1)); });
  await show(location.hash.slice(1) || "runs");
  if (source.live) keepUpdating();
}

start();
