// Changing batch size, delay, policy and workers of a running version.

import { json, pathOf } from "./api.js";
import { choice, field, folded, h, number, setText } from "./dom.js";

export const POLICIES = ["adaptive", "greedy", "window"];
export const settingsOf = (facts) => ({
  batch_size: facts.batchSize,
  max_batch_delay: facts.maxBatchDelay,
  batch_policy: facts.batching.policy.value,
  min_worker: facts.minWorkers,
  max_worker: facts.maxWorkers,
});

export class Change {
  constructor(guarded) {
    this.guarded = guarded;
    this.controls = {
      batch_size: number({ min: "1", max: "1048576" }),
      max_batch_delay: number({ min: "0", max: "3600000" }),
      batch_policy: choice(POLICIES),
      min_worker: number({ min: "0", max: "1024" }),
      max_worker: number({ min: "0", max: "1024" }),
    };
    this.sources = {};
    const named = (name, label, note) => {
      const made = field(label, this.controls[name], note);
      this.sources[name] = made.querySelector("small");
      return made;
    };
    this.result = h("p", { class: "result", role: "status" });
    this.button = h("button", { class: "main", type: "submit" }, "Apply");
    const form = h("form", { class: "fields" },
      named("batch_size", "Batch size", " "), named("max_batch_delay", "Delay in ms", " "),
      named("batch_policy", "Policy", " "), named("min_worker", "Fewest workers"),
      named("max_worker", "Most workers"), h("div", { class: "buttons" }, this.button));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.apply();
    });
    form.addEventListener("input", (event) => event.target.classList.add("edited"));
    this.element = folded("Settings of this version", form, this.result);
  }

  update(facts) {
    this.facts = facts;
    const now = settingsOf(facts);
    for (const [name, control] of Object.entries(this.controls)) {
      if (!control.classList.contains("edited")) control.value = now[name];
    }
    setText(this.sources.batch_size, `from ${facts.batching.batchSize.source}`);
    setText(this.sources.max_batch_delay, `from ${facts.batching.maxBatchDelay.source}`);
    setText(this.sources.batch_policy, `from ${facts.batching.policy.source}`);
  }

  // Fills in other values, for the user to apply.
  propose(values) {
    for (const [name, value] of Object.entries(values)) {
      this.controls[name].value = value;
      this.controls[name].classList.add("edited");
    }
    this.element.querySelector("details").open = true;
    this.element.scrollIntoView({ block: "center" });
    this.button.focus();
  }

  async apply() {
    const now = settingsOf(this.facts);
    const wanted = Object.fromEntries(Object.entries(this.controls).map(([name, control]) => [name, control.value]));
    const changed = new URLSearchParams();
    const workers = ["min_worker", "max_worker"];
    const scales = workers.some((name) => wanted[name] !== String(now[name]));
    for (const [name, value] of Object.entries(wanted)) {
      if (workers.includes(name) ? scales : value !== String(now[name])) changed.set(name, value);
    }
    if (!changed.size) {
      this.tell("Nothing differs from what is in effect.", "");
      return;
    }
    this.button.disabled = true;
    try {
      const told = await this.guarded(() => json(`${pathOf(this.facts)}?${changed}`, { method: "PUT" }));
      this.tell(told.status, "good");
      Object.values(this.controls).forEach((control) => control.classList.remove("edited"));
    } catch (error) {
      this.tell(error.message, "bad");
    } finally {
      this.button.disabled = false;
    }
  }

  tell(text, kind) {
    this.result.dataset.kind = kind;
    setText(this.result, text);
  }
}
