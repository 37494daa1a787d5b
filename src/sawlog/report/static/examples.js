// What an example looks like: text, tokens shaded by their scores, an image, columns.

/** data: {text, tokens, image, fields, cut}, or undefined; scores: one number for each token. */
function exampleView(data, scores) {
  if (!data) return el("span", { class: "muted" }, "not described");
  const parts = [];
  if (data.image) parts.push(el("img", { src: data.image, alt: data.text || "image of the example", class: "thumb", loading: "lazy" }));
  if (scores && data.tokens && data.tokens.length <= scores.length) parts.push(shadedTokens(data.tokens, scores));
  else if (data.text) parts.push(longText(data.text, data.cut));
  if (data.fields) parts.push(fieldsView(data.fields));
  return el("div", { class: "example" }, parts);
}

function longText(text, cut) {
  const limit = 280;
  if (text.length <= limit) return el("span", { class: "text" }, text, cut ? el("span", { class: "muted" }, " (cut off)") : null);
  const whole = el("span", { class: "text" }, text, cut ? el("span", { class: "muted" }, " (cut off)") : null);
  return el("details", { class: "text" }, el("summary", {}, text.slice(0, limit) + " …"), whole);
}

function fieldsView(fields) {
  const items = Object.entries(fields).map(([name, value]) => el("div", {}, el("dt", {}, named(name)), el("dd", {}, fieldText(value))));
  return el("dl", { class: "fields" }, items);
}

function fieldText(value) {
  if (value === null) return "none";
  return typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? num(value) : quoted(value);
}

function shadedTokens(tokens, scores) {
  const greatest = Math.max(...scores.map((s) => Math.abs(s)).filter(Number.isFinite), 0);
  const spans = tokens.map((token, at) => {
    const share = greatest ? scores[at] / greatest : 0;
    const level = Math.abs(share) < 0.05 ? 0 : Math.ceil(Math.abs(share) * 4);
    return el("span", { class: level ? `token ${share > 0 ? "helps" : "hurts"} level-${level}` : "token", title: `score ${num(scores[at])}` }, token);
  });
  return el("span", { class: "text tokens" }, spans);
}

/** Controls to split examples by a number each, and save the ids to keep and to drop. */
function keepOrDrop(overall, options) {
  const values = unpacked(overall.values);
  const missing = (at) => Number(Number.isNaN(values[at])); // what has no number is dropped last
  const order = values.map((_, at) => at).sort((a, b) => missing(a) - missing(b) || options.worst(values[a], values[b]));
  const number = el("input", { type: "number", min: "0", max: "100", step: "0.5", value: String(options.state.drop) });
  const told = el("p", { class: "muted", role: "status" });
  const count = () => Math.round((Math.min(100, Math.max(0, Number(number.value) || 0)) / 100) * order.length);
  const update = () => {
    options.state.drop = number.value;
    add(clear(told), [`Drop ${num(count())} and keep ${num(order.length - count())} of ${num(order.length)} examples.`]);
  };
  number.addEventListener("input", update);
  update();
  const save = (what) => {
    const out = new Set(order.slice(0, count()));
    const ids = what === "drop" ? order.slice(0, count()).map((at) => overall.ids[at]) : overall.ids.filter((_, at) => !out.has(at));
    // Large integers are texts on the page, because JavaScript would round them.
    const text = overall.kind === "int" ? `[${ids.join(",")}]` : JSON.stringify(ids);
    download(`${what}.json`, text + "\n", "application/json");
  };
  const table = () => download("scores.csv", csv([["id", options.column], ...overall.ids.map((id, at) => [id, values[at]])]), "text/csv");
  const buttons = [["Save ids to drop", () => save("drop")], ["Save ids to keep", () => save("keep")], ["Save all as CSV", table]];
  return el("section", { class: "card" },
    el("h2", {}, options.title),
    el("p", { class: "muted" }, options.about),
    el("div", { class: "row" }, field("Share to drop, in %", number), buttons.map(([label, act]) => el("button", { type: "button", onclick: act }, label))),
    told);
}
