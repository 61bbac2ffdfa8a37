// The stream of events, read again after every end. EventSource cannot send a token.

import { TokenRefused, call } from "./api.js";

const PAUSES = [500, 1000, 2000, 4000, 5000];
// Without an event for so long, the connection is dead.
const SILENCE = 20_000;
// A page that nobody sees for so long stops listening.
const HIDDEN = 60_000;

async function* read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    yield* events;
  }
}

// `on` has: path(), event(data), live(), gone(), refused(message), which returns when there may be another token.
export async function listen(on) {
  let failures = 0;
  for (;;) {
    await visible();
    const stop = new AbortController();
    let watchdog = setTimeout(() => stop.abort(), SILENCE);
    const hide = watchHidden(() => stop.abort());
    try {
      const response = await call(on.path(), { signal: stop.signal });
      if (!response.ok) throw new Error(String(response.status));
      for await (const event of read(response.body)) {
        if (event.startsWith("event: expired")) throw new TokenRefused("The token is no longer valid.");
        clearTimeout(watchdog);
        watchdog = setTimeout(() => stop.abort(), SILENCE);
        if (event.startsWith("data: ")) {
          failures = 0;
          on.live();
          on.event(JSON.parse(event.slice(6)));
        }
      }
      throw new Error("The stream ended.");
    } catch (error) {
      if (error instanceof TokenRefused) {
        await on.refused(error.message);
      } else if (document.visibilityState === "visible") {
        on.gone();
        await new Promise((resolve) => setTimeout(resolve, PAUSES[Math.min(failures, PAUSES.length - 1)]));
        failures += 1;
      }
    } finally {
      clearTimeout(watchdog);
      stop.abort();
      hide();
    }
  }
}

function watchHidden(stop) {
  let timer = 0;
  const look = () => {
    clearTimeout(timer);
    if (document.visibilityState === "hidden") timer = setTimeout(stop, HIDDEN);
  };
  look();
  document.addEventListener("visibilitychange", look);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
  };
}

function visible() {
  if (document.visibilityState === "visible") return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}
