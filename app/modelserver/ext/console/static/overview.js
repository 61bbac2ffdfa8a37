// All versions in one table, those with trouble first.

import { field, h, setText } from "./dom.js";
import { shown } from "./units.js";
import { stateLabel } from "./workers.js";

// Seconds over which errors are averaged, and after which figures are no longer compared.
const LATELY = 30;
const TROUBLE = ["failing", "failed", "retrying", "degraded"];
const HEADINGS = ["Model", "State", "Requests/s", "Errors/s", "p50", "p99", "Waiting", "Workers", "Memory", "Device", "Traffic"];

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

// The order of the table: the worst state first, then who fails more, then whose requests wait.
export function byTrouble(one, other) {
  const worst = ({ facts }) => {
    const place = TROUBLE.indexOf(facts.state);
    return place < 0 ? TROUBLE.length : place;
  };
  return worst(one) - worst(other) || other.brief.errorRate() - one.brief.errorRate()
    || other.brief.waiting - one.brief.waiting
    || one.facts.modelName.localeCompare(other.facts.modelName)
    || one.facts.modelVersion.localeCompare(other.facts.modelVersion);
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

  update({ facts, brief }) {
    setText(this.link, facts.modelName);
    setText(this.version, facts.modelVersion + (facts.default ? "" : ", not the default"));
    const [state, ...cells] = this.cells;
    if (this.state !== facts.state) {
      this.state = facts.state;
      state.replaceChildren(stateLabel(facts.state));
    }
    const errors = brief.errorRate();
    const last = facts.errors?.last;
    const ready = facts.workers.filter((worker) => worker.status === "READY").length;
    const memory = facts.workers.reduce((total, worker) => total + (worker.memoryUsage || 0), 0);
    const failed = errors ? shown(errors, "/s") : brief.rate === null ? "–" : "0";
    const texts = [shown(brief.rate, "/s"),
      last ? `${failed}, last at ${new Date(last.time).toLocaleTimeString("en-GB")}: ${last.type}` : failed,
      shown(brief.p50, "ms"), shown(brief.p99, "ms"), String(brief.waiting),
      `${ready} of ${Math.max(facts.autoscaling?.wish ?? 0, facts.minWorkers)}`,
      memory ? `${memory} MiB` : "–", facts.deviceType,
      facts.traffic?.effective === undefined ? "–" : `${shown(facts.traffic.effective, "%")}`];
    texts.forEach((text, index) => setText(cells[index], text));
    cells[1].className = errors ? "rate bad" : "";
  }
}

export class Overview {
  constructor(versions, select) {
    this.versions = versions;
    this.select = select;
    this.rows = new Map();
    this.sum = h("p", { class: "quiet", role: "status" });
    this.name = h("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => this.update() });
    this.body = h("tbody");
    this.table = h("table", { class: "overview" }, h("caption", { class: "hidden" }, "All models"),
      h("thead", {}, h("tr", {}, ...HEADINGS.map((text) => h("th", { scope: "col" }, text)))), this.body);
    this.elements = [h("div", { class: "title-row" }, h("h2", {}, "All models"), this.sum),
      h("div", { class: "filters" }, field("Filter by name", this.name)),
      h("div", { class: "card wide" }, this.table)];
  }

  update() {
    const text = this.name.value.trim().toLowerCase();
    const known = [...this.versions].filter(([, each]) => each.facts);
    const visible = known.filter(([, { facts }]) => facts.modelName.toLowerCase().includes(text));
    const trouble = known.filter(([, { facts, brief }]) => TROUBLE.includes(facts.state) || brief.errorRate()).length;
    setText(this.sum, `${visible.length} of ${known.length}, ${trouble || "none"} with trouble`);
    for (const [key, row] of this.rows) {
      if (!this.versions.has(key)) {
        row.element.remove();
        this.rows.delete(key);
      }
    }
    for (const [key, each] of visible) {
      if (!this.rows.has(key)) this.rows.set(key, new Row(key, this.select));
      this.rows.get(key).update(each);
    }
    this.arrange(visible);
  }

  // What is under the pointer, or has the focus, does not move away.
  arrange(visible) {
    const rows = visible.sort(([, one], [, other]) => byTrouble(one, other)).map(([key]) => this.rows.get(key).element);
    const now = [...this.body.children];
    const isSame = rows.length === now.length && new Set([...rows, ...now]).size === rows.length;
    if (isSame && (this.body.matches(":hover, :focus-within") || rows.every((row, index) => row === now[index]))) return;
    this.body.replaceChildren(...rows);
  }

  close() {}
}
