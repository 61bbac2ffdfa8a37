// The view of one version.

import { Actions } from "./actions.js";
import { Change } from "./change.js";
import { Chat } from "./chat.js";
import { folded, h, setText } from "./dom.js";
import { Estimate } from "./estimate.js";
import { RangedPlots } from "./ranges.js";
import { Try } from "./try.js";
import { errorText } from "./units.js";
import { Workers, splitFailure, stateLabel } from "./workers.js";

export class ModelView {
  constructor(guarded, select) {
    this.name = h("h2", {});
    this.state = h("span", {});
    this.errors = h("span", { class: "rate bad", hidden: true });
    this.about = h("p", { class: "quiet about" });
    this.lastError = h("p", {});
    this.lastRequest = h("button", { type: "button", class: "link",
      onclick: () => select("logs", { q: this.facts.errors.last.requestId }) }, "Its lines in the log");
    this.errorTypes = h("p", { class: "quiet" });
    this.errorBanner = h("div", { class: "banner", role: "group", "aria-label": "Errors", hidden: true },
      this.lastError, this.lastRequest, this.errorTypes);
    this.failure = h("p", {});
    this.lines = h("pre", { tabindex: "0", "aria-label": "Last output before the failure" });
    this.banner = h("div", { class: "banner", role: "alert", hidden: true }, this.failure, this.lines);
    this.plots = new RangedPlots(guarded, () => `${this.facts.modelName}/${this.facts.modelVersion}`, true);
    this.workers = new Workers();
    this.actions = new Actions(guarded);
    this.change = new Change(guarded);
    this.chat = new Chat(guarded);
    this.try = new Try(guarded);
    this.estimate = new Estimate(guarded, (values) => this.change.propose(values));
    this.options = h("tbody");
    const options = h("div", { class: "wide", tabindex: "0" }, h("table", {}, h("caption", { class: "hidden" }, "Options"),
      h("thead", {}, h("tr", {}, ...["Option", "Value", "Source", ""].map((text) => h("th", { scope: "col" }, text)))),
      this.options));
    this.optionsShown = "";
    this.elements = [
      h("div", { class: "title-row" }, this.name, this.state, this.errors, this.about),
      this.banner, this.errorBanner, this.plots.element,
      this.workers.element, this.actions.element, this.change.element,
      this.chat.element, this.try.element, this.estimate.element, folded("Options and where they come from", options),
    ];
  }

  update(facts, summaries) {
    this.facts = facts;
    setText(this.name, `${facts.modelName} ${facts.modelVersion}`);
    if (this.state.textContent !== facts.state) this.state.replaceChildren(stateLabel(facts.state));
    const coming = facts.replacement ? ` · replacement ${facts.replacement.status.toLowerCase()}` : "";
    setText(this.about, `${facts.default ? "default version" : "not the default version"} · ${facts.modelUrl}`
      + ` · ${facts.deviceType}${coming}`);
    this.tellFailure(facts);
    this.tellErrors(facts.errors);
    this.workers.update(facts);
    this.actions.update(facts);
    this.change.update(facts);
    this.chat.update(facts);
    this.try.update(facts);
    this.estimate.update(facts);
    this.tellOptions(facts, summaries);
  }

  tellFailure(facts) {
    const failed = facts.failure || facts.replacement?.failure || "";
    const [reason, lines] = splitFailure(failed);
    this.banner.hidden = !failed;
    setText(this.failure, reason);
    setText(this.lines, lines);
    this.lines.hidden = !lines;
  }

  tellErrors(errors) {
    this.errorBanner.hidden = !errors?.last;
    if (!errors?.last) return;
    const { last, count, types } = errors;
    setText(this.lastError, `Last error at ${new Date(last.time).toLocaleTimeString("en-GB")}, status ${last.status}, `
      + `request ${last.requestId}: ${last.message}`);
    const each = Object.entries(types).map(([type, number]) => `${number} ${type}`).join(", ");
    setText(this.errorTypes, `${count} answered with a status of 500 or more since the version was registered: ${each}`);
  }

  tellOptions(facts, summaries) {
    const text = JSON.stringify(facts.options);
    if (text === this.optionsShown) return;
    this.optionsShown = text;
    this.options.replaceChildren(...facts.options.map(([name, value, source]) =>
      h("tr", { class: source === "default" ? "" : "given" }, h("th", { scope: "row", class: "mono" }, name),
        h("td", { class: "mono value" }, value || "–"), h("td", { class: "source" }, source),
        h("td", { class: "quiet" }, summaries[name] ?? ""))));
  }

  figures(history, errors) {
    this.errors.hidden = !errors;
    setText(this.errors, errorText(errors));
    this.plots.update(history);
  }

  close() {
    this.plots.close();
    this.chat.close();
    this.try.take(null);
  }
}
