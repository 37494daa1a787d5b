// Charts by plotly: drawn when they come into view, in the colours of the theme.

const PALETTE = 10;
const DASHES = ["solid", "dash", "dot", "dashdot"];
const drawn = new Set();

let loading = null;

/** Plotly, which is large: it runs when the first chart comes into view. */
function plotly() {
  loading ||= new Promise((done, failed) => {
    const script = document.createElement("script");
    const source_ = document.getElementById("plotly");
    if (source_) {
      script.textContent = source_.textContent;
      document.head.append(script);
      done();
      return;
    }
    script.src = `${source.base}plotly.js`;
    script.onload = done;
    script.onerror = () => failed(new Error("The server does not answer."));
    document.head.append(script);
  });
  return loading;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (at) => css(`--c${at % PALETTE}`);
const dash = (at) => DASHES[Math.floor(at / PALETTE) % DASHES.length];

/** Text for plotly, which would read tags and %{...} in it. */
function plotText(text) {
  return shown(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("%{", "%\u200b{");
}

function faded(hex, share) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${share})`;
}

const watcher = new IntersectionObserver((seen) => {
  for (const entry of seen) {
    if (!entry.isIntersecting) continue;
    watcher.unobserve(entry.target);
    entry.target.dispatchEvent(new Event("visible"));
  }
}, { rootMargin: "200px" });

let turn = Promise.resolve();

/** Call act in a frame of its own, so that many charts do not keep people from scrolling. */
function inTurn(act) {
  turn = turn.then(() => new Promise((done) => {
    requestAnimationFrame(() => {
      try {
        act();
      } finally {
        done();
      }
    });
  }));
}

function layoutOf(layout) {
  const axis = { gridcolor: css("--line"), zerolinecolor: css("--line-strong"), linecolor: css("--line-strong"), tickcolor: css("--line-strong"), automargin: true };
  const { xaxis, yaxis, ...rest } = layout;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: css("--ink") },
    margin: { l: 48, r: 12, t: 8, b: 36 },
    hovermode: "x unified",
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line-strong"), font: { color: css("--ink") } },
    showlegend: false,
    dragmode: "zoom",
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
    ...rest,
  };
}

/**
 * A figure with a chart. make() returns {traces, layout}; it is called again if the theme changes.
 * Returns the figure, with figure.redraw().
 */
function chart(title, make, options) {
  const plot = el("div", { class: "plot", role: "group", "aria-label": shown(options.label || title) });
  plot.classList.add(options.size || "medium");
  const figure = el("figure", { class: "chart" });
  const large = options.large && el("button", { type: "button", class: "enlarge", "aria-pressed": "false", "aria-label": `Enlarge ${shown(title)}`, title: "Enlarge", onclick: () => enlarge() }, "⤢");
  figure.addEventListener("keydown", (event) => { if (event.key === "Escape" && figure.classList.contains("enlarged")) enlarge(); });
  add(figure, [el("figcaption", {}, el("span", {}, title), large || null), plot, options.below || []]);
  const enlarge = () => {
    const on = figure.classList.toggle("enlarged");
    large.setAttribute("aria-pressed", String(on));
    if (visible) Plotly.Plots.resize(plot);
  };
  const config = { displaylogo: false, responsive: true, doubleClick: "reset", ...modeBar() };
  let visible = false;
  const draw = () => {
    const { traces, layout } = make();
    Plotly.react(plot, traces, layoutOf(layout), config);
  };
  plot.addEventListener("visible", async () => {
    await plotly();
    inTurn(() => {
      if (!plot.isConnected) return;
      visible = true;
      drawn.add(figure);
      draw();
    });
  });
  watcher.observe(plot);
  figure.redraw = () => { if (visible && plot.isConnected) draw(); };
  figure.plot = plot;
  return figure;
}

/**
 * The buttons of a chart. They are listed one by one: some versions of plotly have one that uploads
 * the chart. Without a mouse they would always cover the chart; a double tap resets it.
 */
function modeBar() {
  const buttons = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]];
  const displayModeBar = window.matchMedia("(hover: none)").matches ? false : "hover";
  return { modeBarButtons: buttons, displayModeBar, showSendToCloud: false, plotlyServerURL: "" };
}

function redrawCharts() {
  for (const figure of [...drawn]) {
    if (figure.isConnected) figure.redraw();
    else drop(figure);
  }
}

function drop(figure) {
  drawn.delete(figure);
  Plotly.purge(figure.plot);
}

/** Free the charts of a view that is left. */
function dropCharts(root) {
  for (const figure of [...drawn]) if (!figure.isConnected || root.contains(figure)) drop(figure);
}

/** Bars of a histogram with marks at some values: [{x, label, colour}]. */
function histogramChart(title, histogram, marks, options) {
  const { low, high, counts } = histogram;
  const log = Math.max(...counts) > 200; // otherwise a single example would not be seen
  const width = (high - low) / counts.length;
  const x = counts.map((_, i) => low + width * (i + 0.5));
  return chart(title, () => ({
    traces: [{ type: "bar", x, y: counts, width, marker: { color: css("--accent-soft"), line: { color: css("--accent"), width: 0.5 } }, hovertemplate: "%{y:,} examples near %{x:.4g}<extra></extra>" }],
    layout: {
      hovermode: "closest",
      bargap: 0,
      yaxis: { type: log ? "log" : "linear", dtick: log ? 1 : undefined, title: { text: "examples" }, rangemode: "tozero" },
      xaxis: { title: { text: options.x || "score" } },
      shapes: marks.map((mark) => ({ type: "line", x0: mark.x, x1: mark.x, yref: "paper", y0: 0, y1: 1, line: { color: css(mark.colour), width: 1.5, dash: "dot" } })),
      annotations: marks.filter((mark) => mark.label).map((mark) => ({ x: mark.x, yref: "paper", y: 1, yanchor: "top", xanchor: mark.side || "left", text: plotText(mark.label), showarrow: false, font: { size: 11, color: css(mark.colour) } })),
    },
  }), { size: "small", label: `${title}: ${num(counts.reduce((a, b) => a + b, 0))} values from ${num(low)} to ${num(high)}`, ...options });
}
