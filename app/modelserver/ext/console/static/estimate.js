// What would happen if: the simulator with the measured cost and arrivals, beside what was measured.

import { json } from "./api.js";
import { POLICIES } from "./change.js";
import { choice, field, folded, h, number, setText, table } from "./dom.js";
import { shown } from "./units.js";

const ROWS = [
  ["Answered", "rate", "/s", 1], ["Refused", "refused", "/s", 1], ["Batch size, mean", "batch", "", 1],
  ["Latency p50", "p50_ms", "ms", 1], ["Latency p99", "p99_ms", "ms", 1], ["Workers busy", "busy", "%", 100],
];

const lasting = (seconds) => (seconds < 600 ? `${Math.round(seconds)} s`
  : seconds < 36_000 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`);

export class Estimate {
  constructor(guarded, propose) {
    this.guarded = guarded;
    this.propose = propose;
    this.controls = {
      size: number({ min: "1", max: "1024" }),
      policy: choice(POLICIES),
      delay: number({ min: "0", max: "60000" }),
      workers: number({ min: "1", max: "64" }),
      factor: number({ min: "0.1", max: "100", step: "any", inputmode: "decimal" }),
    };
    this.controls.factor.value = "1";
    this.button = h("button", { class: "main", type: "submit" }, "Estimate");
    this.use = h("button", { type: "button", hidden: true, onclick: () => this.propose(this.wanted()) }, "Use these settings");
    const form = h("form", { class: "fields" },
      field("Batch size", this.controls.size), field("Policy", this.controls.policy),
      field("Delay in ms", this.controls.delay), field("Workers", this.controls.workers),
      field("Arrivals, times today's", this.controls.factor),
      h("div", { class: "buttons" }, this.button, this.use));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    form.addEventListener("input", (event) => event.target.classList.add("edited"));
    this.about = h("p", { class: "result", role: "status" });
    this.place = h("div", { class: "wide", tabindex: "0" });
    this.element = folded("What would happen if", form, this.about, this.place);
  }

  wanted() {
    const { size, policy, delay, workers } = this.controls;
    return {
      batch_size: size.value, batch_policy: policy.value, max_batch_delay: delay.value,
      min_worker: workers.value, max_worker: workers.value,
    };
  }

  update(facts) {
    this.facts = facts;
    const { now } = this;
    for (const [name, control] of Object.entries(this.controls)) {
      if (name in now && !control.classList.contains("edited")) control.value = now[name];
    }
  }

  get now() {
    const { facts } = this;
    return {
      size: facts.batchSize, policy: facts.batching.policy.value, delay: facts.maxBatchDelay,
      workers: Math.max(1, facts.workers.filter((worker) => worker.status === "READY").length),
      queue: facts.queueSize,
    };
  }

  async ask() {
    const { size, policy, delay, workers, factor } = this.controls;
    const then = {
      size: Number(size.value), policy: policy.value, delay: Number(delay.value), workers: Number(workers.value),
      queue: this.facts.queueSize,
    };
    const { modelName: model, modelVersion: version } = this.facts;
    const asked = { model, version, now: this.now, then, factor: Number(factor.value) };
    this.button.disabled = true;
    this.tell("Simulating…", "");
    this.place.replaceChildren();
    try {
      const body = JSON.stringify(asked);
      const headers = { "content-type": "application/json" };
      const answer = await this.guarded(() => json("console/estimate", { method: "POST", headers, body }));
      this.show(answer, asked.factor);
    } catch (error) {
      this.tell(error.message, "bad");
    } finally {
      this.button.disabled = false;
    }
  }

  show(answer, factor) {
    const cost = `${shown(answer.fixed_ms)} + ${shown(answer.each_ms)} · n ms`;
    const guess = answer.is_guess
      ? " (a guess: all batches had about the same size, so half of the cost is taken as fixed)" : " (measured)";
    const came = `${answer.of_requests} requests in ${lasting(answer.of_seconds)}`;
    const part = answer.seconds < 0.999 * answer.of_seconds ? `, ${lasting(answer.seconds)} of it simulated` : "";
    this.tell(`${came}, as they came${part}; a batch of n takes ${cost}${guess}.`, "");
    const columns = [answer.measured, answer.now, answer.then];
    const rows = ROWS.map(([label, name, unit, scale]) => h("tr", {}, h("th", { scope: "row" }, label),
      ...columns.map((column) => h("td", {}, shown(column[name] === null ? null : scale * column[name], unit)))));
    const now = factor === 1 ? "Simulated as it is" : `Simulated as it is, ${factor} × arrivals`;
    this.place.replaceChildren(table(["", "Measured", now, "Simulated with these"], rows, "Estimate"));
    this.use.hidden = false;
  }

  tell(text, kind) {
    this.about.dataset.kind = kind;
    setText(this.about, text);
  }
}
