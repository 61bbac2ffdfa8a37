// What an operator can do with a model, each by one request of the management API.

import { json, pathOf } from "./api.js";
import { confirmAction } from "./confirm.js";
import { choice, field, h, number, section, setText } from "./dom.js";

const modelPath = (name) => `models/${encodeURIComponent(name)}`;

export class Actions {
  constructor(guarded) {
    this.guarded = guarded;
    const button = (text, act) => h("button", { type: "button", onclick: () => this.run(act) }, text);
    this.load = button("Load…", () => this.park("load"));
    this.parking = button("Park…", () => this.park("park"));
    this.makeDefault = button("Make it the default…", () => this.setDefault());
    this.result = h("p", { class: "result", role: "status" });
    this.element = section("Actions", h("div", { class: "buttons" },
      button("Restart workers…", () => this.restart()), button("Scale…", () => this.scale()), this.load, this.parking,
      this.makeDefault, button("Traffic weights…", () => this.weigh()),
      button("Back to the last version…", () => this.back()), button("Remove…", () => this.remove())), this.result);
  }

  update(facts) {
    this.facts = facts;
    this.load.hidden = this.parking.hidden = !facts.parking;
    this.makeDefault.hidden = facts.default;
  }

  // Opens a dialog; what it needs to know first may be refused.
  async run(act) {
    setText(this.result, "");
    try {
      const action = await act();
      confirmAction(this.guarded, action);
    } catch (error) {
      this.result.dataset.kind = "bad";
      setText(this.result, error.message);
    }
  }

  get label() {
    return `${this.facts.modelName} ${this.facts.modelVersion}`;
  }

  restart() {
    const path = `${pathOf(this.facts)}?action=restart`;
    return {
      title: `Restart the workers of ${this.label}`, confirm: "Restart",
      about: "A new worker takes the place of each, one after the other, once it has loaded the model. No request fails.",
      request: () => ({ method: "POST", path }),
    };
  }

  scale() {
    const path = pathOf(this.facts);
    const [fewest, most] = [number({ min: "0", max: "1024" }), number({ min: "0", max: "1024" })];
    fewest.value = this.facts.minWorkers;
    most.value = this.facts.maxWorkers;
    return {
      title: `Scale ${this.label}`, confirm: "Scale",
      about: "Workers are added, or end with what they have begun. Without workers, requests are refused.",
      fields: [h("div", { class: "fields" }, field("Fewest workers", fewest), field("Most workers", most))],
      request: () => fewest.validity.valid && most.validity.valid ? {
        method: "PUT",
        path: `${path}?${new URLSearchParams({ min_worker: fewest.value, max_worker: most.value, synchronous: true })}`,
      } : null,
    };
  }

  park(action) {
    const path = `${pathOf(this.facts)}?action=${action}`;
    return {
      title: `${action === "load" ? "Load" : "Park"} ${this.label}`, confirm: action === "load" ? "Load" : "Park",
      about: action === "load" ? "Its workers load now instead of for the next request."
        : "Its workers end once they have answered; the next request loads it again.",
      request: () => ({ method: "POST", path }),
    };
  }

  setDefault() {
    const path = `${pathOf(this.facts)}/set-default`;
    return {
      title: `Make ${this.label} the default version`, confirm: "Make it the default",
      about: "It gets all requests that name no version. Weights are removed, and a promotion ends.",
      request: () => ({ method: "PUT", path }),
    };
  }

  async weigh() {
    const { modelName: name } = this.facts;
    const [versions, traffic] = await this.known(name);
    const shares = versions.map((version) => [version, number({ min: "0", max: "100", step: "any", inputmode: "decimal" })]);
    for (const [version, control] of shares) control.value = (traffic.weights ?? traffic.effective)[version] ?? 0;
    const total = () => shares.reduce((sum, [, control]) => sum + Number(control.value), 0);
    return {
      title: `Traffic of ${name}`, confirm: "Divide the requests",
      about: "The share of the requests that name no version, in percent; together 100.",
      fields: [h("div", { class: "fields" }, ...shares.map(([version, control]) => field(version, control)))],
      request: () => shares.every(([, control]) => control.validity.valid) && Math.abs(total() - 100) < 1e-6 ? {
        method: "PUT", path: `${modelPath(name)}/traffic`,
        body: JSON.stringify({ weights: Object.fromEntries(shares.map(([version, { value }]) => [version, Number(value)])) }),
      } : null,
    };
  }

  // While requests are divided: all to the default version; else the version that was the default before.
  async back() {
    const { modelName: name } = this.facts;
    const [versions, traffic] = await this.known(name);
    const isDivided = Boolean(traffic.weights || traffic.shadow || traffic.promote);
    const others = versions.filter((version) => version !== traffic.default);
    if (!isDivided && !others.length) throw new Error(`${name} has no other version.`);
    const to = choice(isDivided ? [traffic.default, ...others] : others);
    to.value = isDivided ? traffic.default : await this.lastDefault(name, others);
    return {
      title: `Back to the last version of ${name}`, confirm: "Go back",
      about: `All requests that name no version go to the version below; the default is ${traffic.default} now. `
        + "Weights and shadows are removed, and a promotion ends.",
      fields: [field("Version", to)],
      request: () => to.value === traffic.default ? { method: "DELETE", path: `${modelPath(name)}/traffic` }
        : { method: "PUT", path: `${modelPath(name)}/${encodeURIComponent(to.value)}/set-default` },
    };
  }

  remove() {
    const path = pathOf(this.facts);
    return {
      title: `Remove ${this.label}`, confirm: "Remove", isDangerous: true,
      about: "Its workers end with what they have begun, and requests for it get 404. Its archive stays in the store.",
      request: () => ({ method: "DELETE", path }),
    };
  }

  async known(name) {
    const [described, traffic] = await this.guarded(() => Promise.all(
      [json(`${modelPath(name)}/all`), json(`${modelPath(name)}/traffic`)]));
    return [described.map((each) => each.modelVersion), traffic];
  }

  // As the events say; without any, the newest of the others.
  async lastDefault(name, others) {
    const query = new URLSearchParams({ model: name, kind: "default_changed", limit: 1000 });
    const { events } = await this.guarded(() => json(`events?${query}`)).catch(() => ({ events: [] }));
    const last = events.map((event) => event.version).filter((version) => others.includes(version)).at(-1);
    return last ?? others.at(-1);
  }
}
