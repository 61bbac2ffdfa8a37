"""What to try next, given what is known: sizes, loads, workers, threads, policies. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace

from modelserver.models.options.resolve import DEFAULT_BATCH_DELAY
from modelserver.tools.tune.figure import CostLine, Figure, fit_line
from modelserver.tools.tune.goal import Goal, ModelSetting

GAIN = 1.03  # smaller gains do not count
MOST_SIZES = 2  # to measure, besides 1 and the one that the line suggests
COST_DELAY = 10  # ms, enough for the requests of all clients to arrive
_NOISE = 1.15  # a size that misses the limit by less may still be tried
_ROOM = 0.92  # of the limit, for a size that is not measured
_LADDER = 6  # points of the curve


@dataclass(frozen=True, slots=True)
class SearchBounds:
    """What may be tried. ``clients``: the load to tune for, None: as many as the setting can use.

    ``threads_free``: the tuner may change the workers' number of threads.
    """

    max_batch: int = 64
    max_workers: int = 1
    cores: int = 1
    clients: int | None = None
    threads_free: bool = True
    threads: int | None = None


@dataclass(slots=True)
class Costs:
    """The first stage: one worker with the whole machine, and as many clients as instances in a batch.

    ``handler_ms`` is the handler's time by batch size; ``figures`` are by number of clients, each of which
    waited ``COST_DELAY`` for the others.
    """

    handler_ms: dict[int, float] = field(default_factory=dict)
    figures: dict[int, Figure] = field(default_factory=dict)
    pruned: list[str] = field(default_factory=list)

    def add(self, clients: int, figure: Figure) -> None:
        """Adds a figure; known costs of a batch size are kept."""
        self.figures[clients] = figure
        self.handler_ms = dict(sorted({**figure.costs, **self.handler_ms}.items()))

    @property
    def line(self) -> CostLine | None:
        """The fit through what is known so far."""
        return fit_line(self.handler_ms)

    def rate(self, size: int) -> float:
        """Requests per second that the handler can process in batches of a measured size."""
        cost = self.handler_ms.get(size, 0.0)
        return size / cost * 1e3 if cost > 0 else self.figures[size].rate

    def overhead_ms(self) -> float:
        """The time of a request besides the handler and waiting for others."""
        beside = [
            figure.p50_ms - COST_DELAY - self.handler_ms[n]
            for n, figure in self.figures.items()
            if not figure.void and n in self.handler_ms
        ]
        return max(0.0, statistics.median(beside)) if beside else 0.0

    def expected_ms(self, size: int) -> float:
        """The estimated time of a batch, 0 if unknown."""
        line = self.line
        if size in self.handler_ms:
            return self.handler_ms[size]
        if line is not None:
            return max(0.0, line.at(size))
        return next(iter(self.handler_ms.values()), 0.0)


def sizes(largest: int) -> list[int]:
    """The batch sizes of the first stage: doubling, and the largest."""
    doubling = [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]
    return doubling if doubling[-1] == largest else [*doubling, largest]


def pruned(goal: Goal, bounds: SearchBounds, size: int, costs: Costs) -> str | None:
    """Why this size, and all above it, need not be measured; None if it has a chance."""
    if bounds.clients is not None and size >= 2 * bounds.clients:
        return f"{bounds.clients} clients never fill a batch of {size}"
    if goal.limit_ms is not None and (why := _too_slow(goal.limit_ms, size, costs)):
        return why
    rates = [costs.rate(measured) for measured in sorted(costs.figures)]
    if len(rates) >= 3 and rates[-1] < GAIN * rates[-2] and rates[-2] < GAIN * rates[-3]:
        return f"batches above {sorted(costs.figures)[-3]} bring no more throughput"
    return None


def _too_slow(limit_ms: float, size: int, costs: Costs) -> str | None:
    if costs.handler_ms:
        largest, slowest = max(costs.handler_ms.items())
        if slowest > limit_ms:
            return f"a batch of {largest} alone takes {slowest:.4g} ms, the limit is {limit_ms:g} ms"
    line = costs.line
    if line is not None and line.trusted and line.at(size) > _NOISE * limit_ms:
        return f"a batch of {size} would take about {line.at(size):.4g} ms, the limit is {limit_ms:g} ms"
    return None


def promising(goal: Goal, bounds: SearchBounds, costs: Costs) -> list[int]:
    """The sizes to measure: 1, for comparison, then the most promising first."""
    usable = {size: figure for size, figure in costs.figures.items() if not figure.void}
    limit = goal.limit_ms
    if limit is not None:
        usable = {n: f for n, f in usable.items() if goal.latency(f) - COST_DELAY <= _NOISE * limit}
    ranked = sorted(usable, key=lambda n: -costs.rate(n))[:MOST_SIZES]
    between = None if limit is None else in_between(limit, costs)
    sizes_ = [1, *([between] if between else []), *ranked]
    return list(dict.fromkeys(size for size in sizes_ if size <= bounds.max_batch))


def in_between(limit_ms: float, costs: Costs) -> int | None:
    """The largest size that should meet the limit by the fitted line; None if it is not worth measuring."""
    line = costs.line
    if line is None or not line.trusted:
        return None
    size = line.largest_within(_ROOM * limit_ms - costs.overhead_ms())
    below = max((n for n in costs.figures if n <= size), default=0)
    # Far beyond the largest measured size the line is a guess, and close above it there is nothing to gain.
    return size if 1.2 * below <= size < 2 * below else None


def loads(goal: Goal, bounds: SearchBounds, setting: ModelSetting, capacity: int) -> list[int]:
    """How many clients a setting is measured with, ascending: enough for one batch per worker, and for two.

    ``capacity`` is that of the model's queue.
    """
    full = setting.batch_size * setting.workers
    if bounds.clients is not None:
        counts = [bounds.clients]
    else:
        counts = [2 * full] if goal.kind == "throughput" else [full, 2 * full]
    return sorted({max(1, min(clients, capacity)) for clients in counts})


def more_workers(goal: Goal, best: ModelSetting, workers: int) -> list[ModelSetting]:
    """The setting with more workers; each is slower with its share of the cores, so smaller batches too."""
    sizes_ = [best.batch_size]
    if goal.limit_ms is not None and best.batch_size > 1:
        sizes_.append(best.batch_size // 2)
    return [replace(best, batch_size=size, workers=workers) for size in sizes_]


def of_size(goal: Goal, bounds: SearchBounds, size: int, costs: Costs) -> list[ModelSetting]:
    """A batch size with the policies to try first.

    With a latency limit, full batches from few clients are worth most: they need a window.
    """
    plain = ModelSetting(size, delay_ms=delay_cap(goal), threads=bounds.threads)
    return [plain, window(plain, costs)] if goal.kind == "limit" and size > 1 else [plain]


def window(setting: ModelSetting, costs: Costs) -> ModelSetting:
    """The setting with batches that wait at most half a batch's time."""
    delay = max(1, round(costs.expected_ms(setting.batch_size) / 2))
    return replace(setting, policy="window", delay_ms=delay)


def other_policies(goal: Goal, best: ModelSetting, costs: Costs) -> list[ModelSetting]:
    """The other policies; none for batch size 1."""
    if best.batch_size == 1:
        return []
    adaptive = replace(best, policy="adaptive", delay_ms=delay_cap(goal))
    return [replace(adaptive, policy="greedy"), window(best, costs), adaptive]


def other_threads(bounds: SearchBounds, best: ModelSetting) -> list[ModelSetting]:
    """Half and twice as many threads per worker as the server would give."""
    if not bounds.threads_free:
        return []
    usual = max(1, bounds.cores // best.workers)
    counts = {max(1, usual // 2), min(bounds.cores, 2 * usual)} - {usual}
    return [replace(best, threads=threads) for threads in sorted(counts)]


def delay_cap(goal: Goal) -> int:
    """The cap of the adaptive policy in ms: the server's default, or a quarter of the limit."""
    if goal.limit_ms is None:
        return DEFAULT_BATCH_DELAY
    return max(1, min(DEFAULT_BATCH_DELAY, int(goal.limit_ms / 4)))


def ladder(clients: int) -> list[int]:
    """Numbers of clients for the curve: from one to twice those of the choice, which itself is left out."""
    steps = [1 << power for power in range(clients.bit_length()) if 1 << power < clients]
    step = max(1, -(-len(steps) // (_LADDER - 1)))
    return [*steps[::step], 2 * clients]
