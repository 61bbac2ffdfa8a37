// Plots with a choice of range: what comes in, or minutes of the last 24 hours, which the server has kept.

import { json } from "./api.js";
import { h, setText } from "./dom.js";
import { Plots } from "./plots.js";

const SPANS = [["15 min", 900], ["1 h", 3600], ["6 h", 21_600], ["24 h", 86_400]];
const MINUTE = 60;
// Without requests these are nothing; all others are unknown.
const RATES = ["rate", "lost", "errors"];

// The minutes of the server's answer, with a line at zero where there were no requests. Times are those of this
// computer: the server sends ages.
export class Minutes {
  constructor({ age, ages, series }, span, now = Date.now() / 1e3) {
    const names = Object.keys(series);
    this.times = [];
    this.series = Object.fromEntries(names.map((name) => [name, []]));
    const push = (time, value) => {
      this.times.push(time);
      for (const name of names) this.series[name].push(value(name));
    };
    const idle = (name) => (RATES.includes(name) ? 0 : null);
    const pass = (from, to) => {
      if (to - from < MINUTE / 2) return;
      push(from, idle);
      push(to, idle);
    };
    let before = now - Math.min(age, span) - MINUTE;
    ages.forEach((each, index) => {
      pass(before + MINUTE, now - each - MINUTE);
      before = now - each;
      push(before, (name) => series[name][index]);
    });
    pass(before + MINUTE, now);
  }

  has(name) {
    return this.series[name]?.some((value) => value !== null) ?? false;
  }
}

export class RangedPlots {
  // `path` says of which version; `isLive`: figures come in as well.
  constructor(guarded, version, isLive) {
    Object.assign(this, { guarded, version, span: 0, timer: 0, minutes: null, history: null, turn: 0 });
    this.plots = new Plots((from, to) => this.zoom(from, to));
    this.buttons = new Map((isLive ? [["Live", 0], ...SPANS] : SPANS).map(([text, span]) =>
      [span, h("button", { type: "button", "aria-pressed": "false", onclick: () => this.choose(span) }, text)]));
    this.whole = h("button", { type: "button", hidden: true, onclick: () => this.choose(this.span) }, "Whole range");
    this.note = h("span", { class: "quiet", role: "status" });
    this.element = h("div", { class: "ranged" },
      h("div", { class: "ranges", role: "group", "aria-label": "Range of the plots" },
        ...this.buttons.values(), this.whole, this.note), this.plots.element);
    if (isLive) this.mark();
    else this.choose(3600);
  }

  // Figures that have come in.
  update(history) {
    this.history = history;
    if (!this.span) this.plots.update(history);
  }

  mark() {
    for (const [span, button] of this.buttons) button.setAttribute("aria-pressed", String(span === this.span));
  }

  async choose(span) {
    this.span = span;
    this.mark();
    this.whole.hidden = true;
    setText(this.note, "");
    clearTimeout(this.timer);
    this.turn += 1;
    if (span) await this.read(this.turn);
    else {
      this.plots.show(null);
      if (this.history) this.plots.update(this.history);
    }
  }

  // Now, and again each minute.
  async read(turn) {
    try {
      const query = new URLSearchParams({ version: this.version(), seconds: this.span });
      const answer = await this.guarded(() => json(`console/history?${query}`));
      if (turn !== this.turn) return;
      this.minutes = new Minutes(answer, this.span);
      const now = Date.now() / 1e3;
      if (this.whole.hidden) this.plots.show([now - this.span, now]);
      this.plots.update(this.minutes);
      setText(this.note, "A point a minute; drag over a plot for a part of it.");
    } catch (error) {
      if (turn === this.turn) setText(this.note, error.message);
    }
    this.timer = setTimeout(() => this.readAgain(turn), MINUTE * 1e3);
  }

  // While nobody sees the page, it waits.
  readAgain(turn) {
    if (turn !== this.turn) return;
    if (document.visibilityState === "visible") this.read(turn);
    else document.addEventListener("visibilitychange", () => this.readAgain(turn), { once: true });
  }

  zoom(from, to) {
    this.whole.hidden = false;
    this.plots.show([from, to]);
    this.plots.update(this.minutes);
  }

  close() {
    this.turn += 1;
    clearTimeout(this.timer);
    this.plots.close();
  }
}
