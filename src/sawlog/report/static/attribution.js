// Attribution: which training examples helped or harmed a query, with their data.

async function attributionView(root) {
  const choices = state.index.runs.flatMap((run) => run.attributions.map((title, at) => [`${run.id}/${at}`, state.index.runs.length > 1 ? `${run.name}: ${title}` : title]));
  const a = state.attribution;
  if (!choices.some(([key]) => key === a.choice)) a.choice = choices[0][0];
  const controls = el("section", { class: "card controls", "aria-label": "Controls of attribution" });
  const body = el("div");
  root.append(controls, body);
  const draw = async () => {
    const part = await source.part(`attribution/${a.choice}`);
    clear(controls);
    dropCharts(body);
    clear(body);
    if (choices.length > 1) controls.append(field("Scores", select(choices, a.choice, (value) => { Object.assign(a, { choice: value, a: 0, b: -1 }); draw(); })));
    if (part.problem) return void body.append(problem(part.problem));
    drawAttribution(controls, body, part, draw);
  };
  await draw();
}

function drawAttribution(controls, body, part, draw) {
  const a = state.attribution;
  const queries = part.queries.map((query, at) => [String(at), queryName(query)]);
  if (a.a >= queries.length) a.a = 0;
  if (a.b >= queries.length) a.b = -1;
  add(controls, [
    field("Query", select(queries, String(a.a), (value) => { a.a = Number(value); draw(); })),
    queries.length > 1 ? field("Beside it", select([["-1", "nothing"], ...queries], String(a.b), (value) => { a.b = Number(value); draw(); })) : null,
    field("List", select([["5", "5 examples"], ["10", "10 examples"], ["25", "25 examples"], ["50", "50 examples"]], String(a.show), (value) => { a.show = Number(value); draw(); })),
    el("div", { class: "checks" }, toggle("Fold near-duplicates", a.fold, (on) => { a.fold = on; draw(); })),
  ]);
  body.append(trustCard(part));
  const chosen = [a.a, a.b].filter((at) => at >= 0);
  body.append(el("div", { class: chosen.length > 1 ? "beside" : "" }, chosen.map((at) => queryCard(part, part.queries[at], draw))));
  if (part.queries_left_out) body.append(el("p", { class: "muted" }, `${num(part.queries_left_out)} more queries are left out of this page.`));
  if (part.overall) {
    body.append(keepOrDrop(part.overall, {
      title: "Keep or drop", column: "total_score", state: a, worst: (x, y) => x - y,
      about: `Examples with the least total score over ${part.queries.length + part.queries_left_out > 1 ? `all ${num(part.queries.length + part.queries_left_out)} queries` : "the query"} are dropped first. The queries should represent what the model is for.`,
    }));
  }
}

function queryName(query) {
  const text = query.data && query.data.text ? `: ${query.data.text}` : "";
  const name = `${named(query.id)}${shown(text)}`.replace(/\s+/g, " ");
  return name.length > 80 ? name.slice(0, 79) + "…" : name;
}

const TRUST_WORDS = [
  ["method", "How gradients are compared. ekfac, kfac, fisher and others divide by an estimate of the curvature of the loss, so that a score has the unit of a loss; identity does not."],
  ["damping", "What is added to the curvature, so that directions which the data hardly determine do not decide everything."],
  ["parameters watched", "The share of the parameters of the model whose gradients were logged."],
  ["weights", "A fingerprint of the weights with which gradients were computed. Gradients can only be compared if it is the same."],
  ["validated", "The LDS (linear datamodeling score) is the rank correlation of what the scores predict for random subsets of the data with what training on these subsets gives: 1 is perfect, 0 is chance."],
];

/** How the scores were made, and what is known about their reliability. */
function trustCard(part) {
  const t = part.trust;
  const damping = t.damping ? (t.damping[0] === t.damping[1] ? num(t.damping[0]) : `${num(t.damping[0])} to ${num(t.damping[1])} by layer`) : "unknown";
  const items = [
    ["method", `${t.method}, ${t.mode === "dot" ? "influence" : t.mode}`],
    ["damping", damping],
    ["parameters watched", t.coverage === null ? "unknown" : percent(t.coverage)],
    ["training examples", t.examples === null ? "unknown" : num(t.examples)],
    ["weights", t.same_weights === null ? "unknown" : t.same_weights ? `the same for queries and examples (${t.weights[0].slice(0, 12)})` : "differ between queries and examples"],
    ["validated", validatedText(t.validated)],
  ];
  const warnings = [];
  if (!t.validated) warnings.push("Not validated: these scores were not compared with retraining. Treat them as hints.");
  if (t.same_weights === false) warnings.push("Queries and examples come from different weights.");
  if (t.coverage !== null && t.coverage < 0.5) warnings.push(`Only ${percent(t.coverage)} of the parameters were watched; the others may tell another story.`);
  if (t.method === "identity") warnings.push("No curvature: scores are plain dot products of gradients, so no change of the loss is predicted.");
  if (!part.whole) warnings.push("Only the best scores of each query were kept: there is no histogram of all, and no groups.");
  return el("section", { class: "card trust" }, el("h2", {}, "How far to trust this"),
    el("dl", { class: "trust-items" }, items.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    warnings.map((text) => el("p", { class: "note warn" }, text)),
    el("details", {}, el("summary", {}, "What these words mean"), el("dl", { class: "words" }, TRUST_WORDS.map(([word, text]) => [el("dt", {}, word), el("dd", {}, text)]))));
}

function validatedText(validated) {
  if (!validated) return "not validated";
  if (typeof validated !== "object") return String(validated);
  return Object.entries(validated).map(([name, value]) => `${name} ${fieldText(value)}`).join(", ");
}

function queryCard(part, query, draw) {
  const card = el("section", { class: "card query" }, el("h2", {}, "Query ", idView(query.id)));
  if (query.data) card.append(exampleView(query.data));
  const lists = [["Most helpful", query.helpful, "helps"], ["Most harmful", query.harmful, "hurts"]];
  if (query.histogram) {
    const best = query.helpful[0];
    const worst = query.harmful[0];
    const marks = [best && { x: best.score, label: `1st: ${short(best.id)}`, colour: "--good", side: "right" }, worst && { x: worst.score, label: `last: ${short(worst.id)}`, colour: "--bad", side: "left" }].filter(Boolean);
    card.append(histogramChart("How many examples have which score", query.histogram, marks, {}));
    if (query.histogram.nonfinite) card.append(problem(`${num(query.histogram.nonfinite)} scores are NaN or infinite.`));
  }
  card.append(el("div", { class: "sides" }, lists.map(([title, rows, kind]) => rankedList(title, rows, kind, part))));
  if (query.groups && Object.keys(query.groups).length) card.append(groupsView(part, query, draw));
  if (query.lexical) card.append(lexicalView(part, query));
  if (!query.helpful.length && !query.harmful.length) card.append(el("p", { class: "muted" }, "All scores are 0 or not finite."));
  return card;
}

/** Keep the first of each group of near-duplicates, with the others counted. */
function foldedRows(rows) {
  if (!state.attribution.fold) return rows.map((row) => ({ ...row, others: [] }));
  const first = new Map();
  const kept = [];
  for (const row of rows) {
    const key = row.like === undefined ? undefined : JSON.stringify(row.like);
    if (key !== undefined && first.has(key)) first.get(key).others.push(row);
    else {
      const own = { ...row, others: [] };
      if (key !== undefined) first.set(key, own);
      kept.push(own);
    }
  }
  return kept;
}

function rankedList(title, rows, kind, part) {
  if (!rows.length) return el("p", { class: "muted" }, `${title}: none is known.`);
  const own = foldedRows(rows).slice(0, state.attribution.show);
  const greatest = Math.max(...rows.map((row) => Math.abs(row.score)));
  const items = own.map((row) => el("li", { class: `ranked ${kind}` },
    el("div", { class: "score" }, el("strong", {}, signed(row.score)), meter(greatest ? Math.abs(row.score) / greatest : 0, `${percent(greatest ? Math.abs(row.score) / greatest : 0)} of the greatest`), predicted(row, part.trust)),
    el("div", { class: "what" }, idView(row.id), exampleView(ownValue(part.examples, String(row.id)), row.tokens), sharesView(row, part.layers), othersView(row, part))));
  return el("div", {}, el("h3", {}, title), el("ol", { class: "ranking" }, items));
}

/** What leaving the example out would change, by first order. */
function predicted(row, trust) {
  if (!trust.predicts) return null;
  const change = row.score / trust.examples;
  return el("span", { class: "muted" }, `predicted without it: loss ${signed(change)}`);
}

function sharesView(row, layers) {
  if (!row.layers || !layers.length) return null;
  const total = row.layers.reduce((sum, value) => sum + Math.abs(value), 0);
  if (!total) return null;
  const parts = layers.map((name, at) => ({ name, value: row.layers[at], at })).sort((x, y) => Math.abs(y.value) - Math.abs(x.value));
  const most = parts.slice(0, 3).map((each) => ({ at: each.at, text: `${named(each.name)} ${percent(Math.abs(each.value) / total)}${each.value < 0 !== row.score < 0 ? " (against)" : ""}` }));
  const text = most.map((each) => each.text).join(", ");
  const bar = el("div", { class: "shares", role: "img", "aria-label": `Shares of layers: ${shown(text)}` });
  for (const each of parts) {
    const piece = el("span", { class: `c${each.at % PALETTE}`, title: `${named(each.name)} ${num(each.value)}` });
    piece.style.width = `${(100 * Math.abs(each.value)) / total}%`;
    bar.append(piece);
  }
  const key = most.map((each) => el("span", { class: "layer" }, el("span", { class: `dot c${each.at % PALETTE}`, "aria-hidden": "true" }), each.text));
  return el("div", { class: "layers muted" }, bar, key, parts.length > 3 ? `and ${num(parts.length - 3)} more` : null);
}

function othersView(row, part) {
  if (!row.others.length) return null;
  return el("details", {}, el("summary", {}, `${plural(row.others.length, "near-duplicate")} folded`), el("ul", {}, row.others.map((other) => el("li", {}, idView(other.id), ` ${signed(other.score)} `, exampleView(ownValue(part.examples, String(other.id)))))));
}

function groupsView(part, query, draw) {
  const a = state.attribution;
  const names = Object.keys(query.groups);
  if (!names.includes(a.column)) [a.column] = names;
  const t = part.trust;
  const effect = (sum) => (t.predicts ? signed(sum / t.examples) : "");
  const columns = [
    { label: a.column, value: ([name]) => name, cell: ([name]) => String(name) },
    { label: "examples", value: ([, count]) => count, cell: ([, count]) => num(count), right: true },
    { label: "sum of scores", value: ([, , sum]) => sum, cell: ([, , sum]) => signed(sum), right: true },
    { label: "mean", value: ([, count, sum]) => sum / count, cell: ([, count, sum]) => signed(sum / count), right: true },
    ...(t.predicts ? [{ label: "predicted loss without the group", value: ([, , sum]) => sum, cell: ([, , sum]) => effect(sum), right: true }] : []),
  ];
  return el("div", {}, el("h3", {}, "Groups of examples"),
    field("Column", select(names.map((name) => [name, name]), a.column, (value) => { a.column = value; draw(); })),
    dataTable(columns, query.groups[a.column], { caption: `Groups by ${named(a.column)}`, page: 12, sort: [2, true] }),
    t.predicts ? el("p", { class: "muted" }, "Predicted to first order, not measured: what leaving out the whole group adds to the loss of the query. It is rough for large groups.") : null);
}

/** Texts that share rare words with the query, beside those that influence finds. */
function lexicalView(part, query) {
  const ours = new Set(query.helpful.slice(0, 10).map((row) => row.id));
  const first = query.lexical.slice(0, 10);
  const shared = first.filter(([id]) => ours.has(id)).length;
  const items = first.map(([id, score]) => el("li", { class: "ranked" }, el("div", { class: "score" }, el("strong", {}, num(score))), el("div", { class: "what" }, idView(id), ours.has(id) ? el("span", { class: "badge" }, "also among the most helpful") : null, exampleView(ownValue(part.examples, String(id))))));
  return el("details", {}, el("summary", {}, `Texts with the same words (BM25): ${shared} of the first ${first.length} are among the 10 most helpful`),
    el("p", { class: "muted" }, "A baseline without the model. Influence and similarity differ: by these scores, what is only here looks like the query, but is not why the model behaves so."),
    el("ol", { class: "ranking" }, items));
}
