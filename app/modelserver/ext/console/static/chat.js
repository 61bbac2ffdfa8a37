// A chat with a language model: its answer as it comes, the time to its first token, and tokens per second.

import { call } from "./api.js";
import { field, folded, h, setText } from "./dom.js";
import { shown } from "./units.js";

const ENDPOINT = "v1/chat/completions";

// The documents of a stream of events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    const lines = (text + read.value).split("\n");
    text = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
    }
  }
}

export class Chat {
  constructor(guarded) {
    this.guarded = guarded;
    this.messages = [];
    this.log = h("div", { class: "chat", role: "log", "aria-label": "Conversation" });
    this.text = h("textarea", { rows: "2" });
    this.send = h("button", { class: "main", type: "button", onclick: () => this.ask() }, "Send");
    this.stop = h("button", { type: "button", disabled: true, onclick: () => this.close() }, "Stop");
    const restart = h("button", { type: "button", onclick: () => this.restart() }, "New chat");
    this.figures = h("p", { class: "result quiet", role: "status" });
    this.element = folded("Chat", this.log, field("Message", this.text),
      h("div", { class: "buttons" }, this.send, this.stop, restart), this.figures);
    this.element.hidden = true;
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      this.ask();
    });
  }

  update(facts) {
    this.path = `console/try/predictions/${encodeURIComponent(facts.modelName)}/`
      + `${encodeURIComponent(facts.modelVersion)}/${ENDPOINT}`;
    this.model = facts.modelName;
    this.element.hidden = !facts.endpoints.includes(ENDPOINT);
  }

  restart() {
    this.close();
    this.messages = [];
    this.log.replaceChildren();
    setText(this.figures, "");
  }

  close() {
    this.leaving?.abort();
  }

  async ask() {
    const content = this.text.value.trim();
    if (!content || this.leaving) return;
    this.text.value = "";
    this.messages.push({ role: "user", content });
    const answer = h("p", {});
    this.log.append(h("p", { class: "quiet" }, content), answer);
    this.leaving = new AbortController();
    [this.send.disabled, this.stop.disabled] = [true, false];
    try {
      await this.read(answer, [...this.messages]);
    } catch (error) {
      if (error.name !== "AbortError") setText(this.figures, error.message);
    } finally {
      this.messages.push({ role: "assistant", content: answer.textContent });
      this.leaving = null;
      [this.send.disabled, this.stop.disabled] = [false, true];
    }
  }

  async read(answer, messages) {
    const began = performance.now();
    const body = JSON.stringify({ model: this.model, messages, stream: true, stream_options: { include_usage: true } });
    const response = await this.guarded(() => call(this.path, {
      method: "POST", headers: { "content-type": "application/json" }, body, signal: this.leaving.signal,
    }));
    if (!response.ok) throw new Error((await response.json()).error?.message ?? `status ${response.status}`);
    let [first, count] = [0, 0];
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const piece = event.choices?.[0]?.delta?.content;
      if (piece) [first, count] = [first || performance.now(), count + 1];
      answer.append(piece ?? "");
      // Until the usage comes at the end only parts are known, of which each may have several tokens.
      const [size, unit] = event.usage ? [event.usage.completion_tokens, "tokens"] : [count, "parts"];
      const seconds = first ? (performance.now() - first) / 1000 : 0;
      const rate = size > 1 && seconds ? ` · ${shown((size - 1) / seconds, `${unit}/s`)}` : "";
      setText(this.figures, `first token after ${shown((first || performance.now()) - began, "ms")} · ${size} ${unit}${rate}`);
    }
  }
}
