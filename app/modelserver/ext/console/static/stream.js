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

const dataOf = (event) => event.split("\n").find((line) => line.startsWith("data: "))?.slice(6);

// `on` has: path(signal), event(data), live(), gone(), refused(message), which returns when there may be another token,
// and may have `signal`, which ends it, and open(), when the server has answered.
export async function listen(on) {
  let failures = 0;
  while (!on.signal?.aborted) {
    await visible();
    if (on.signal?.aborted) return;
    const stop = new AbortController();
    const end = () => stop.abort();
    on.signal?.addEventListener("abort", end);
    let watchdog = setTimeout(() => stop.abort(), SILENCE);
    const hide = watchHidden(() => stop.abort());
    try {
      const headers = { accept: "text/event-stream" };
      const response = await call(await on.path(stop.signal), { signal: stop.signal, headers });
      if (!response.ok) throw new Error(String(response.status));
      on.open?.();
      for await (const event of read(response.body)) {
        if (event.startsWith("event: expired")) throw new TokenRefused("The token is no longer valid.");
        clearTimeout(watchdog);
        watchdog = setTimeout(() => stop.abort(), SILENCE);
        const data = dataOf(event);
        if (data && !on.signal?.aborted) {
          failures = 0;
          on.live?.();
          on.event(JSON.parse(data));
        }
      }
      throw new Error("The stream ended.");
    } catch (error) {
      if (on.signal?.aborted) return;
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
      on.signal?.removeEventListener("abort", end);
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
