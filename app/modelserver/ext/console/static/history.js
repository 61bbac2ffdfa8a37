// From counts since the start to figures of each interval. The server sends the counts, nothing is kept there.

const POINTS = 600;
// Seconds over which errors are averaged: a single one stays visible for so long.
const LATELY = 30;
export const SERIES = [
  "rate", "lost", "errors", "p50", "p99", "queue50", "queue99", "handler50", "handler99", "size", "fill", "busy",
  "tokensIn", "tokensOut", "first50", "first99", "interval50", "interval99",
  "streams", "engineRunning", "engineWaiting", "cache", "hits",
];

const minus = (now, before) => now.map((value, index) => value - before[index]);
const sum = (values) => values.reduce((total, value) => total + value, 0);

// As Prometheus' histogram_quantile: linear within a bucket. In ms; null without observations.
export function quantile(share, bounds, counts) {
  const total = sum(counts);
  if (!total) return null;
  let left = share * total;
  for (let index = 0; index < bounds.length; index += 1) {
    if (counts[index] >= left) {
      const low = index ? bounds[index - 1] : 0;
      return 1e3 * (low + (bounds[index] - low) * (left / counts[index]));
    }
    left -= counts[index];
  }
  return 1e3 * bounds[bounds.length - 1];
}

// Of a language model, from its own counts; of others nothing.
function language(now, before, bounds, seconds) {
  if (!now) return {};
  const since = (name) => {
    const counts = now[name]?.slice(1) ?? [];
    return before?.[name] ? minus(counts, before[name].slice(1)) : counts;
  };
  const [first, interval] = ["first", "interval"].map(since);
  const { streams, engineRunning, engineWaiting, cache, hits } = now;
  return {
    tokensIn: ((now.tokensIn ?? 0) - (before?.tokensIn ?? 0)) / seconds,
    tokensOut: ((now.tokensOut ?? 0) - (before?.tokensOut ?? 0)) / seconds,
    first50: quantile(0.5, bounds.first, first),
    first99: quantile(0.99, bounds.first, first),
    interval50: quantile(0.5, bounds.interval, interval),
    interval99: quantile(0.99, bounds.interval, interval),
    streams, engineRunning, engineWaiting, cache, hits,
  };
}

export class History {
  constructor() {
    this.times = [];
    this.series = Object.fromEntries(SERIES.map((name) => [name, []]));
    this.last = null;
    this.at = 0;
  }

  // The server has begun again, or there was a break: the next counts are a new beginning.
  interrupt() {
    this.last = null;
  }

  add(at, figures, bounds, workers) {
    const before = this.last;
    const seconds = at - this.at;
    if (before && seconds <= 0) return;
    this.last = figures;
    this.at = at;
    const now = Date.now() / 1e3;
    if (!before || figures.size[1] < before.size[1] || seconds > 30) {
      if (this.times.length) this.push(now, {});
      return;
    }
    const latency = minus(figures.latency, before.latency);
    const queue = minus(figures.queue, before.queue);
    const handler = minus(figures.handler, before.handler);
    const [instances, batches] = minus(figures.size, before.size);
    const [fill] = minus(figures.fill, before.fill);
    const lost = figures.unanswered - before.unanswered;
    const answered = sum(latency.slice(1));
    this.push(now, {
      rate: answered / seconds,
      lost: lost / seconds,
      errors: (figures.errors - before.errors) / seconds,
      p50: quantile(0.5, bounds.latency, latency.slice(1)),
      p99: quantile(0.99, bounds.latency, latency.slice(1)),
      queue50: quantile(0.5, bounds.parts, queue.slice(1)),
      queue99: quantile(0.99, bounds.parts, queue.slice(1)),
      handler50: quantile(0.5, bounds.parts, handler.slice(1)),
      handler99: quantile(0.99, bounds.parts, handler.slice(1)),
      size: batches ? instances / batches : null,
      fill: batches ? (100 * fill) / batches : null,
      busy: workers ? Math.min(100, (100 * handler[0]) / seconds / workers) : null,
      ...language(figures.language, before.language, bounds, seconds),
    });
  }

  push(now, point) {
    this.times.push(now);
    for (const name of SERIES) this.series[name].push(point[name] ?? null);
    if (this.times.length > POINTS) {
      this.times.shift();
      for (const name of SERIES) this.series[name].shift();
    }
  }

  // Errors per second, on average of the last while.
  errorRate() {
    const from = (this.times.at(-1) ?? 0) - LATELY;
    const lately = this.series.errors.filter((each, index) => each !== null && this.times[index] > from);
    return lately.length ? sum(lately) / lately.length : 0;
  }

  has(name) {
    return this.series[name].some((value) => value !== null);
  }
}
