// The machine, its GPUs with the workers on them, and the processes that receive requests; read while this is open.

import { call, json } from "./api.js";
import { h, section, setText, table } from "./dom.js";
import { shown } from "./units.js";
import { stateLabel } from "./workers.js";

const PAUSE = 2000;
const MIB = 1 << 20;
const size = (mib) => (mib >= 10_240 ? shown(mib / 1024, "GiB") : `${mib} MiB`);
const percent = (value) => `${Math.round(value)} %`;
const dash = (value, text) => (value === undefined || value === null ? "–" : text(value));

// A share in percent, as a bar and as text.
class Share {
  constructor(title) {
    this.meter = h("meter", { min: "0", max: "100", high: "90", optimum: "0", "aria-label": title });
    this.text = h("td");
    this.row = h("tr", {}, h("th", { scope: "row" }, title), h("td", {}, this.meter), this.text);
  }

  update(percent, text) {
    this.meter.hidden = percent === null || percent === undefined;
    this.meter.value = percent ?? 0;
    setText(this.text, text);
  }
}

const shares = (caption, ...rows) => h("table", { class: "shares" }, h("caption", { class: "hidden" }, caption),
  h("tbody", {}, ...rows.map((each) => each.row)));

const usedOf = ({ used, free }, text) => `${text(used)} of ${text(used + free)}`;

function workersTable(caption, workers, hasGpu) {
  const headings = ["Model", "Worker", "State", "Process", "Memory", ...(hasGpu ? ["Memory of the GPU"] : [])];
  return h("div", { class: "wide", tabindex: "0" }, table(headings, workers.map((each) => h("tr", {},
    h("th", { scope: "row" }, `${each.modelName} ${each.modelVersion}`), h("td", {}, each.id),
    h("td", {}, stateLabel(each.status)), h("td", {}, each.pid > 0 ? String(each.pid) : "–"), h("td", {}, size(each.memory)),
    hasGpu ? h("td", {}, dash(each.gpuMemory, size)) : null)), caption));
}

class Gpu {
  constructor(number) {
    const title = `GPU ${number}`;
    this.busy = new Share("Use");
    this.memory = new Share("Memory");
    this.access = new Share("Memory access");
    this.unread = h("p", { class: "reason" }, "The driver does not tell its state.");
    this.shares = shares(title, this.busy, this.memory, this.access);
    this.workers = h("div");
    this.element = section(title, this.unread, this.shares, this.workers);
  }

  update(gpu) {
    const isRead = gpu.used !== undefined;
    this.unread.hidden = isRead;
    this.shares.hidden = !isRead;
    if (isRead) {
      this.busy.update(gpu.busy, dash(gpu.busy, percent));
      this.memory.update(gpu.percent, usedOf(gpu, size));
      this.access.update(gpu.memoryBusy, dash(gpu.memoryBusy, percent));
    }
    this.workers.replaceChildren(gpu.workers.length ? workersTable(`Workers on GPU ${gpu.gpu}`, gpu.workers, true)
      : h("p", { class: "quiet" }, "No workers."));
  }
}

export class View {
  constructor({ guarded }) {
    this.title = "Devices";
    this.guarded = guarded;
    this.isOpen = true;
    this.gpus = new Map();
    this.before = new Map();
    this.problem = h("p", { class: "banner", role: "alert", hidden: true });
    this.processor = new Share("Processor");
    this.memory = new Share("Memory");
    this.disk = new Share("Disk");
    this.beside = h("p", { class: "quiet" });
    this.budget = new Share("Memory");
    this.coming = h("p", { class: "quiet" });
    this.onDemand = section("Models on demand", shares("Models on demand", this.budget), this.coming);
    this.places = h("div", { class: "list" });
    this.machines = h("div", { class: "list" });
    this.frontEnds = h("div");
    this.elements = [h("div", { class: "title-row" }, h("h2", {}, "Devices")), this.problem,
      section("This machine", shares("This machine", this.processor, this.memory, this.disk), this.beside),
      this.onDemand, this.places, this.machines, section("Front ends", this.frontEnds)];
    this.follow();
  }

  async follow() {
    while (this.isOpen) {
      try {
        if (document.visibilityState === "visible") await this.guarded(() => this.read());
      } catch (error) {
        this.problem.hidden = false;
        setText(this.problem, `What is shown is from before: ${error.message}`);
      }
      await new Promise((resolve) => { setTimeout(resolve, PAUSE); });
    }
  }

  async read() {
    const devices = await json("console/devices");
    const parking = await json("parking");
    const response = await call("frontends");
    const frontEnds = response.ok ? (await response.json()).frontEnds : null;
    if (!this.isOpen) return;
    this.problem.hidden = true;
    this.show(devices);
    this.showOnDemand(parking);
    this.showFrontEnds(frontEnds);
  }

  show({ processor, memory, disk, onProcessor, gpus, noGpus, machines }) {
    this.processor.update(processor.percent, percent(processor.percent));
    this.memory.update(memory.percent, usedOf(memory, size));
    this.disk.update(disk.percent, usedOf(disk, (value) => shown(value, "GiB")));
    const { workers } = onProcessor;
    setText(this.beside, `${workers} ${workers === 1 ? "worker computes" : "workers compute"} on the processor, with ${
      size(onProcessor.memory)} of memory.${noGpus ? ` No GPUs: ${noGpus}.` : ""}`);
    for (const gpu of gpus) {
      if (!this.gpus.has(gpu.gpu)) this.gpus.set(gpu.gpu, new Gpu(gpu.gpu));
      this.gpus.get(gpu.gpu).update(gpu);
    }
    const elements = gpus.map((gpu) => this.gpus.get(gpu.gpu).element);
    if (elements.length !== this.places.children.length) this.places.replaceChildren(...elements);
    this.machines.replaceChildren(...machines.map((each) => section(`Machine ${each.name}`,
      workersTable(`Workers on ${each.name}`, each.workers, false))));
  }

  showOnDemand({ budget, used, counts, nextToPark }) {
    const states = Object.entries(counts).map(([state, count]) => `${count} ${state}`);
    this.onDemand.hidden = !states.length;
    const text = (bytes) => size(Math.round(bytes / MIB));
    // Models whose workers are on other machines need none of it.
    this.budget.update(budget ? (100 * used) / budget : null, budget ? `${text(used)} of ${text(budget)}` : "–");
    setText(this.coming, `${states.join(", ")}.${nextToPark ? ` The next to be parked for another is ${nextToPark}.` : ""}`);
  }

  showFrontEnds(frontEnds) {
    if (!frontEnds) {
      this.frontEnds.replaceChildren(h("p", { class: "quiet" }, "The server's own process receives all requests."));
      return;
    }
    const now = performance.now();
    const rows = frontEnds.map((each) => {
      const before = this.before.get(each.pid);
      if (each.cpuSeconds !== undefined) this.before.set(each.pid, [now, each.cpuSeconds]);
      const busy = before ? Math.max(0, (1e5 * (each.cpuSeconds - before[1])) / (now - before[0])) : null;
      const texts = [dash(each.pid, String), dash(each.since, (since) => new Date(since).toLocaleTimeString("en-GB")),
        dash(each.connections, String), dash(each.requests, String), dash(each.memoryUsage, (bytes) => size(Math.round(bytes / MIB))),
        dash(busy, percent), String(each.replaced)];
      return h("tr", {}, h("th", { scope: "row" }, String(each.number)), h("td", {}, stateLabel(each.state)),
        ...texts.map((text) => h("td", {}, text)));
    });
    this.frontEnds.replaceChildren(h("div", { class: "wide", tabindex: "0" }, table(["Number", "State", "Process", "Since", "Connections",
      "Unanswered requests", "Memory", "Processor", "Replaced"], rows, "Front ends")));
  }

  close() {
    this.isOpen = false;
  }
}
