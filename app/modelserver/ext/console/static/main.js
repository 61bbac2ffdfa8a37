// The console: state from the stream of events, views of it, and the token.

import { TokenRefused, hasToken, json, setToken } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { History } from "./history.js";
import { ModelView } from "./model.js";
import { errorText, shown } from "./plots.js";
import { settingsView } from "./settings.js";
import { listen } from "./stream.js";
import { stateLabel } from "./workers.js";

const versions = new Map(); // key -> { facts, history, entry }
let life = "";
let selected = ""; // a key; null: the settings; undefined: what was selected is removed
let removed = "";
let view = null;
let summaries = {};
let summariesAsked = false;

// -- the token

let asking = null;

// Resolves when the user has given a token; there is one question at a time.
function askToken(why) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("token");
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
    dialog.showModal();
    byId("token-field").focus();
  });
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
    for (const each of versions.values()) each.history.interrupt();
    summariesAsked = false;
  }
  for (const key of [...versions.keys()]) {
    if (!(key in event.figures)) forget(key);
  }
  for (const [key, figures] of Object.entries(event.figures)) {
    if (!versions.has(key)) add(key);
    const each = versions.get(key);
    each.facts = event.facts[key] ?? each.facts;
    each.history.add(event.at, figures, event.bounds, each.facts.workers.filter((w) => w.status === "READY").length);
    showEntry(each);
  }
  byId("none").hidden = versions.size > 0;
  if (selected === undefined && versions.has(removed)) select(removed);
  if (selected === "" && versions.size) select([...versions.keys()][0]);
  show();
  if (!summariesAsked) askSummaries();
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

function add(key) {
  const name = h("b", {});
  const version = h("span", { class: "quiet" });
  const state = h("span", {});
  const rate = h("span", { class: "rate quiet" });
  const button = h("button", { type: "button", class: "entry", onclick: () => select(key) },
    h("span", { class: "line" }, name, version), h("span", { class: "line" }, state, rate));
  const item = h("li", {}, button);
  byId("models").append(item);
  versions.set(key, { facts: null, history: new History(), entry: { item, button, name, version, state, rate } });
}

function forget(key) {
  const { entry, facts } = versions.get(key);
  entry.item.remove();
  versions.delete(key);
  if (selected === key) {
    view?.close();
    view = null;
    selected = undefined;
    removed = key;
    const name = `${facts.modelName} ${facts.modelVersion}`;
    document.title = `${name} was removed · modelserver`;
    byId("main").replaceChildren(h("div", { class: "title-row" }, h("h2", {}, name)),
      h("p", { class: "banner", role: "alert" }, `${name} was removed at ${new Date().toLocaleTimeString("en-GB")}.`));
  }
}

function showEntry({ facts, history, entry }) {
  setText(entry.name, facts.modelName);
  setText(entry.version, facts.modelVersion);
  if (entry.state.textContent !== facts.state) entry.state.replaceChildren(stateLabel(facts.state));
  const rate = history.latest("rate");
  const errors = history.errorRate();
  entry.rate.className = errors ? "rate bad" : "rate quiet";
  setText(entry.rate, errors ? errorText(errors) : rate ? shown(rate, "/s") : "");
}

// -- the view

function mark() {
  const set = (button, isCurrent) =>
    isCurrent ? button.setAttribute("aria-current", "true") : button.removeAttribute("aria-current");
  for (const [key, each] of versions) set(each.entry.button, key === selected);
  set(byId("show-settings"), selected === null);
}

function select(key) {
  if (selected === key) return;
  selected = key;
  view?.close();
  view = new ModelView(guarded);
  byId("main").replaceChildren(...view.elements);
  scrollTo(0, 0);
  mark();
  show();
}

function show() {
  const each = versions.get(selected);
  if (!each?.facts || !view) return;
  document.title = `${each.facts.modelName} · modelserver`;
  view.update(each.facts, summaries);
  view.figures(each.history);
}

byId("show-settings").addEventListener("click", async () => {
  try {
    const told = await guarded(() => json("console/settings"));
    view?.close();
    view = null;
    selected = null;
    document.title = "Settings · modelserver";
    byId("main").replaceChildren(...settingsView(told));
    byId("main").focus({ preventScroll: true });
    scrollTo(0, 0);
    mark();
  } catch (error) {
    tell("gone", error.message);
  }
});

listen({
  event: take,
  live: () => tell("live", "Live"),
  gone: () => tell("gone", "Server gone, trying again"),
  refused: () => askToken(refusal()),
});
