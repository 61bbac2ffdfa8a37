// The console: state from the stream of events, views of it, and the token.

import { TokenRefused, hasToken, json, setToken } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { History } from "./history.js";
import { Brief, Overview, rowOf } from "./overview.js";
import { settingsView } from "./settings.js";
import { listen } from "./stream.js";
import { errorText, shown } from "./units.js";
import { stateLabel } from "./workers.js";

// key -> { row, brief, entry } and, of one whose page was opened, { facts, history }
const versions = new Map();
// Entries of the list: the table has all.
const LISTED = 50;
const viewer = Array.from(crypto.getRandomValues(new Uint32Array(4)), (each) => each.toString(16)).join("");
let life = "";
let selected; // a key, or that of PAGES; empty: all models; null: the settings; undefined: what was selected is removed
let removed = "";
let view = null;
let summaries = {};
let summariesAsked = false;

const PAGES = {
  events: () => import("./events.js"), logs: () => import("./logs.js"), devices: () => import("./devices.js"),
  rollouts: () => import("./rollouts.js"), workflows: () => import("./workflows.js"),
};

// -- the token

let asking = null;

// Resolves when the user has given a token; there is one question at a time.
function askToken(why) {
  const dialog = byId("token");
  asking ??= new Promise((resolve) => {
    setText(byId("token-why"), why);
    tell("token", "Waiting for a token");
    byId("token-button").hidden = false;
    const given = () => {
      if (!byId("token-field").value) return;
      setToken(byId("token-field").value.trim());
      byId("token-field").value = "";
      byId("token-button").hidden = true;
      dialog.close();
      asking = null;
      resolve();
    };
    dialog.querySelector("form").onsubmit = (event) => {
      event.preventDefault();
      given();
    };
  });
  // Again for each who needs one, also if it was put off.
  if (!dialog.open) dialog.showModal();
  byId("token-field").focus();
  return asking;
}

byId("token-cancel").addEventListener("click", () => byId("token").close());
byId("token-button").addEventListener("click", () => byId("token").showModal());

// Does what needs the server, again with another token if this one is refused.
async function guarded(work) {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof TokenRefused)) throw error;
      await askToken(refusal());
    }
  }
}

const refusal = () => hasToken()
  ? "The token is not valid, or no longer." : "This server's management API asks for one.";

// -- what the stream tells

function tell(state, text) {
  byId("status").dataset.state = state;
  setText(byId("status"), text);
}

function take(event) {
  if (event.life !== life) {
    life = event.life;
    for (const each of versions.values()) {
      each.history?.interrupt();
      each.brief.interrupt();
    }
    summariesAsked = false;
  }
  for (const key of [...versions.keys()]) {
    if (!(key in event.figures)) forget(key);
  }
  for (const [key, figures] of Object.entries(event.figures)) {
    if (!versions.has(key)) versions.set(key, { row: null, brief: new Brief(), entry: null, facts: null, history: null });
    const each = versions.get(key);
    if (event.rows[key]) each.row = rowOf(event.rows[key]);
    each.brief.add(event.at, figures);
  }
  takeFull(event);
  listEntries();
  byId("none").hidden = versions.size > 0;
  if (selected === undefined && versions.has(removed)) select(removed);
  show();
  if (!summariesAsked) askSummaries();
}

// Everything of the version whose page is open.
function takeFull(event) {
  const each = versions.get(selected);
  if (!each || event.life !== life) return;
  each.facts = event.facts[selected] ?? each.facts;
  const figures = event.full[selected];
  if (!each.facts || !figures) return;
  each.history ??= new History();
  const ready = each.facts.workers.filter((worker) => worker.status === "READY").length;
  each.history.add(event.at, figures, event.bounds, ready);
}

// Tells the server whose figures are needed; the stream says the same when it begins again.
async function open(key) {
  const query = new URLSearchParams({ viewer, version: key });
  try {
    takeFull(await json(`console/opened?${query}`, { method: "PUT" }));
    show();
  } catch {
    // The stream says what is wrong.
  }
}

async function askSummaries() {
  summariesAsked = true;
  try {
    const told = await json("console/settings");
    summaries = told.options;
    setText(byId("version"), told.version);
  } catch {
    summariesAsked = false;
  }
}

// -- the list

// Of the first versions, and the one whose page is open.
function listEntries() {
  let number = 0;
  for (const [key, each] of versions) {
    number += 1;
    if (!each.row) continue;
    if (number > LISTED && key !== selected) {
      each.entry?.item.remove();
      each.entry = null;
      continue;
    }
    each.entry ??= newEntry(key);
    showEntry(each);
  }
  byId("unlisted").hidden = versions.size <= LISTED;
  setText(byId("unlisted"), `The first ${LISTED} of ${versions.size}; the table has all.`);
}

function newEntry(key) {
  const name = h("b", {});
  const version = h("span", { class: "quiet" });
  const state = h("span", {});
  const rate = h("span", { class: "rate quiet" });
  const button = h("button", { type: "button", class: "entry", onclick: () => select(key) },
    h("span", { class: "line" }, name, version), h("span", { class: "line" }, state, rate));
  const item = h("li", {}, button);
  byId("models").append(item);
  setCurrent(button, key === selected);
  return { item, button, name, version, state, rate };
}

function forget(key) {
  const { entry, row } = versions.get(key);
  entry?.item.remove();
  versions.delete(key);
  if (selected === key) {
    view?.close();
    view = null;
    selected = undefined;
    removed = key;
    const name = `${row.name} ${row.version}`;
    document.title = `${name} was removed · modelserver`;
    byId("main").replaceChildren(h("div", { class: "title-row" }, h("h2", {}, name)),
      h("p", { class: "banner", role: "alert" }, `${name} was removed at ${new Date().toLocaleTimeString("en-GB")}.`));
  }
}

function showEntry({ row, brief, entry }) {
  setText(entry.name, row.name);
  setText(entry.version, row.version);
  if (entry.state.textContent !== row.state) entry.state.replaceChildren(stateLabel(row.state));
  const { rate } = brief;
  const errors = brief.errorRate();
  entry.rate.className = errors ? "rate bad" : "rate quiet";
  setText(entry.rate, errors ? errorText(errors) : rate ? shown(rate, "/s") : "");
}

// -- the view

function setCurrent(button, isCurrent) {
  if (isCurrent) button.setAttribute("aria-current", "true");
  else button.removeAttribute("aria-current");
}

function mark() {
  listEntries();
  for (const [key, { entry }] of versions) if (entry) setCurrent(entry.button, key === selected);
  setCurrent(byId("show-all"), selected === "");
  setCurrent(byId("show-settings"), selected === null);
  for (const page of Object.keys(PAGES)) setCurrent(byId(`show-${page}`), page === selected);
}

// `filters`: of a page with a list.
async function select(key, filters) {
  if (selected === key && !filters) return;
  selected = key;
  view?.close();
  view = null;
  if (life) open(PAGES[key] ? "" : key);
  mark();
  if (PAGES[key]) {
    const { View } = await PAGES[key]();
    if (selected !== key) return;
    const chosen = (other, filter) => (PAGES[other] || versions.has(other)) && select(other, filter);
    view = new View({ versions, guarded, filters, select: chosen, refused: () => askToken(refusal()) });
    document.title = `${view.title} · modelserver`;
    byId("main").replaceChildren(...view.elements);
    scrollTo(0, 0);
    return;
  }
  // Plots are large; the overview does without.
  const ModelView = key && (await import("./model.js")).ModelView;
  if (selected !== key) return;
  view = key === "" ? new Overview(versions, select, guarded) : new ModelView(guarded, select);
  byId("main").replaceChildren(...view.elements);
  scrollTo(0, 0);
  show();
}

function show() {
  if (selected === "" && view) {
    document.title = "All models · modelserver";
    view.update();
    return;
  }
  if (PAGES[selected]) view?.update?.();
  const each = versions.get(selected);
  if (!each?.facts || !view) return;
  document.title = `${each.facts.modelName} · modelserver`;
  view.update(each.facts, summaries);
  if (each.history) view.figures(each.history, each.brief.errorRate());
}

byId("show-all").addEventListener("click", () => select(""));

for (const page of Object.keys(PAGES)) byId(`show-${page}`).addEventListener("click", () => select(page));

byId("register").addEventListener("click", async () => (await import("./register.js")).registerModel(guarded));

byId("show-settings").addEventListener("click", async () => {
  try {
    const told = await guarded(() => json("console/settings"));
    view?.close();
    view = null;
    selected = null;
    if (life) open("");
    document.title = "Settings · modelserver";
    byId("main").replaceChildren(...settingsView(told));
    byId("main").focus({ preventScroll: true });
    scrollTo(0, 0);
    mark();
  } catch (error) {
    tell("gone", error.message);
  }
});

select("");

listen({
  path: () => `console/events?${new URLSearchParams({ viewer, version: selected ?? "" })}`,
  event: take,
  live: () => tell("live", "Live"),
  gone: () => tell("gone", "Server gone, trying again"),
  refused: () => askToken(refusal()),
});
