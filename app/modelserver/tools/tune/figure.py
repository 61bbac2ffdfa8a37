"""Summarizes responses: throughput, latencies, the cost of batches by size, and its line a + b*n."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modelserver.ext.console.simulation.figures import percentile

RARE = 20
TRUSTED_R2 = 0.9
LEAST_SIZES = 3  # sizes: a line always fits two


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """A 2xx answer. ``ended`` is the time since the load began; in seconds, except for the ``_ms`` fields.

    ``queue_ms`` and ``inference_ms`` are reported by the server (``server-timing``); ``batch`` and
    ``batch_size`` identify the batch it was computed in.
    """

    ended: float
    latency: float
    queue_ms: float = 0.0
    inference_ms: float = 0.0
    batch: str = ""
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The result of a load: the answers that count, the seconds they took, and failures by reason."""

    answers: Sequence[TimedAnswer]
    seconds: float
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figure:
    """A run in numbers, void if anything failed. ``rate`` is in requests per second.

    ``clients`` is the load of a closed loop; ``offered`` the arrivals per second of an open one. Queue and
    inference are means. ``costs`` are the median milliseconds of the handler by batch size.
    """

    requests: int
    rate: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    queue_ms: float = 0.0
    inference_ms: float = 0.0
    mean_batch: float = 0.0
    clients: int | None = None
    offered: float | None = None
    costs: Mapping[int, float] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def void(self) -> bool:
        """Whether something failed, or nothing was answered, so that the numbers mean nothing."""
        return bool(self.failures) or not self.requests

    def reason(self) -> str:
        return ", ".join(f"{count} x {what}" for what, count in self.failures.items()) or "nothing answered"


def void(reason: str, clients: int | None = None) -> Figure:
    """A figure that could not be measured."""
    return Figure(0, 0.0, math.nan, math.nan, math.nan, clients=clients, failures={reason: 1})


def summed_up(run: LoadRun, *, clients: int | None = None, offered: float | None = None) -> Figure:
    """The figure of a run."""
    latencies = sorted(answer.latency * 1e3 for answer in run.answers)
    count = len(latencies)
    sizes = {answer.batch: answer.batch_size for answer in run.answers if answer.batch}
    return Figure(
        requests=count,
        rate=count / run.seconds if run.seconds > 0 else 0.0,
        p50_ms=percentile(latencies, 50),
        p90_ms=percentile(latencies, 90),
        p99_ms=percentile(latencies, 99),
        queue_ms=statistics.fmean(a.queue_ms for a in run.answers) if count else 0.0,
        inference_ms=statistics.fmean(a.inference_ms for a in run.answers) if count else 0.0,
        mean_batch=statistics.fmean(sizes.values()) if sizes else 0.0,
        clients=clients,
        offered=offered,
        costs=batch_costs(run.answers),
        failures=dict(run.failures),
    )


def batch_costs(answers: Sequence[TimedAnswer]) -> dict[int, float]:
    """Milliseconds of the handler by batch size: the median over the batches, each counted once.

    Sizes of fewer than one batch in twenty are left out: they occur at the start and end of a load.
    """
    batches = {answer.batch: answer for answer in answers if answer.batch}
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    for answer in batches.values():
        by_size[answer.batch_size].append(answer.inference_ms)
    return {
        size: statistics.median(times)
        for size, times in sorted(by_size.items())
        if RARE * len(times) >= len(batches)
    }


@dataclass(frozen=True, slots=True)
class CostLine:
    """A batch of n takes ``a_ms + b_ms * n`` ms; ``r2`` is 1 if the line fits exactly.

    ``sizes``: the number of batch sizes it was fitted to.
    """

    a_ms: float
    b_ms: float
    r2: float
    sizes: int

    @property
    def trusted(self) -> bool:
        """Whether conclusions may be drawn from it: it fits, and larger batches cost more."""
        return self.r2 >= TRUSTED_R2 and self.b_ms > 0

    @property
    def worth_telling(self) -> bool:
        """Whether it is reliable enough to be shown."""
        return self.trusted and self.sizes >= LEAST_SIZES

    def at(self, size: int) -> float:
        """The cost of a batch, in ms."""
        return self.a_ms + self.b_ms * size

    def largest_within(self, limit_ms: float) -> int:
        """The largest batch that takes no longer; 0 if none does. Needs ``b_ms`` above 0."""
        return max(0, math.floor((limit_ms - self.a_ms) / self.b_ms + 1e-9))

    def __str__(self) -> str:
        sign = "-" if self.b_ms < 0 else "+"
        return f"{self.a_ms:.3g} {sign} {abs(self.b_ms):.3g}*n ms (R^2 {self.r2:.3f})"


def fit_line(costs: Mapping[int, float]) -> CostLine | None:
    """The line through milliseconds by batch size; None for fewer than two sizes."""
    if len(costs) < 2:
        return None
    b, a = statistics.linear_regression([*costs], [*costs.values()])
    mean = statistics.fmean(costs.values())
    total = sum((t - mean) ** 2 for t in costs.values())
    left = sum((t - a - b * n) ** 2 for n, t in costs.items())
    return CostLine(a, b, 1.0 - left / total if total > 0 else 1.0, len(costs))
