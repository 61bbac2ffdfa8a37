// What has happened to the server and its models, the newest first.

import { h } from "./dom.js";
import { List, link, modelField, options, search, stamp } from "./list.js";
import { PARAGRAPHS } from "./runbook.js";

// The paragraphs of the runbook for kinds of events.
const ANCHORS = {
  load_failed: "modelservernoworker", retry: "modelservernoworker", given_up: "modelserverworkersfail",
  restarted: "internalserverexception", killed: "internalserverexception", gpu_failed: "modelserverfailing",
  recycle_failed: "modelserverworkersfail", replace_failed: "not-replaced", workers_missing: "modelserverwantsworkers",
  disk_full: "modelserverdisk", snapshot_failed: "modelserverdisk",
};
const LEVELS = { info: "All", warn: "Warnings and errors", error: "Errors" };

// That of its kind, or of the type of error that its message names.
function paragraphOf({ kind, message }) {
  const types = message.match(/\b[A-Z]\w*Exception\b/g) ?? [];
  return PARAGRAPHS[ANCHORS[kind] ?? types.map((type) => type.toLowerCase()).find((type) => Object.hasOwn(PARAGRAPHS, type))];
}

function advice([title, text]) {
  // Code stands between backticks.
  const parts = text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
  return h("details", {}, h("summary", {}, `What to do: ${title}`), h("p", {}, ...parts));
}

export class View extends List {
  constructor({ versions, filters, select, refused }) {
    const [model, list] = modelField(versions);
    super({
      title: "Events", path: "events", name: "events", refused, values: filters, isNewestFirst: true,
      filters: { q: ["Search", search()], model: ["Model", model], level: ["Level", options(LEVELS)] },
      row: (event) => this.event(event, select),
      about: ({ leftOut }) => (leftOut ? `${leftOut} left out since the server's start, in storms` : ""),
    });
    this.elements = [...this.head, h("div", { class: "card" }, list, this.none, this.list, this.older)];
  }

  event(event, select) {
    const { time, level, kind, model = "", version = "", message } = event;
    const paragraph = paragraphOf(event);
    const subject = model ? [link(`${model} ${version}`.trim(), () => select(version ? `${model}/${version}` : "")),
      link("log", () => select("logs", { model }), { "aria-label": `Log of ${model}` })] : [];
    return h("article", { class: "item", "data-level": level },
      h("p", { class: "about" }, stamp(time), h("span", { class: "level" }, level), h("b", {}, kind.replaceAll("_", " ")), ...subject),
      h("p", { class: "text" }, message), paragraph && advice(paragraph));
  }
}
