// The plots of one version, or of all: live, or of a range.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { h, setText } from "./dom.js";
import { shown } from "./units.js";

// Seconds: what is shown grows with what there is.
const SHORTEST = 60;
const LONGEST = 300;
const HEIGHT = 132;
const PLOTS = [
  { title: "Requests/s", unit: "", lines: [["rate", "answered"], ["lost", "lost", "second"], ["errors", "errors", "bad"]] },
  { title: "Latency", unit: "ms", lines: [["p50", "p50"], ["p99", "p99", "second"]] },
  { title: "Queue wait", unit: "ms", lines: [["queue50", "p50"], ["queue99", "p99", "second"]] },
  { title: "Handling", unit: "ms", lines: [["handler50", "p50"], ["handler99", "p99", "second"]] },
  { title: "Batch size", unit: "", lines: [["size", "mean"]] },
  { title: "Fill, workers", unit: "%", most: 100, lines: [["fill", "full"], ["busy", "busy", "second"]] },
  { title: "Tokens/s", unit: "", of: "tokensOut", lines: [["tokensOut", "out"], ["tokensIn", "in", "second"]] },
  { title: "First token", unit: "ms", of: "first50", lines: [["first50", "p50"], ["first99", "p99", "second"]] },
  { title: "Between tokens", unit: "ms", of: "interval50", lines: [["interval50", "p50"], ["interval99", "p99", "second"]] },
  { title: "Streams", unit: "", of: "streams",
    lines: [["streams", "open"], ["engineRunning", "running", "second"], ["engineWaiting", "waiting", "bad"]] },
  { title: "Cache", unit: "%", most: 100, of: "cache", lines: [["cache", "used"], ["hits", "hits", "second"]] },
];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

class Plot {
  constructor(spec, owner) {
    this.spec = spec;
    this.owner = owner;
    this.values = spec.lines.map(() => h("b", {}, "–"));
    this.place = h("div", { class: "plot-area" });
    const legend = spec.lines.map(([, label, style], index) =>
      h("span", { class: `key ${style ?? "first"}` }, `${label} `, this.values[index]));
    this.element = h("figure", { class: "plot" },
      h("figcaption", {}, h("span", { class: "title" }, spec.title), h("span", { class: "keys" }, ...legend)),
      this.place);
    // Those of a series that only some models have.
    this.element.hidden = Boolean(spec.of);
    this.chart = null;
  }

  fit() {
    if (this.element.hidden) return;
    const width = Math.max(160, this.place.clientWidth);
    if (!this.chart) this.draw();
    else if (this.chart.width !== width) this.chart.setSize({ width, height: HEIGHT });
  }

  draw() {
    this.chart?.destroy();
    const { spec } = this;
    const grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: colour("quiet"), grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const { range } = this.owner;
    const clock = new Intl.DateTimeFormat("en-GB",
      { hour: "2-digit", minute: "2-digit", second: range ? undefined : "2-digit" });
    this.chart = new uPlot({
      width: Math.max(160, this.place.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 24, 0, 0],
      cursor: { sync: { key: "console" }, drag: { x: Boolean(range), y: false, setScale: false }, points: { size: 5 } },
      scales: {
        x: { range: () => this.window() },
        y: { range: (_, low, high) => [0, spec.most ?? Math.max(high * 1.15, spec.unit ? 1 : 2)] },
      },
      axes: [
        { ...axis, space: 72, size: 24, values: (_, ticks) => ticks.map((tick) => clock.format(tick * 1e3)) },
        { ...axis, size: 42, space: 30, values: (_, ticks) => ticks.map((tick) => compact(tick)) },
      ],
      series: [{}, ...spec.lines.map(([, , style]) => ({
        stroke: colour(style ?? "first"), width: 1.6, points: { size: 4 },
        fill: style ? undefined : `${colour("first")}1c`,
      }))],
      hooks: { setCursor: [(chart) => this.tell(chart.cursor.idx)], setSelect: [(chart) => this.drag(chart)] },
    }, this.data ?? [[], ...spec.lines.map(() => [])], this.place);
  }

  // Each plot is told what was dragged over one of them.
  drag(chart) {
    const { left, width } = chart.select;
    if (width < 8) return;
    const [from, to] = [left, left + width].map((at) => chart.posToVal(at, "x"));
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.owner.zoom?.(from, to);
  }

  window() {
    if (this.owner.range) return this.owner.range;
    const now = Date.now() / 1e3;
    const since = this.data?.[0].length ? now - this.data[0][0] : 0;
    return [now - Math.min(LONGEST, Math.max(SHORTEST, since)), now];
  }

  update(history) {
    if (this.spec.of && this.element.hidden === history.has(this.spec.of)) {
      this.element.hidden = !this.element.hidden;
      this.fit();
    }
    if (this.element.hidden) return;
    this.data = [history.times, ...this.spec.lines.map(([name]) => history.series[name])];
    this.chart?.setData(this.data);
    if (this.chart?.cursor.idx == null) this.tell(null);
  }

  tell(index) {
    if (!this.data) return;
    const at = index ?? this.data[0].length - 1;
    this.values.forEach((value, line) => setText(value, shown(this.data[line + 1][at], this.spec.unit)));
  }
}

const compact = (value) => (value >= 1e4 ? `${value / 1e3}k` : String(+value.toPrecision(3)));

// `zoom` is called with the ends of what is dragged over, in seconds since the epoch.
export class Plots {
  constructor(zoom) {
    this.zoom = zoom;
    // The ends of the range; null: live.
    this.range = null;
    this.plots = PLOTS.map((spec) => new Plot(spec, this));
    this.element = h("div", { class: "plots", role: "group", "aria-label": "Plots" },
      ...this.plots.map((plot) => plot.element));
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.plots.forEach((plot) => plot.chart && plot.draw());
    this.scheme.addEventListener("change", this.redraw);
    this.sizes = new ResizeObserver(() => this.plots.forEach((plot) => plot.fit()));
    this.sizes.observe(this.element);
  }

  update(history) {
    this.plots.forEach((plot) => plot.update(history));
  }

  // Shows what was between these times, or with null what comes.
  show(range) {
    const isOther = Boolean(range) !== Boolean(this.range);
    this.range = range;
    if (isOther) this.redraw();
  }

  close() {
    this.scheme.removeEventListener("change", this.redraw);
    this.sizes.disconnect();
    this.plots.forEach((plot) => plot.chart?.destroy());
  }
}
