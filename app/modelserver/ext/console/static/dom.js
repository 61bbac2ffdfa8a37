// Elements by hand. Texts only ever become text nodes, so no name or output can be markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

export const byId = (id) => document.getElementById(id);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

let numbers = 0;

// A label with its control, and a note below it.
export function field(label, control, note) {
  control.id = `field-${(numbers += 1)}`;
  const about = note ? h("small", { id: `${control.id}-note`, class: "quiet" }, note) : null;
  if (about) control.setAttribute("aria-describedby", about.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, about);
}

export function number(attributes) {
  return h("input", { type: "number", inputmode: "numeric", required: true, ...attributes });
}

export function choice(values) {
  return h("select", {}, ...values.map((value) => h("option", { value }, value)));
}

export function section(title, ...children) {
  const id = `section-${(numbers += 1)}`;
  return h("section", { class: "card", "aria-labelledby": id }, h("h3", { id }, title), ...children);
}

const unfolded = new Set();

// A section that is folded until it is opened, here or on the page of another model.
export function folded(title, ...children) {
  const id = `section-${(numbers += 1)}`;
  const details = h("details", { open: unfolded.has(title), ontoggle: () => {
    if (details.open) unfolded.add(title);
    else unfolded.delete(title);
  } }, h("summary", {}, h("h3", { id }, title)), ...children);
  return h("section", { class: "card fold", "aria-labelledby": id }, details);
}

export function table(headings, rows, caption) {
  return h("table", {},
    h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, ...headings.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, ...rows));
}
