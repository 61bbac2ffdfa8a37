// All versions in one table, those with trouble first.

import { field, h, setText } from "./dom.js";
import { shown } from "./units.js";
import { stateLabel } from "./workers.js";

// Seconds over which errors are averaged, and after which figures are no longer compared.
const LATELY = 30;
const TROUBLE = ["failing", "failed", "retrying", "degraded"];
// Rows of the table, until there are to be more.
const PAGE = 100;
const HEADINGS = ["Model", "State", "Requests/s", "Errors/s", "p50", "p99", "Waiting", "Workers", "Memory", "Device", "Traffic"];

// The worst of these states, if one is of trouble, or else the first.
export const worstOf = (states) => TROUBLE.find((state) => states.includes(state)) ?? states[0];

// What the server sends of every version beside figures.
export function rowOf([name, version, state, isDefault, ready, wished, memory, device, traffic, errorAt, errorType]) {
  return { name, version, state, isDefault, ready, wished, memory, device, traffic, errorAt, errorType };
}

// The few figures that the server sends of every version.
export class Brief {
  constructor() {
    this.interrupt();
  }

  // The next counts are a new beginning.
  interrupt() {
    this.last = null;
    this.errors = [];
    Object.assign(this, { rate: null, waiting: 0, p50: null, p99: null });
  }

  add(at, [answered, , failed, waiting, p50, p99]) {
    const before = this.last;
    if (before && (answered < before.answered || at - before.at > LATELY)) this.interrupt();
    else if (before && at > before.at) {
      const seconds = at - before.at;
      this.rate = (answered - before.answered) / seconds;
      this.errors.push([at, (failed - before.failed) / seconds]);
      while (this.errors[0][0] <= at - LATELY) this.errors.shift();
    }
    Object.assign(this, { waiting, p50, p99, last: { at, answered, failed } });
  }

  // Errors per second, on average of the last while.
  errorRate() {
    return this.errors.reduce((total, [, rate]) => total + rate, 0) / (this.errors.length || 1);
  }
}

// In the order of the table: the worst state first, then who fails more, then whose requests wait.
export function byTrouble(entries) {
  const places = entries.map((entry) => {
    const { row, brief } = entry[1];
    const place = TROUBLE.indexOf(row.state);
    return [place < 0 ? TROUBLE.length : place, -brief.errorRate(), -brief.waiting, entry];
  });
  const inTurn = new Intl.Collator("en", { numeric: true }).compare;
  return places.sort((one, other) => one[0] - other[0] || one[1] - other[1] || one[2] - other[2]
    || inTurn(one[3][0], other[3][0])).map((place) => place[3]);
}

class Row {
  constructor(key, select) {
    this.link = h("a", { href: "#main", onclick: (event) => {
      event.preventDefault();
      select(key);
    } });
    this.version = h("span", { class: "quiet" });
    this.cells = HEADINGS.slice(1).map((title) => h("td", { "data-title": title }));
    this.element = h("tr", {}, h("th", { scope: "row" }, this.link, " ", this.version), ...this.cells);
    this.state = "";
  }

  update({ row, brief }) {
    setText(this.link, row.name);
    setText(this.version, row.version + (row.isDefault ? "" : ", not the default"));
    const [state, ...cells] = this.cells;
    if (this.state !== row.state) {
      this.state = row.state;
      state.replaceChildren(stateLabel(row.state));
    }
    const errors = brief.errorRate();
    const failed = errors ? shown(errors, "/s") : brief.rate === null ? "–" : "0";
    const texts = [shown(brief.rate, "/s"), row.errorType
      ? `${failed}, last at ${new Date(row.errorAt * 1e3).toLocaleTimeString("en-GB")}: ${row.errorType}` : failed,
      shown(brief.p50, "ms"), shown(brief.p99, "ms"), String(brief.waiting), `${row.ready} of ${row.wished}`,
      row.memory ? `${row.memory} MiB` : "–", row.device,
      row.traffic === null ? "–" : `${shown(row.traffic, "%")}`];
    texts.forEach((text, index) => setText(cells[index], text));
    cells[1].className = errors ? "rate bad" : "";
  }
}

export class Overview {
  constructor(versions, select, guarded) {
    this.guarded = guarded;
    this.plots = null;
    this.versions = versions;
    this.select = select;
    this.rows = new Map();
    this.most = PAGE;
    this.sum = h("p", { class: "quiet", role: "status" });
    this.name = h("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => {
      this.most = PAGE;
      this.update();
    } });
    this.body = h("tbody");
    this.more = h("button", { type: "button", hidden: true, onclick: () => {
      this.most += PAGE;
      this.update();
    } });
    this.table = h("table", { class: "overview" }, h("caption", { class: "hidden" }, "All models"),
      h("thead", {}, h("tr", {}, ...HEADINGS.map((text) => h("th", { scope: "col" }, text)))), this.body);
    this.elements = [h("div", { class: "title-row" }, h("h2", {}, "All models"), this.sum),
      h("div", { class: "filters" }, field("Filter by name", this.name)),
      h("div", { class: "card wide" }, this.table, this.more)];
    this.history = h("details", { class: "card", ontoggle: () => this.showHistory() }, h("summary", {}, "History of all models"));
    this.elements.push(this.history);
  }

  // Plots are large: they come when they are needed.
  async showHistory() {
    if (!this.history.open || this.plots) return;
    const { RangedPlots } = await import("./ranges.js");
    if (!this.history.isConnected) return;
    this.plots ??= new RangedPlots(this.guarded, () => "", false);
    this.history.append(this.plots.element);
  }

  update() {
    const text = this.name.value.trim().toLowerCase();
    const known = [...this.versions].filter(([, each]) => each.row);
    const chosen = known.filter(([, { row }]) => row.name.toLowerCase().includes(text));
    const trouble = known.filter(([, { row, brief }]) => TROUBLE.includes(row.state) || brief.errorRate()).length;
    setText(this.sum, `${chosen.length} of ${known.length}, ${trouble || "none"} with trouble`);
    const visible = this.arrange(byTrouble(chosen));
    for (const [key, each] of visible) {
      if (!this.rows.has(key)) this.rows.set(key, new Row(key, this.select));
      this.rows.get(key).update(each);
    }
    const left = chosen.length - visible.length;
    this.more.hidden = left <= 0;
    setText(this.more, `Show ${Math.min(PAGE, left)} more of ${left}`);
    this.place(visible.map(([key]) => key));
  }

  // The first rows. What is under the pointer, or has the focus, does not move away.
  arrange(sorted) {
    if (!this.body.matches(":hover, :focus-within")) return sorted.slice(0, this.most);
    const left = new Map(sorted);
    const still = [...this.rows.keys()].filter((key) => left.has(key)).map((key) => [key, left.get(key)]);
    return [...still, ...sorted.filter(([key]) => !this.rows.has(key))].slice(0, this.most);
  }

  place(keys) {
    const old = this.rows;
    this.rows = new Map(keys.map((key) => [key, old.get(key)]));
    const elements = [...this.rows.values()].map((row) => row.element);
    const now = [...this.body.children];
    if (elements.length === now.length && elements.every((each, index) => each === now[index])) return;
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    this.body.replaceChildren(...elements);
    focused?.focus({ preventScroll: true });
  }

  close() {
    this.plots?.close();
  }
}
