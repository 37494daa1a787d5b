// Logged arrays: how their histogram changes over the steps, and images.

async function arraysView(root) {
  const runs = state.index.runs.filter((run) => run.entries);
  if (!runs.length) return void root.append(el("p", { class: "card muted" }, "No run logged anything by step."));
  const a = state.arrays;
  if (!runById(a.run)) a.run = most(comparedRuns().concat(runs), (run) => run.entries).id;
  const controls = el("section", { class: "card controls", "aria-label": "Controls of arrays" });
  const body = el("div");
  root.append(controls, body);
  const draw = async () => {
    const part = await source.part(`arrays/${a.run}`);
    drawArrays(controls, body, state.index.runs.filter((run) => run.entries), part, draw);
  };
  root.refresh = draw;
  await draw();
}

function drawArrays(controls, body, runs, part, draw) {
  const a = state.arrays;
  const names = (part.arrays || []).map((each) => each.name);
  if (!names.includes(a.name)) a.name = names[0] || "";
  const now = JSON.stringify([runs.map((run) => run.id), names, a.run, a.name]);
  if (controls.dataset.now !== now) add(clear(controls), [
    field("Run", select(runs.map((run) => [run.id, run.name]), a.run, (value) => { a.run = value; a.at = null; draw(); })),
    names.length ? field("Array", select(names.map((name) => [name, name]), a.name, (value) => { a.name = value; a.at = null; draw(); })) : null,
  ]);
  controls.dataset.now = now;
  dropCharts(body);
  clear(body);
  if (part.problem) body.append(problem(part.problem));
  const array = (part.arrays || []).find((each) => each.name === a.name);
  if (!array) return void body.append(el("p", { class: "card muted" }, "This run logged no arrays by step."));
  if (part.left_out) body.append(el("p", { class: "muted" }, `${num(part.left_out)} more arrays are left out.`));
  if (array.damage) body.append(problem(array.damage));
  if (array.entries.length) drawArray(body, array);
}

function stepText(entry, at) {
  const steps = Object.entries(entry.steps).map(([axis, step]) => `${named(axis)} ${Array.isArray(step) ? step.slice(0, 3).map(num).join(", ") : num(step)}`);
  return steps.length ? steps.join(", ") : `entry ${at}`;
}

function drawArray(body, array) {
  const a = state.arrays;
  const { entries, edges } = array;
  if (a.at === null || a.at >= entries.length) a.at = entries.length - 1;
  const said = entries.length < array.total ? `${entries.length} of ${num(array.total)} entries, evenly spaced.` : `${plural(array.total, "entry", "entries")}.`;
  const middle = edges.slice(1).map((edge, at) => (edge + edges[at]) / 2);
  const card = el("section", { class: "card" }, el("h2", {}, named(array.name)), el("p", { class: "muted" }, `${array.type}. ${said}`));
  const over = chart("Histogram over the steps", () => ({
    traces: [{ type: "heatmap", x: entries.map((_, at) => at), y: middle, z: middle.map((_, bin) => entries.map((entry) => entry.counts[bin])), colorscale: [[0, css("--card")], [1, css("--accent")]], showscale: false, hovertemplate: "%{z:,} elements near %{y:.4g}<extra></extra>" }],
    layout: { hovermode: "closest", xaxis: { tickvals: entries.map((_, at) => at), ticktext: entries.map((entry, at) => plotText(stepText(entry, at))), tickangle: -30 } },
  }), { label: `Histogram of ${array.name} over ${entries.length} entries`, size: "medium" });
  const one = el("div");
  const slider = el("input", { type: "range", min: "0", max: String(entries.length - 1), value: String(a.at), oninput: () => { a.at = Number(slider.value); drawOne(); } });
  const told = el("output", { class: "hint" });
  const drawOne = () => {
    const entry = entries[a.at];
    told.textContent = shown(stepText(entry, a.at));
    dropCharts(one);
    clear(one);
    const width = edges[1] - edges[0];
    const numbers = [["least", entry.least], ["mean", entry.mean], ["greatest", entry.greatest]].map(([name, value]) => `${name} ${num(value) || "none"}`).join(", ");
    one.append(chart(`At ${stepText(entry, a.at)}: ${numbers}${entry.nonfinite ? `, ${num(entry.nonfinite)} not finite` : ""}`, () => ({
      traces: [{ type: "bar", x: middle, y: entry.counts, width, marker: { color: css("--accent-soft"), line: { color: css("--accent"), width: 0.5 } }, hovertemplate: "%{y:,} elements near %{x:.4g}<extra></extra>" }],
      layout: { hovermode: "closest", bargap: 0 },
    }), { size: "small" }));
  };
  drawOne();
  add(card, [el("div", { class: "grid two" }, over, el("div", {}, entries.length > 1 ? field("Entry", slider, told) : null, one))]);
  const pictures = entries.map((entry, at) => entry.image && el("figure", { class: "picture" }, el("img", { src: entry.image, alt: `${shown(array.name)} at ${shown(stepText(entry, at))}` }), el("figcaption", {}, stepText(entry, at)))).filter(Boolean);
  if (pictures.length) add(card, [el("h3", {}, "As images"), el("div", { class: "pictures" }, pictures)]);
  body.append(card);
}
