// A dialog that shows what is about to be sent, sends it once it is confirmed, and shows the answer as it came.

import { TokenRefused, addressOf, call, hasToken } from "./api.js";
import { h, setText } from "./dom.js";

// One word of a command line.
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// The command that sends the same; the shell puts the token in.
export function curlOf({ method, path, body }) {
  const words = ["curl", "-X", method];
  if (hasToken()) words.push("-H", '"Authorization: Bearer $TOKEN"');
  if (body) words.push("-H", "'Content-Type: application/json'", "-d", quoted(body));
  return [...words, quoted(addressOf(path))].join(" ");
}

async function copy(text, element) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Only pages of HTTPS or of this machine have a clipboard; the reader copies the selection.
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
  return true;
}

let numbers = 0;

// `action` has `title`, `about`, `confirm` (the button's text), `fields` (elements), `isDangerous`, and
// `request()`: the method, path and body (a text of JSON) of what is sent, or null while something is missing.
export function confirmAction(guarded, action) {
  const id = `action-${(numbers += 1)}`;
  const command = h("pre", { tabindex: "0", "aria-label": "The same as a command" });
  const copied = h("button", { type: "button", onclick: async () => {
    setText(copied, (await copy(command.textContent, command)) ? "Copied" : "Selected");
  } }, "Copy");
  const status = h("p", { class: "result" });
  const answer = h("pre", { tabindex: "0", "aria-label": "The server's answer", hidden: true });
  const confirm = h("button", { type: "submit", class: action.isDangerous ? "danger" : "main" }, action.confirm);
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h("form", {}, h("h2", { id }, action.title), h("p", {}, action.about), ...action.fields ?? [],
    h("p", { class: "quiet" }, "The same as a command:"), command, h("div", { class: "buttons" }, copied),
    h("div", { role: "status" }, status, answer), h("div", { class: "buttons" }, close, confirm));
  const dialog = h("dialog", { class: "action", "aria-labelledby": id, onclose: () => dialog.remove() }, form);

  const show = () => {
    const request = action.request();
    confirm.disabled = !request;
    setText(command, request ? curlOf(request) : "–");
    setText(copied, "Copy");
  };
  const tell = (kind, text, body = "") => {
    status.dataset.kind = kind;
    setText(status, text);
    setText(answer, body);
    answer.hidden = !body;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = action.request();
    if (!request) return;
    confirm.disabled = true;
    tell("", "Waiting for the server…");
    try {
      const { method, path, body } = request;
      const headers = body ? { "content-type": "application/json" } : {};
      const response = await guarded(() => call(path, { method, headers, body }));
      // With a token that was entered meanwhile, the command has one as well.
      setText(command, curlOf(request));
      tell(response.ok ? "good" : "bad", `${response.status} ${response.statusText}`, await response.text());
      confirm.hidden = response.ok;
      if (response.ok) {
        setText(close, "Close");
        close.focus();
      }
    } catch (error) {
      tell("bad", error instanceof TokenRefused ? error.message : `The server cannot be reached: ${error.message}`);
    } finally {
      confirm.disabled = false;
    }
  });
  document.body.append(dialog);
  show();
  dialog.showModal();
}
