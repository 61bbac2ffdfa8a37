"""A trace in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelserver.ext.console.simulation.engine import Trace


@dataclass(frozen=True, slots=True)
class SimulatedFigures:
    """Figures after the warm-up. ``rate`` in requests/s, ``device_ms`` worker time per request."""

    rate: float
    batch: float
    device_ms: float
    p50_ms: float
    p99_ms: float


def summarize(trace: Trace, begin: float, end: float) -> SimulatedFigures:
    """Requests that came, and batches that ended, from ``begin`` to ``end`` seconds."""
    latencies = sorted(latency * 1e3 for arrived, latency in trace.answers if begin <= arrived < end)
    batches = [(size, seconds) for at, size, seconds in trace.batches if begin <= at < end]
    answered = sum(size for size, _ in batches)
    return SimulatedFigures(
        rate=answered / (end - begin),
        batch=answered / len(batches) if batches else 0.0,
        device_ms=1e3 * sum(seconds for _, seconds in batches) / answered if answered else 0.0,
        p50_ms=percentile(latencies, 50),
        p99_ms=percentile(latencies, 99),
    )


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted values; NaN if there are none."""
    return ascending[max(0, ceil(percent / 100 * len(ascending)) - 1)] if ascending else nan
