// Likely label errors: examples by self-influence, with their data.

async function labelsView(root) {
  const runs = state.index.runs.filter((run) => run.labels);
  const l = state.labels;
  if (!runs.some((run) => run.id === l.run)) l.run = most(runs, (run) => run.rows).id;
  const controls = el("section", { class: "card controls", "aria-label": "Controls of labels" });
  const body = el("div");
  root.append(controls, body);
  const draw = async () => {
    clear(controls);
    controls.append(field("Run", select(runs.map((run) => [run.id, run.name]), l.run, (value) => { l.run = value; draw(); })));
    dropCharts(body);
    clear(body).append(el("p", { class: "muted", role: "status" }, "Computing ..."));
    const part = await source.part(`labels/${l.run}`);
    clear(body);
    if (part.problem) return void body.append(problem(part.problem));
    drawLabels(body, part);
  };
  await draw();
}

function drawLabels(body, part) {
  const about = part.curvature === "identity" ? "squared gradient norms, because the run has no curvature" : `self-influence by ${part.curvature}`;
  const marks = part.rows.length ? [{ x: part.rows[0].score, label: `1st: ${short(part.rows[0].id)}`, colour: "--bad", side: "right" }] : [];
  const columns = [
    { label: "rank", value: (row) => row.rank, right: true },
    { label: "id", value: (row) => row.id, cell: (row) => idView(row.id) },
    { label: "value", value: (row) => row.score, cell: (row) => num(row.score), right: true },
    { label: "example", wide: true, value: (row) => exampleText(ownValue(part.data, String(row.id))), cell: (row) => exampleView(ownValue(part.data, String(row.id))) },
  ];
  const rows = part.rows.map((row, at) => ({ ...row, rank: at + 1 }));
  body.append(el("section", { class: "card" }, el("h2", {}, "Likely label errors"),
    el("p", {}, `${plural(part.examples, "example")}, ranked by ${about}. The first ones are suspects, no proven errors: rare and hard examples rank high as well.`),
    histogramChart("How many examples have which value", part.histogram, marks, { x: "self-influence" }),
    part.rows.length < part.examples ? el("p", { class: "muted" }, `The first ${num(part.rows.length)} are listed.`) : null,
    dataTable(columns, rows, { caption: "Likely label errors", page: 20, header: 1 })));
  body.append(keepOrDrop(part.overall, { title: "Keep or drop", column: "self_influence", state: state.labels, worst: (x, y) => y - x, about: "Examples with the greatest values are dropped first. Check some of them before: rare examples may be the ones you need." }));
}

function exampleText(data) {
  if (!data) return "";
  return [data.text || "", ...Object.values(data.fields || {}).map(fieldText)].join(" ");
}
