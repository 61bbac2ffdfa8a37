// Traffic between the versions of models: weights, shadows, and what the guard of a promotion did and why.

import { json } from "./api.js";
import { h, section, setText, table } from "./dom.js";
import { shown } from "./units.js";

const EVERY = 2000;
const MOST = 20;
const STEPS = ["traffic_changed", "promotion_step", "promoted", "rolled_back", "default_changed"];

const time = (text) => new Date(text).toLocaleTimeString("en-GB");
const percent = (share) => shown(100 * share, "%");
const sumOf = (values) => values.reduce((total, value) => total + value, 0);
const rowOf = (head, ...cells) => h("tr", {}, h("th", { scope: "row" }, head), ...cells.map((each) => h("td", {}, each)));

function weights({ effective, weights: plan = {}, shadow = {}, default: byDefault }) {
  const versions = [...new Set([...Object.keys(effective), ...Object.keys(plan), ...Object.keys(shadow)])];
  const rows = versions.map((version) => {
    const now = effective[version] ?? 0;
    const bar = h("meter", { min: "0", max: "100", value: String(now), "aria-label": `Share of ${version}` });
    return rowOf(`${version}${version === byDefault ? " (default)" : ""}`, h("span", {}, bar, ` ${shown(now, "%")}`),
      version in plan ? shown(plan[version], "%") : "–", shadow[version] ? `${shown(shadow[version].percent, "%")} of copies` : "–");
  });
  return h("div", { class: "wide", tabindex: "0" }, table(["Version", "Gets now", "Weight", "Shadow"], rows, "Weights"));
}

function promotion({ promotion: report, promote, weights: plan = {} }) {
  if (!report) return [];
  const lines = [h("p", {}, h("b", {}, report.state === "watching" ? `${report.version} is being promoted` : `${report.version}: ${report.state}`),
    ` since ${time(report.since)}, in place of ${report.base}. `, report.reason ?? "")];
  if (promote) {
    const now = plan[report.version] ?? 0;
    const steps = promote.steps ?? [1, 5, 25, 50, 100];
    lines.push(h("ol", { class: "steps", "aria-label": "Steps" }, ...steps.map((step) =>
      h("li", { "data-state": step <= now ? "past" : step === report.next ? "next" : "" }, shown(step, "%")))));
    const bounds = [["errors", "failed", report.failed, report.answers],
      ["p99_ratio", "too slow", report.slow, report.answers], ["agreement", "differed", report.differed, report.compared]]
      .filter(([name, , bad]) => promote[name] !== undefined && bad !== undefined && bad !== null)
      .map(([name, text, bad, of]) => `${bad} of ${of} ${text} (${name} ${promote[name]})`);
    lines.push(h("p", { class: "quiet" },
      `At this step ${report.answers ?? 0} of ${promote.after ?? 10000} answers: ${bounds.join(", ") || "nothing yet"}.`));
  }
  return lines;
}

function shadow(version, { percent: copies, compare, agreement, copies: outcomes, latency, differences, failed }) {
  const counts = Object.entries(outcomes).filter(([, count]) => count).map(([name, count]) => `${count} ${name.replace("_", " ")}`);
  const of = (side) => (latency ? `${shown(latency[side].p50, "ms")} / ${shown(latency[side].p99, "ms")}` : "–");
  const rows = (differences ?? []).map((each) => h("tr", {}, h("th", { scope: "row", class: "mono" }, each.requestId),
    h("td", {}, each.reason, each.bodies ? h("details", {}, h("summary", {}, "Bodies"),
      ...Object.entries(each.bodies).map(([side, body]) => h("pre", { tabindex: "0", "aria-label": `${side} of ${each.requestId}` }, body))) : null),
    h("td", {}, `${each.status.primary} / ${each.status.shadow}`),
    h("td", {}, `${shown(each.latency.primary, "ms")} / ${shown(each.latency.shadow, "ms")}`)));
  return [
    h("p", {}, h("b", {}, `Shadow ${version}: `), agreement === undefined || agreement === null
      ? "nothing compared yet" : `${percent(agreement)} of compared answers agree (${compare})`,
      `. Copies of ${shown(copies, "%")} of the requests: ${counts.join(", ") || "none"}; ${failed} failed where the other did not. `
      + `p50 / p99 ${of("primary")}, of the shadow ${of("shadow")}.`),
    rows.length ? h("div", { class: "wide", tabindex: "0" }, table(["Request", "Difference", "Status", "Latency"], rows, `Answers of ${version} that differ`)) : null,
  ];
}

class Rollout {
  constructor(name) {
    this.name = name;
    this.body = h("div", { class: "rollout" });
    this.element = section(name, this.body);
    this.text = "";
  }

  // Unfolded bodies stay as they are while nothing changes.
  async read() {
    const path = `models/${encodeURIComponent(this.name)}`;
    const query = new URLSearchParams({ model: this.name, limit: "200" });
    const [traffic, { shadows }, { events }] = await Promise.all(
      [json(`${path}/traffic`), json(`${path}/shadow`), json(`events?${query}`).catch(() => ({ events: [] }))]);
    const text = JSON.stringify([traffic, shadows, events]);
    if (text === this.text || this.body.querySelector("details[open]")) return;
    this.text = text;
    const steps = events.filter((event) => STEPS.includes(event.kind)).slice(-10).reverse();
    this.body.replaceChildren(...[weights(traffic), ...promotion(traffic),
      steps.length ? h("ul", { class: "events", "aria-label": "Steps and changes" }, ...steps.map((event) =>
        h("li", { "data-level": event.level }, h("span", { class: "quiet" }, `${time(event.time)} `), event.message.replace(`Model ${this.name}: `, "")))) : null,
      ...Object.entries(shadows).flatMap(([version, each]) => shadow(version, each)),
    ].filter(Boolean));
  }
}

export class View {
  constructor({ versions, guarded }) {
    Object.assign(this, { versions, guarded, title: "Rollouts", rollouts: new Map(), timer: 0, isOver: false });
    this.note = h("p", { class: "quiet", role: "status" });
    this.list = h("div", { class: "list" });
    this.elements = [h("div", { class: "title-row" }, h("h2", {}, this.title), this.note), this.list];
    this.look();
  }

  async look() {
    if (document.visibilityState === "visible") await this.read();
    if (!this.isOver) this.timer = setTimeout(() => this.look(), EVERY);
  }

  async read() {
    const all = [...new Set([...this.versions.values()].filter(({ row }) => row && row.traffic !== null).map(({ row }) => row.name))].sort();
    const names = all.slice(0, MOST);
    const text = names.length ? "" : "No model divides its requests among versions, has a shadow, or is being promoted.";
    setText(this.note, all.length > MOST ? `${sumOf([all.length, -MOST])} more models are not shown.` : text);
    for (const [name, each] of this.rollouts) {
      if (names.includes(name)) continue;
      each.element.remove();
      this.rollouts.delete(name);
    }
    for (const name of names) {
      if (!this.rollouts.has(name)) {
        this.rollouts.set(name, new Rollout(name));
        this.list.append(this.rollouts.get(name).element);
      }
      try {
        await this.guarded(() => this.rollouts.get(name).read());
      } catch (error) {
        setText(this.note, error.message);
      }
      if (this.isOver) return;
    }
  }

  close() {
    this.isOver = true;
    clearTimeout(this.timer);
  }
}
