// Registers a model: one of the store, of a URL, or of the Hugging Face hub.

import { json } from "./api.js";
import { confirmAction } from "./confirm.js";
import { choice, field, h, number } from "./dom.js";

const SOURCES = { store: "The model store", url: "A URL, or a file of the store", hub: "The Hugging Face hub" };

async function unloadedModels(guarded) {
  const index = await guarded(() => json("v2/repository/index", { method: "POST" }));
  return index.filter((each) => each.state === "UNAVAILABLE" && each.reason === "unloaded").map((each) => each.name);
}

export async function registerModel(guarded) {
  const unloaded = await unloadedModels(guarded).catch(() => []);
  const source = choice(Object.keys(SOURCES));
  [...source.options].forEach((option) => option.replaceChildren(SOURCES[option.value]));
  source.value = unloaded.length ? "store" : "url";
  const stored = choice(unloaded);
  const text = (attributes) => h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });
  const url = text({ placeholder: "https://… or model.mar" });
  const hub = text({ placeholder: "ORG/NAME or ORG/NAME@REVISION" });
  const name = text();
  const workers = number({ min: "0", max: "1024" });
  workers.value = "1";
  const places = {
    store: [field("Model", stored, unloaded.length ? "Those that are not registered" : "All of the store are registered")],
    url: [field("URL or file", url)],
    hub: [field("Model of the hub", hub)],
  };
  const named = [field("Name", name, "Empty: that of the archive or of the hub"), field("Workers", workers)];
  const choose = () => {
    for (const [each, fields] of Object.entries(places)) fields.forEach((one) => { one.hidden = each !== source.value; });
    for (const each of named) each.hidden = source.value === "store";
  };
  source.addEventListener("input", choose);
  choose();
  const request = () => {
    if (source.value === "store") {
      return stored.value ? { method: "POST", path: `v2/repository/models/${encodeURIComponent(stored.value)}/load` } : null;
    }
    const place = source.value === "url" ? url.value.trim() : hub.value.trim().replace(/^(?!hf:\/\/)(?=.)/, "hf://");
    if (!place || !workers.validity.valid) return null;
    const query = new URLSearchParams({ url: place, initial_workers: workers.value, synchronous: true });
    if (name.value) query.set("model_name", name.value);
    return { method: "POST", path: `models?${query}` };
  };
  confirmAction(guarded, {
    title: "Register a model", confirm: "Register", request,
    about: "The server fetches it if needed, and answers when its workers have loaded it.",
    fields: [h("div", { class: "fields" }, field("From", source), ...Object.values(places).flat(), ...named)],
  });
}
