// Elements, numbers and downloads. Text only ever becomes a text node, never markup.

// What a terminal gets escaped as well: control and format characters, odd line ends, and letters without a shape.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u034f\u115f\u1160\u3164\uffa0]/gu;
const KEPT = "\t\n\u200c\u200d"; // line breaks of texts, and what joins words and emoji

/** Make control characters and direction marks visible, so that text cannot pretend. */
function shown(text) {
  return String(text).replace(HIDDEN, (c) => {
    if (KEPT.includes(c)) return c;
    const code = c.codePointAt(0).toString(16);
    return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
  });
}

const LONG_NAME = 160; // letters; longer names are cut in the middle, or they would fill the page

/** A name or an id, on one line; in quotes if it is empty, or has blanks at an end. */
function named(text) {
  const letters = [...quoted(text)];
  if (letters.length <= LONG_NAME) return letters.join("");
  return `${letters.slice(0, LONG_NAME - 60).join("")}…${letters.slice(-59).join("")}`;
}

/** The same, but never cut: for data. */
function quoted(text) {
  const line = shown(text).replaceAll("\n", "\\n").replaceAll("\t", "\\t");
  return line.trim() === line && line ? line : `"${line}"`;
}

/** A name that is short enough for a place beside others. */
function short(text, most = 20) {
  const line = named(text);
  const letters = [...line];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : line;
}

/** The value of a key that came from outside, such as "constructor"; undefined if there is none. */
const ownValue = (object, key) => (Object.hasOwn(object, key) ? object[key] : undefined);

/** An id; a short one stays on one line, where a narrow table would break it between any two characters. */
function idView(id) {
  const text = named(id);
  const whole = quoted(id);
  return el("code", { class: text.length > 12 ? "id" : "id one-line", title: whole === text ? null : whole }, text);
}

/** Create an element: el("p", {class: "muted", onclick: f}, "text", child). */
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(shown(child)));
  }
  return node;
}

/** A name or path that may be broken behind its separators. */
function breakable(text) {
  const pieces = named(text).split(/(?<=[/._:-])/);
  return pieces.flatMap((piece, at) => (at ? [document.createElement("wbr"), piece] : [piece]));
}

function clear(node) {
  node.replaceChildren();
  return node;
}

let lastId = 0;
const newId = (prefix) => `${prefix}-${++lastId}`;

/** A labelled control: the label is read with it. */
function field(label, control, hint) {
  const id = control.id || (control.id = newId("field"));
  return el("div", { class: "field" }, el("label", { for: id }, label), control, hint ? el("span", { class: "hint" }, hint) : null);
}

function select(options, value, onchange) {
  const node = el("select", { onchange: () => onchange(node.value) });
  for (const [key, label] of options) node.append(el("option", { value: key, selected: key === value }, named(label)));
  return node;
}

function toggle(label, checked, onchange) {
  const box = el("input", { type: "checkbox", id: newId("check"), checked, onchange: () => onchange(box.checked) });
  return el("div", { class: "check" }, box, el("label", { for: box.id }, label));
}

/** What tells a control apart from the others of a view, also after the view is drawn anew. */
function controlKey(node) {
  const label = node.getAttribute("aria-label") || node.labels?.[0]?.textContent || node.textContent;
  return `${node.tagName} ${node.type || ""} ${label}`;
}

/** Call act, which may replace the control that has the focus by another one with the same label. */
async function keepingFocus(root, act) {
  const before = document.activeElement;
  const inside = before && before !== document.body && root.contains(before);
  const key = inside && controlKey(before);
  const at = inside && before.type === "search" ? [before.selectionStart, before.selectionEnd] : null;
  await act();
  if (!inside || before.isConnected) return;
  const after = [...root.querySelectorAll("button, input, select, summary, [tabindex]")].find((node) => controlKey(node) === key);
  after?.focus({ preventScroll: true });
  if (after && at) after.setSelectionRange(...at);
}

function announce(text) {
  document.getElementById("announce").textContent = shown(text);
}

// -- numbers

function num(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return shown(value);
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e6 ? String(Number(value.toPrecision(4))) : value.toExponential(3);
}

const signed = (value) => (value > 0 ? "+" : "") + num(value);
const percent = (share) => `${num(Math.round(share * 1000) / 10)} %`;
const plural = (count, one, many) => `${num(count)} ${count === 1 ? one : many || one + "s"}`;

function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (size >= 999.5 && at < units.length - 1) { size /= 1000; at += 1; }
  return `${at ? size.toFixed(1) : size} ${units[at]}`;
}

function ago(iso) {
  if (!iso) return "";
  const seconds = (Date.now() - Date.parse(iso)) / 1000;
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return iso.slice(0, 10);
}

function duration(seconds) {
  if (seconds === null || Number.isNaN(seconds)) return "";
  if (seconds < 1) return "< 1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

const date = (iso) => (iso ? iso.slice(0, 16).replace("T", " ") + " UTC" : "");

function badge(state) {
  return el("span", { class: `badge state-${/^[a-z]+$/.test(state) ? state : "other"}` }, state);
}

function problem(text) {
  return el("p", { class: "note warn", role: "note" }, text);
}

/** Save a file from the page itself. */
function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type: type || "text/plain" }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
  announce(`Saved ${name}`);
}

// As `guarded` of sawlog/_text.py: spreadsheets must not evaluate what is text.
const FORMULA = /^'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;
const NUMBER = /^([+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|Infinity))$/;

function csvCell(value) {
  let text = value === null || value === undefined ? "" : String(value);
  if (typeof value === "string" && FORMULA.test(text) && !NUMBER.test(text)) text = "'" + text;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const csv = (rows) => rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
