"""A trace in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, nan
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from modelserver.ext.console.simulation.engine import Trace


class EstimatedFigures(msgspec.Struct, frozen=True):
    """Measured or simulated: answered and refused requests per second, mean batch, latencies, the share of
    time that workers are busy.
    """

    rate: float
    refused: float
    batch: float
    p50_ms: float | None
    p99_ms: float | None
    busy: float


def summarize(trace: Trace, begin: float, end: float, workers: int) -> EstimatedFigures:
    """Requests that came, and batches that ended, from ``begin`` to ``end`` seconds."""
    latencies = sorted(latency * 1e3 for arrived, latency in trace.answers if begin <= arrived < end)
    batches = [(size, seconds) for at, size, seconds in trace.batches if begin <= at < end]
    answered = sum(size for size, _ in batches)
    p50, p99 = (percentile(latencies, percent) if latencies else None for percent in (50, 99))
    return EstimatedFigures(
        rate=answered / (end - begin),
        refused=trace.refused / end,
        batch=answered / len(batches) if batches else 0.0,
        p50_ms=p50,
        p99_ms=p99,
        busy=sum(seconds for _, seconds in batches) / (end - begin) / workers,
    )


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of sorted values; NaN if there are none."""
    return ascending[max(0, ceil(percent / 100 * len(ascending)) - 1)] if ascending else nan
