// Tables that can be searched, sorted and paged, with the keyboard as well.

/**
 * columns: [{label, value: row => number or text, cell: row => node or text, right, wide}]
 * options: {caption, page, search, sort: [column, descending], empty}
 */
function dataTable(columns, rows, options) {
  const chosen = { search: "", sort: null, down: false, page: 0, ...(options.keep || {}) };
  if (options.sort && chosen.sort === null) [chosen.sort, chosen.down] = options.sort;
  const size = options.page || 25;
  const body = el("tbody");
  const heads = columns.map((column, at) => head(column, at));
  const pager = el("div", { class: "pager" });
  const table = el("table", {}, el("caption", { class: "visually-hidden" }, options.caption), el("thead", {}, el("tr", {}, heads)), body);
  const box = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.caption }, table);
  const search = el("input", { type: "search", placeholder: "Search", value: chosen.search, oninput: () => { chosen.search = search.value; chosen.page = 0; draw(); } });

  function head(column, at) {
    const button = el("button", { type: "button", class: "sort", onclick: () => sortBy(at) }, named(column.label));
    return el("th", { scope: "col", class: headClass(column.label, column.right, at === (options.header ?? 0)) }, column.value ? button : named(column.label));
  }

  function sortBy(at) {
    chosen.down = chosen.sort === at ? !chosen.down : Boolean(columns[at].right);
    chosen.sort = at;
    chosen.page = 0;
    draw();
  }

  function ordered() {
    const wanted = chosen.search.trim().toLowerCase();
    let found = rows;
    if (wanted) found = found.filter((row) => columns.some((c) => c.value && String(c.value(row)).toLowerCase().includes(wanted)));
    if (chosen.sort === null) return found;
    const key = columns[chosen.sort].value;
    const sign = chosen.down ? -1 : 1;
    return [...found].sort((a, b) => sign * compare(key(a), key(b)));
  }

  function draw() {
    if (options.keep) Object.assign(options.keep, chosen);
    const found = ordered();
    const pages = Math.max(1, Math.ceil(found.length / size));
    chosen.page = Math.min(chosen.page, pages - 1);
    const some = found.slice(chosen.page * size, (chosen.page + 1) * size);
    clear(body);
    for (const row of some) {
      body.append(el("tr", {}, columns.map((column, at) => {
        const content = column.cell ? column.cell(row) : column.value(row);
        const shape = [column.right && "right", column.wide && "wide"].filter(Boolean).join(" ") || null;
        return at === (options.header ?? 0) ? el("th", { scope: "row", class: shape }, rowName(content)) : el("td", { class: shape }, content);
      })));
    }
    if (!some.length) body.append(el("tr", {}, el("td", { colspan: columns.length, class: "muted" }, options.empty || "Nothing.")));
    heads.forEach((th, at) => th.setAttribute("aria-sort", chosen.sort === at ? (chosen.down ? "descending" : "ascending") : "none"));
    drawPager(pager, chosen.page, pages, found.length, (page) => { chosen.page = page; draw(); });
  }

  draw();
  const wanted = options.search !== false && rows.length > 5;
  return el("div", { class: "data-table" }, wanted ? field(options.search || "Search", search) : null, box, pager);
}

/** Long names of columns are broken, short ones are not. */
const headClass = (label, right, first) => [right && "right", String(label).length > 28 && "long", first && "first"].filter(Boolean).join(" ") || null;

/** What a row is called: a text may be broken behind its separators. */
const rowName = (content) => (typeof content === "string" ? breakable(content) : content);

function drawPager(node, page, pages, total, go) {
  clear(node);
  if (pages < 2) return;
  const button = (label, to, off) => el("button", { type: "button", class: "quiet", disabled: off, onclick: () => go(to) }, label);
  add(node, [button("Previous", page - 1, page === 0), el("span", {}, `Page ${page + 1} of ${pages}, ${num(total)} in all`), button("Next", page + 1, page >= pages - 1)]);
}

function compare(a, b) {
  const odd = (x) => x === null || x === undefined || x === "" || Number.isNaN(x);
  if (odd(a) || odd(b)) return odd(a) - odd(b);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/** A small table without controls: rows of cells, the first one a heading. */
function plainTable(caption, labels, rows, right) {
  const isRight = (at) => (right || []).includes(at);
  const cells = (row) => row.map((cell, at) => (at === 0 ? el("th", { scope: "row" }, rowName(cell)) : el("td", { class: isRight(at) ? "right" : null }, cell)));
  const header = labels.map((label, at) => el("th", { scope: "col", class: headClass(label, isRight(at), at === 0) }, named(label)));
  const table = el("table", {}, el("caption", { class: "visually-hidden" }, caption), el("thead", {}, el("tr", {}, header)), el("tbody", {}, rows.map((row) => el("tr", {}, cells(row)))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
}
