// Items of the server in the order of their ids: the newest page, pages before it, and those to come.

import { json } from "./api.js";
import { listen } from "./stream.js";

const PAGE = 200;
// So many are kept, and so many if the reader wants older ones.
const MOST = 1000;
const MOST_OLDER = 5000;

export class Feed {
  // `name` is that of the list in pages at `path`; `on` has changed(), and refused() as for listen.
  constructor(path, name, on) {
    Object.assign(this, { path, name, on, stop: null, filters: {} });
    this.empty();
  }

  empty() {
    Object.assign(this, { items: [], page: {}, hasOlder: false, most: MOST, state: "loading" });
  }

  // Begins anew with these filters.
  open(filters) {
    this.filters = Object.fromEntries(Object.entries(filters).filter(([, value]) => value));
    this.empty();
    this.follow();
  }

  // Goes on after the last item.
  follow() {
    this.close();
    const { signal } = this.stop = new AbortController();
    listen({
      signal,
      path: async (reading) => {
        await this.catchUp(reading);
        return this.url({ since: Math.max(this.page.last, this.items.at(-1)?.id ?? 0), follow: true });
      },
      open: () => this.tell("live"),
      event: (data) => this.take(data),
      gone: () => this.tell("gone"),
      refused: this.on.refused,
    });
  }

  close() {
    this.stop?.abort();
    this.stop = null;
  }

  // What was missed, or everything anew if the server is another one, or too much was.
  async catchUp(signal) {
    const known = this.items.at(-1);
    const page = await json(this.url({ ...(known && { since: known.id - 1 }), limit: PAGE }), { signal });
    signal.throwIfAborted();
    const items = page[this.name];
    if (known && (items[0]?.id !== known.id || items[0].time !== known.time || items.length === PAGE)) {
      this.empty();
      await this.catchUp(signal);
      return;
    }
    this.page = page;
    if (!known) this.hasOlder = items.length === PAGE;
    this.add(items);
  }

  async older() {
    const page = await json(this.url({ before: this.items[0].id, limit: PAGE }));
    const items = page[this.name];
    this.hasOlder = items.length === PAGE && this.items.length < MOST_OLDER;
    this.most = Math.min(MOST_OLDER, this.items.length + items.length + MOST);
    this.items = [...items, ...this.items];
    this.on.changed();
  }

  // Items, or the answers to a request that had none yet when its page was read.
  take(data) {
    if (data.answers) this.page.answers = data.answers;
    this.add(data.answers ? [] : [data].flat());
  }

  add(items) {
    const last = this.items.at(-1)?.id ?? 0;
    this.items.push(...items.filter((each) => each.id > last));
    if (this.items.length > this.most) {
      this.items.splice(0, this.items.length - this.most);
      this.hasOlder = true;
    }
    this.on.changed();
  }

  tell(state) {
    this.state = state;
    this.on.changed();
  }

  url(more) {
    return `${this.path}?${new URLSearchParams({ ...this.filters, ...more })}`;
  }
}
