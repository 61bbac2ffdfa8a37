// The last lines of the log: of the server, its workers, and its answers.

import { h } from "./dom.js";
import { List, link, modelField, options, search, stamp } from "./list.js";

const SOURCES = { "server,workers": "Server and workers", server: "Server", workers: "Workers", requests: "Answers", all: "All" };
const LEVELS = { debug: "All", info: "Info and above", warn: "Warnings and errors", error: "Errors" };
const ID = /\b([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b/;

export class View extends List {
  constructor({ versions, filters, refused }) {
    const [model, list] = modelField(versions);
    super({
      title: "Logs", path: "console/logs", name: "lines", refused, values: filters,
      filters: {
        q: ["Text or request id", search()], model: ["Model", model], level: ["Level", options(LEVELS)],
        source: ["Source", options(SOURCES)],
      },
      row: (line) => this.line(line),
    });
    this.answers = h("div", { role: "group", "aria-label": "Answers to this request", hidden: true });
    this.answered = undefined;
    this.list.classList.add("lines");
    this.elements = [...this.head, this.answers, h("div", { class: "card" }, list, this.older, this.none, this.list)];
  }

  draw() {
    super.draw();
    const { answers } = this.feed.page;
    if (answers === this.answered) return;
    this.answered = answers;
    this.answers.hidden = !answers?.length;
    this.answers.replaceChildren(...(answers ?? []).map(({ time, request, status, text, trace }) =>
      h("p", { class: status >= 400 ? "banner" : "card" }, `Request ${request} was answered with status ${status}: `, stamp(time * 1000),
        ` ${text}`, trace ? `, trace ${trace}` : "")));
  }

  // All that is known of a request.
  request(id) {
    return link(id, () => this.set({ q: id, source: "all", level: "debug", model: "" }), { class: "link id" });
  }

  line({ time, level, origin, text, request, trace, gap }) {
    // Every second part is an id.
    const parts = text.split(ID).map((part, index) => (index % 2 ? this.request(part) : part));
    const more = [request && !text.includes(request) && this.request(request), trace && !text.includes(trace) && ` trace ${trace}`];
    return h("div", {}, gap && h("p", { class: "quiet" }, "Lines are missing here: there were too many."),
      h("p", { class: "line", "data-level": level }, stamp(time * 1000), h("span", { class: "level" }, level),
        h("span", { class: "quiet" }, origin || "answer"), h("span", { class: "text" }, ...parts, ...more.filter(Boolean).flatMap((each) => [" ", each]))));
  }
}
