// Every setting of the server, and where its value comes from.

import { field, h, section, table } from "./dom.js";

export function settingsView(told) {
  const filter = h("input", { type: "search", placeholder: "Part of a name or value" });
  const given = h("input", { type: "checkbox" });
  const groups = Map.groupBy
    ? Map.groupBy(told.settings, (each) => each.group)
    : told.settings.reduce((map, each) => map.set(each.group, [...(map.get(each.group) ?? []), each]), new Map());
  const all = [];
  const sections = [...groups].map(([group, settings]) => {
    const rows = settings.map((each) => {
      const row = h("tr", { class: each.source === "default" ? "" : "given" },
        h("th", { scope: "row", class: "mono" }, each.name), h("td", { class: "mono value" }, each.value || "–"),
        h("td", { class: "source" }, each.source), h("td", { class: "quiet" }, each.about));
      all.push([row, each]);
      return row;
    });
    return section(group, h("div", { class: "wide", tabindex: "0" }, table(["Name", "Value", "Source", ""], rows, group)));
  });
  const apply = () => {
    const wanted = filter.value.toLowerCase();
    for (const [row, each] of all) {
      const found = `${each.name} ${each.value} ${each.source}`.toLowerCase().includes(wanted);
      row.hidden = !found || (given.checked && each.source === "default");
    }
    for (const each of sections) each.hidden = !each.querySelector("tbody tr:not([hidden])");
  };
  filter.addEventListener("input", apply);
  given.addEventListener("change", apply);
  return [
    h("div", { class: "title-row" }, h("h2", {}, "Settings of the server")),
    h("div", { class: "card filters" }, field("Filter", filter),
      h("label", { class: "check" }, given, " only those that were set")),
    ...sections,
  ];
}
