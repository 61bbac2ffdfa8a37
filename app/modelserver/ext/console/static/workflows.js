// Workflows, each as one thing: its graph, and how the models of its nodes do.

import { json } from "./api.js";
import { h, section, setText, table } from "./dom.js";
import { worstOf } from "./overview.js";
import { shown } from "./units.js";
import { stateLabel } from "./workers.js";

const EVERY = 10_000;
const HEADINGS = ["Node", "State", "Requests/s", "Errors/s", "p50", "p99", "Waiting", "Workers", "Then"];

// TorchServe's form: {clean=[kind, mood], kind=[join]}.
export function edgesOf(dag) {
  const pairs = dag.slice(1, -1).matchAll(/([^\s,=[\]][^=[\]]*)=\[([^\]]*)\]/g);
  return new Map([...pairs].map(([, name, targets]) => [name, targets.split(",").map((each) => each.trim()).filter(Boolean)]));
}

class Workflow {
  constructor(described, select) {
    const edges = edgesOf(described.workflowDag);
    this.nodes = described.nodes.map((node) => {
      const cells = HEADINGS.slice(1).map((title) => h("td", { "data-title": title }));
      setText(cells.at(-1), (edges.get(node.name) ?? []).join(", ") || "the answer");
      const link = h("a", { href: "#main", onclick: (event) => {
        event.preventDefault();
        select(this.keyOf(node));
      } }, node.name);
      return { node, cells, state: "", element: h("tr", {}, h("th", { scope: "row" }, link), ...cells) };
    });
    this.state = h("span", {});
    this.word = "";
    this.about = h("p", { class: "quiet" }, described.workflowUrl);
    this.element = section(described.workflowName, h("div", { class: "title-row" }, this.state, this.about),
      h("div", { class: "wide" }, table(HEADINGS, this.nodes.map((each) => each.element), `Nodes of ${described.workflowName}`)));
    this.element.querySelector("table").classList.add("overview");
  }

  keyOf(node) {
    return [...this.versions.keys()].find((key) => this.versions.get(key).row?.name === node.model);
  }

  update(versions) {
    this.versions = versions;
    const states = [];
    for (const each of this.nodes) {
      const known = versions.get(this.keyOf(each.node));
      if (!known) continue;
      const { row, brief } = known;
      states.push(row.state);
      const errors = brief.errorRate();
      const texts = [shown(brief.rate, "/s"), errors ? shown(errors, "/s") : "0", shown(brief.p50, "ms"), shown(brief.p99, "ms"),
        String(brief.waiting), `${row.ready} of ${row.wished}`];
      texts.forEach((text, index) => setText(each.cells[index + 1], text));
      each.cells[2].className = errors ? "rate bad" : "";
      if (each.state !== row.state) each.cells[0].replaceChildren(stateLabel(row.state));
      each.state = row.state;
    }
    const word = worstOf(states) ?? "ready";
    if (word !== this.word) this.state.replaceChildren(stateLabel(word));
    this.word = word;
  }
}

export class View {
  constructor({ versions, guarded, select }) {
    Object.assign(this, { versions, guarded, select, title: "Workflows", text: "", workflows: [], timer: 0, isOver: false });
    this.note = h("p", { class: "quiet", role: "status" });
    this.list = h("div", { class: "list" });
    this.elements = [h("div", { class: "title-row" }, h("h2", {}, this.title), this.note), this.list];
    this.look();
  }

  async look() {
    try {
      if (document.visibilityState === "visible") await this.read();
    } catch (error) {
      setText(this.note, error.message);
    }
    if (!this.isOver) this.timer = setTimeout(() => this.look(), EVERY);
  }

  async read() {
    const { workflows } = await this.guarded(() => json("workflows?limit=100"));
    const described = await Promise.all(workflows.map(({ workflowName }) =>
      this.guarded(() => json(`workflows/${encodeURIComponent(workflowName)}`)).catch(() => [])));
    const text = JSON.stringify(described);
    setText(this.note, workflows.length ? "" : "No workflows are registered.");
    if (text === this.text || this.isOver) return;
    this.text = text;
    this.workflows = described.flat().map((each) => new Workflow(each, this.select));
    this.list.replaceChildren(...this.workflows.map((each) => each.element));
    this.update();
  }

  update() {
    for (const each of this.workflows) each.update(this.versions);
  }

  close() {
    this.isOver = true;
    clearTimeout(this.timer);
  }
}
