// The workers of a version, with the reason of a failure and their last lines.

import { h, section, setText, table } from "./dom.js";

const QUOTED = " Its last output was:\n";

// The reason, and the output that the server quotes at its end.
export function splitFailure(failure) {
  const at = failure.indexOf(QUOTED);
  return at < 0 ? [failure, ""] : [failure.slice(0, at), failure.slice(at + QUOTED.length)];
}

export function stateLabel(state) {
  return h("span", { class: "state", "data-state": state.toLowerCase() }, state.toLowerCase());
}

function triesOf(worker, state) {
  if (state !== "RETRYING") return "";
  const failed = worker.failedLoads
    ? `It could not load its model ${worker.failedLoads === 1 ? "once" : `${worker.failedLoads} times in a row`}; ` : "";
  const next = worker.nextTry ? `the next try is at ${new Date(worker.nextTry).toLocaleTimeString("en-GB")}.`
    : "it is being tried again.";
  const text = failed + next;
  return text[0].toUpperCase() + text.slice(1);
}

class Row {
  constructor(worker) {
    this.cells = Array.from({ length: 6 }, () => h("td"));
    this.lines = h("pre", { tabindex: "0", "aria-label": `Last output of worker ${worker.id}` });
    this.reason = h("p", { class: "reason" });
    this.tries = h("p", { class: "reason" });
    this.details = h("details", {}, h("summary", {}, "Last lines"), this.lines);
    this.rows = [
      h("tr", {}, ...this.cells),
      h("tr", { class: "output" }, h("td", { colspan: "6" }, this.reason, this.tries, this.details)),
    ];
    this.state = "";
  }

  // The reason of the version's own `failure` stands above.
  update(worker, failure) {
    const [reason, quoted] = splitFailure(worker.failure);
    const place = worker.node ? worker.node.name : worker.gpu ? worker.gpuUsage.split(",")[0] : "this machine";
    const texts = [worker.id, null, worker.pid > 0 ? String(worker.pid) : "–",
      worker.memoryUsage ? `${worker.memoryUsage} MiB` : "–", place,
      new Date(worker.startTime).toLocaleTimeString("en-GB")];
    texts.forEach((text, index) => text !== null && setText(this.cells[index], text));
    const state = worker.status === "LOADING" && worker.failure ? "RETRYING" : worker.status;
    if (this.state !== state) {
      this.cells[1].replaceChildren(stateLabel(state));
      this.state = state;
      // What it printed is needed now; whoever folds it again is not disturbed.
      if (worker.failure) this.details.open = true;
    }
    setText(this.tries, triesOf(worker, state));
    this.tries.hidden = state !== "RETRYING";
    setText(this.reason, reason);
    this.reason.hidden = !reason || worker.failure === failure;
    const lines = quoted || worker.output;
    setText(this.lines, lines || "It has printed nothing.");
  }
}

export class Workers {
  constructor() {
    this.rows = new Map();
    this.table = table(["Worker", "State", "Process", "Memory", "Where", "Since"], [], "Workers");
    this.empty = h("p", { class: "quiet" }, "This version has no workers.");
    this.element = section("Workers", h("div", { class: "wide" }, this.table), this.empty);
  }

  update(facts) {
    const body = this.table.tBodies[0];
    const ids = new Set(facts.workers.map((worker) => worker.id));
    for (const [id, row] of this.rows) {
      if (!ids.has(id)) {
        row.rows.forEach((each) => each.remove());
        this.rows.delete(id);
      }
    }
    for (const worker of facts.workers) {
      if (!this.rows.has(worker.id)) {
        const row = new Row(worker);
        this.rows.set(worker.id, row);
        body.append(...row.rows);
      }
      this.rows.get(worker.id).update(worker, facts.failure);
    }
    this.table.hidden = !facts.workers.length;
    this.empty.hidden = facts.workers.length > 0;
  }
}
