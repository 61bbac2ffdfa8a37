// Trying a request: a file, JSON, V1 or V2; its answer, batch and times.

import { call } from "./api.js";
import { choice, field, folded, h, setText, table } from "./dom.js";
import { shown } from "./units.js";

const AT_ONCE = 5;
const MOST_SHOWN = 20_000;
const KINDS = { predictions: "Prediction (any body)", v1: "V1 (instances)", v2: "V2 (Open Inference)" };
const EXAMPLES = {
  predictions: '{"data": "Hello"}',
  v1: '{"instances": ["Hello"]}',
  v2: '{"inputs": [{"name": "input", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}]}',
};

const base64 = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

// One tensor of one element, the file, in binary form behind the JSON.
function binaryTensor(file) {
  const head = new TextEncoder().encode(JSON.stringify({
    inputs: [{ name: "input", shape: [1], datatype: "BYTES", parameters: { binary_data_size: file.size + 4 } }],
  }));
  const size = new DataView(new ArrayBuffer(4));
  size.setUint32(0, file.size, true);
  const headers = {
    "content-type": "application/octet-stream", "inference-header-content-length": String(head.length),
  };
  return { body: new Blob([head, size, file]), headers };
}

export class Try {
  constructor(guarded) {
    this.guarded = guarded;
    this.file = null;
    this.kind = choice(Object.keys(KINDS));
    [...this.kind.options].forEach((option) => setText(option, KINDS[option.value]));
    this.text = h("textarea", { rows: "5", spellcheck: "false" });
    this.text.value = EXAMPLES.predictions;
    this.picker = h("input", { type: "file" });
    this.preview = h("img", { class: "preview", alt: "The chosen picture", hidden: true });
    this.name = h("span", {});
    this.clear = h("button", { type: "button", hidden: true, onclick: () => this.take(null) }, "Without the file");
    this.drop = h("div", { class: "drop" }, this.preview, h("div", {},
      field("A file: choose one, or drop it here", this.picker), this.name, " ", this.clear));
    this.buttons = [1, AT_ONCE].map((count) => h("button", {
      type: "button", class: count === 1 ? "main" : "", onclick: () => this.send(count),
    }, count === 1 ? "Send" : `Send ${count} at once`));
    this.result = h("div", { class: "answer", role: "status" });
    this.kind.addEventListener("change", () => {
      if (Object.values(EXAMPLES).includes(this.text.value)) this.text.value = EXAMPLES[this.kind.value];
    });
    this.picker.addEventListener("change", () => this.picker.files[0] && this.take(this.picker.files[0]));
    this.element = folded("Try a request",
      h("div", { class: "columns" },
        h("div", {}, field("Kind", this.kind), field("Body", this.text), this.drop,
          h("div", { class: "buttons" }, ...this.buttons)),
        this.result));
    this.watchDrops();
  }

  watchDrops() {
    for (const name of ["dragenter", "dragover"]) {
      this.element.addEventListener(name, (event) => {
        event.preventDefault();
        this.drop.classList.add("over");
      });
    }
    this.element.addEventListener("dragleave", () => this.drop.classList.remove("over"));
    this.element.addEventListener("drop", (event) => {
      event.preventDefault();
      this.drop.classList.remove("over");
      if (event.dataTransfer.files.length) this.take(event.dataTransfer.files[0]);
    });
  }

  take(file) {
    if (this.preview.src) URL.revokeObjectURL(this.preview.src);
    this.preview.removeAttribute("src");
    this.file = file;
    const picture = file !== null && /^image\/(png|jpeg|gif|webp|bmp|avif)$/.test(file.type);
    if (picture) this.preview.src = URL.createObjectURL(file);
    this.preview.hidden = !picture;
    this.clear.hidden = file === null;
    this.text.disabled = file !== null;
    if (file === null) this.picker.value = "";
    setText(this.name, file === null ? "" : `${file.name}, ${file.size} bytes, is sent instead of the body.`);
  }

  update(facts) {
    this.facts = facts;
  }

  path() {
    const [name, version] = [this.facts.modelName, this.facts.modelVersion].map(encodeURIComponent);
    // V1 has no versions in its paths: it reaches the default one.
    if (this.kind.value === "v1") return `console/try/v1/models/${name}:predict`;
    return this.kind.value === "v2" ? `console/try/v2/models/${name}/versions/${version}/infer`
      : `console/try/predictions/${name}/${version}`;
  }

  async request() {
    const { file } = this;
    if (file && this.kind.value === "v2") return binaryTensor(file);
    if (file && this.kind.value === "v1") {
      const body = JSON.stringify({ instances: [{ b64: await base64(file) }] });
      return { body, headers: { "content-type": "application/json" } };
    }
    if (file) return { body: file, headers: { "content-type": file.type || "application/octet-stream" } };
    const body = this.text.value;
    let type = "application/json";
    try {
      JSON.parse(body);
    } catch {
      type = this.kind.value === "predictions" ? "text/plain" : type;
    }
    return { body, headers: { "content-type": type } };
  }

  async send(count) {
    this.buttons.forEach((button) => { button.disabled = true; });
    this.result.replaceChildren(h("p", { class: "quiet" }, "Waiting for the answer…"));
    try {
      const request = await this.request();
      const one = async () => {
        const began = performance.now();
        const response = await call(this.path(), { method: "POST", ...request });
        const blob = await response.blob();
        return { response, blob, took: performance.now() - began };
      };
      const answers = await this.guarded(() => Promise.all(Array.from({ length: count }, one)));
      this.result.replaceChildren(...(await describe(answers)));
    } catch (error) {
      this.result.replaceChildren(h("p", { class: "result", "data-kind": "bad" }, error.message));
    } finally {
      this.buttons.forEach((button) => { button.disabled = false; });
    }
  }
}

function told({ response, took }) {
  const times = Object.fromEntries([...(response.headers.get("server-timing") ?? "").matchAll(/(\w+);dur=([\d.]+)/g)]
    .map(([, name, value]) => [name, Number(value)]));
  return [
    String(response.status), shown(took, "ms"), response.headers.get("x-batch-id")?.slice(-8) ?? "–",
    response.headers.get("x-batch-size") ?? "–", shown(times.queue, "ms"), shown(times.inference, "ms"),
  ];
}

async function describe(answers) {
  const rows = answers.map((answer) => {
    const [status, ...rest] = told(answer);
    const kind = answer.response.ok ? "good" : "bad";
    return h("tr", {}, h("td", { class: "result", "data-kind": kind }, status),
      ...rest.map((text, index) => h("td", { class: index === 1 ? "mono" : "" }, text)));
  });
  const heads = ["Status", "Round trip", "Batch", "Its size", "Queue", "Handling"];
  return [h("div", { class: "wide", tabindex: "0" }, table(heads, rows, "Answers")), await content(answers[0])];
}

async function content({ response, blob }) {
  const type = response.headers.get("content-type") ?? "";
  if (/^image\/(png|jpeg|gif|webp)/.test(type)) {
    const src = URL.createObjectURL(blob);
    return h("img", { class: "preview", alt: "The answer", src, onload: () => URL.revokeObjectURL(src) });
  }
  let text = await blob.slice(0, MOST_SHOWN).text();
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Shown as it is.
  }
  const rest = blob.size > MOST_SHOWN ? `\n… (${blob.size} bytes)` : "";
  return h("pre", { tabindex: "0", "aria-label": "Answer" }, text + rest);
}
