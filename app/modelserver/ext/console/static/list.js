// A list that is filtered by the server, and follows it.

import { field, h, setText } from "./dom.js";
import { Feed } from "./feed.js";

// Milliseconds between two updates of the page, and after the last key.
const UPDATES = 150;
const TYPING = 300;
const STATES = { loading: "Loading…", live: "Following", gone: "The server is gone; trying again" };

// A moment as the reader's clock has it, with the date if that was another day.
export function stamp(moment) {
  const time = new Date(moment);
  const clock = `${time.toLocaleTimeString("en-GB")}.${String(time.getMilliseconds()).padStart(3, "0")}`;
  const text = time.toDateString() === new Date().toDateString() ? clock : `${time.toLocaleDateString("en-CA")} ${clock}`;
  return h("time", { class: "quiet", datetime: time.toISOString() }, text);
}

export const link = (text, onclick, attributes = {}) => h("button", { type: "button", class: "link", onclick, ...attributes }, text);

export const search = () => h("input", { type: "search", autocomplete: "off", spellcheck: "false" });

// A field for a model's name, with those that there are.
export function modelField(versions) {
  const names = [...new Set([...versions.values()].flatMap(({ row }) => row?.name ?? []))].sort();
  const list = h("datalist", { id: "names" }, ...names.map((value) => h("option", { value })));
  const control = search();
  control.setAttribute("list", list.id);
  return [control, list];
}

// Labels of values; the first one is chosen.
export const options = (values) => h("select", {}, ...Object.entries(values).map(([value, text]) => h("option", { value }, text)));

export class List {
  // `filters`: label and control by the name that the server knows; `row(item)` makes an element.
  constructor({ title, path, name, filters, values, row, refused, about = () => "", isNewestFirst = false }) {
    Object.assign(this, { title, filters, row, about, isNewestFirst, rows: new Map(), timer: 0, typing: 0 });
    this.feed = new Feed(path, name, { refused, changed: () => this.change() });
    this.state = h("p", { class: "quiet", role: "status" });
    this.follow = h("input", { type: "checkbox", checked: true, onchange: () => this.turn() });
    this.list = h("div", { class: "live", role: "log", "aria-live": "off", "aria-label": title, tabindex: "0" });
    this.none = h("p", { class: "quiet", hidden: true }, "Nothing fits.");
    this.older = h("button", { type: "button", hidden: true, onclick: () => this.feed.older().catch((error) => setText(this.state, error.message)) },
      "Older ones");
    for (const [, control] of Object.values(filters)) {
      control.addEventListener("input", () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.open(), control.type === "search" ? TYPING : 0);
      });
    }
    this.head = [h("div", { class: "title-row" }, h("h2", {}, title), this.state),
      h("div", { class: "card filters" }, ...Object.values(filters).map(([label, control]) => field(label, control)),
        h("label", { class: "check" }, this.follow, " Follow"))];
    this.set(values ?? {});
  }

  // Other filters, and what fits them.
  set(values) {
    for (const [name, value] of Object.entries(values)) this.filters[name][1].value = value;
    this.open();
  }

  open() {
    clearTimeout(this.typing);
    this.follow.checked = true;
    this.feed.open(Object.fromEntries(Object.entries(this.filters).map(([name, [, control]]) => [name, control.value.trim()])));
    this.change();
  }

  turn() {
    if (this.follow.checked) this.feed.follow();
    else this.feed.close();
    this.change();
  }

  change() {
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      this.draw();
    }, UPDATES);
  }

  draw() {
    const { items, state, hasOlder, page } = this.feed;
    const wasAtEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
    const present = new Set(items);
    for (const [item, row] of this.rows) {
      if (!present.has(item)) {
        row.remove();
        this.rows.delete(item);
      }
    }
    const first = items.findIndex((item) => this.rows.has(item));
    const older = this.make(first < 0 ? [] : items.slice(0, first));
    const newer = this.make(items.slice(Math.max(first, 0)).filter((item) => !this.rows.has(item)));
    if (this.isNewestFirst) {
      this.list.prepend(...newer.reverse());
      this.list.append(...older.reverse());
    } else {
      this.list.prepend(...older);
      this.list.append(...newer);
      if (wasAtEnd && newer.length) this.list.scrollTop = this.list.scrollHeight;
    }
    this.older.hidden = !hasOlder;
    this.none.hidden = items.length > 0 || state === "loading";
    const live = this.follow.checked ? STATES[state] : "Not following";
    setText(this.state, [live, this.about(page)].filter(Boolean).join(" · "));
  }

  make(items) {
    return items.map((item) => {
      const row = this.row(item);
      this.rows.set(item, row);
      return row;
    });
  }

  close() {
    clearTimeout(this.timer);
    clearTimeout(this.typing);
    this.feed.close();
  }

  update() {}
}
