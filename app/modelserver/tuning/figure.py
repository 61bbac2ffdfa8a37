"""Summarizes responses: throughput, latencies, and the cost of batches by size."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RARE = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of 2xx. ``ended`` is the time since the load began; all in seconds but for the ``_ms``.

    ``queue_ms`` and ``inference_ms`` are the server's own account (``server-timing``); ``batch`` and
    ``batch_size`` say with which others it was computed.
    """

    ended: float
    latency: float
    queue_ms: float = 0.0
    inference_ms: float = 0.0
    batch: str = ""
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What a load brought: the answers that count, the seconds they took, and failures by reason."""

    answers: Sequence[Answer]
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
        """Whether something failed, or nothing was answered: then the numbers say nothing."""
        return bool(self.failures) or not self.requests

    def reason(self) -> str:
        """Why it is void."""
        return ", ".join(f"{count} x {what}" for what, count in self.failures.items()) or "nothing answered"


def void(reason: str, clients: int | None = None) -> Figure:
    """A figure that could not be taken."""
    return Figure(0, 0.0, math.nan, math.nan, math.nan, clients=clients, failures={reason: 1})


def summed_up(run: Run, *, clients: int | None = None, offered: float | None = None) -> Figure:
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


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted values; NaN of nothing."""
    if not ascending:
        return math.nan
    return ascending[max(0, math.ceil(percent / 100 * len(ascending)) - 1)]


def batch_costs(answers: Sequence[Answer]) -> dict[int, float]:
    """Milliseconds of the handler by batch size: the median over the batches, each counted once.

    Sizes of fewer than one batch in twenty are left out: they came about at the edges of the load.
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
