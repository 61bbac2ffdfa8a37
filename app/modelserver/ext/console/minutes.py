"""Rates, errors and latencies by minute of the last 24 hours, of each version that is used, and of all.

Once a minute the counters of all versions are read; requests do nothing for it. Minutes without requests have
no row, so that a version that is not used takes no memory; one that is always used takes some 90 kB.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import add, sub
from typing import Final

from modelserver.ext.console.histograms import quantile
from modelserver.ext.console.stopwatch import Stopwatch
from modelserver.models.registry import Registry
from modelserver.models.version import ModelVersion

MINUTE: Final = 60.0
DAY: Final = 86_400.0
# The key of all versions together.
ALL: Final = ""
# Of a minute: requests per second that were answered, lost and failed; milliseconds of a request, of its wait
# and of its batch; instances of a batch; percent of its size, and of the workers' time.
_COLUMNS: Final = "rate lost errors p50 p99 queue50 queue99 handler50 handler99 size fill busy"
COLUMNS: Final = tuple(_COLUMNS.split())
# Seconds of the minute under way that are worth a row.
_LEAST: Final = 5.0
# Where latencies begin in what is counted: see :func:`_counts`.
_SUMS: Final = 7

_log = logging.getLogger("modelserver.console")


class _Rows:
    """A row for each minute with requests; ``ends`` are the monotonic times of their ends."""

    __slots__ = ("columns", "ends")

    def __init__(self) -> None:
        self.ends = array("d")
        self.columns = [array("f") for _ in COLUMNS]

    def add(self, end: float, row: Sequence[float]) -> None:
        self.ends.append(end)
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)

    def drop(self, before: float) -> None:
        """Drops those that ended earlier."""
        if count := bisect_left(self.ends, before):
            for column in (self.ends, *self.columns):
                del column[:count]


class Minutes:
    """The history of the versions in ``registry``; ``clock`` is monotonic, so that the time may be set."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._began = self._at = clock()
        self._rows: dict[str, _Rows] = {}
        # Of each version that was ever used: what it had counted at the last look, and whose counts they are.
        self._counts: dict[str, tuple[object, array[float]]] = {}
        # Of the histograms of latencies, queue and handler: those of all versions are the same.
        self._bounds: tuple[tuple[float, ...], ...] = ()

    async def run(self) -> None:
        """Looks once a minute."""
        while True:
            await asyncio.sleep(self._at + MINUTE - self._clock())
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - the next look may succeed
                _log.exception("The console's history could not be continued")

    async def look(self) -> None:
        """Ends a minute."""
        watch, now = Stopwatch(), self._clock()
        seconds, self._at = now - self._at, now
        models = {f"{model.name}/{model.version}": model for model in self._registry.versions()}
        total, workers = array("d"), 0
        for key, model in models.items():
            workers += len(model.pool.workers)
            if counted := self._since(key, model):
                self._counts[key] = model.metrics, _counts(model)
                self._add(key, now, _row(counted, self._bounds, seconds, len(model.pool.workers)))
                total = _sum(total, counted)
            await watch.give_way()
        if total:
            self._add(ALL, now, _row(total, self._bounds, seconds, workers))
        for gone in self._counts.keys() - models.keys():
            del self._counts[gone]
            self._rows.pop(gone, None)
        for key, rows in list(self._rows.items()):
            rows.drop(now - DAY)
            if not rows.ends:
                del self._rows[key]

    async def document(self, key: str, span: float) -> bytes:
        """The minutes of a version, or of :data:`ALL`, in the last ``span`` seconds, as JSON: ``ages`` of
        their ends in seconds, a list of each of :data:`COLUMNS` in ``series``, and the ``age`` of the first.
        """
        watch, now = Stopwatch(), self._clock()
        rows = self._rows.get(key, _Rows())
        first = bisect_left(rows.ends, now - span)
        ends, columns = list(rows.ends[first:]), [list(column[first:]) for column in rows.columns]
        if (current := self._current(key, now)) is not None:
            ends.append(now)
            for column, value in zip(columns, current, strict=True):
                column.append(value)
        parts = [f'"age":{now - self._began:.0f},"ages":[{",".join(f"{now - end:.1f}" for end in ends)}]']
        series = []
        for name, column in zip(COLUMNS, columns, strict=True):
            series.append(f'"{name}":[{",".join(map(_text, column))}]')
            await watch.give_way()
        parts.append(f'"series":{{{",".join(series)}}}')
        return f"{{{','.join(parts)}}}".encode()

    def _current(self, key: str, now: float) -> list[float] | None:
        """The row of the minute under way, if it has lasted long enough."""
        seconds = now - self._at
        if seconds < _LEAST:
            return None
        total, workers = array("d"), 0
        for model in self._registry.versions():
            name = f"{model.name}/{model.version}"
            if key in {ALL, name} and (counted := self._since(name, model)):
                total = _sum(total, counted)
            workers += len(model.pool.workers) if key in {ALL, name} else 0
        return _row(total, self._bounds, seconds, workers) if total else None

    def _since(self, key: str, model: ModelVersion) -> array[float]:
        """Returns the counts since the last look; empty if no request ended."""
        owner, before = self._counts.get(key, (None, array("d")))
        self._bounds = self._bounds or tuple(bounds for bounds, _ in _histograms(model))
        if owner is not model.metrics:
            # It is new, or has replaced another.
            return _counts(model) if _ended(model) else array("d")
        return array("d") if _ended(model) == before[0] else array("d", map(sub, _counts(model), before))

    def _add(self, key: str, end: float, row: Sequence[float]) -> None:
        self._rows.setdefault(key, _Rows()).add(end, row)


def _ended(model: ModelVersion) -> float:
    """A number that grows with each request that ends."""
    requests = model.metrics.requests
    return sum(requests.seconds.counts) + requests.unanswered + requests.errors.count


def _histograms(model: ModelVersion) -> list[tuple[tuple[float, ...], list[int]]]:
    """Returns bounds and counts of latency, time in the queue, and time in the handler."""
    requests, batches = model.metrics.requests, model.metrics.batches
    histograms = requests.seconds, batches.queue_seconds, batches.handler_seconds
    return [(each.bounds, each.counts) for each in histograms]


def _counts(model: ModelVersion) -> array[float]:
    """Everything that a row is made of, as counted since the version was registered."""
    requests, batches, histograms = model.metrics.requests, model.metrics.batches, _histograms(model)
    sums = (_ended(model), requests.unanswered, requests.errors.count, batches.handler_seconds.total)
    sizes = (sum(batches.sizes.counts), batches.sizes.total, batches.fill_ratios.total)
    return array("d", (*sums, *sizes, *(count for _, counts in histograms for count in counts)))


def _row(
    counted: array[float], bounds: tuple[tuple[float, ...], ...], seconds: float, workers: int
) -> list[float]:
    """A value of each of :data:`COLUMNS`; NaN for what there is none of."""
    _, lost, errors, worked, batches, instances, fill = counted[:_SUMS]
    answered, first = 0.0, _SUMS
    percentiles: list[float | None] = []
    for each in bounds:
        counts = counted[first : first + len(each) + 1]
        answered = answered if percentiles else sum(counts)
        percentiles += [quantile(share, each, counts) for share in (0.5, 0.99)]
        first += len(counts)
    return [
        answered / seconds,
        lost / seconds,
        errors / seconds,
        *(math.nan if value is None else value for value in percentiles),
        instances / batches if batches else math.nan,
        100 * fill / batches if batches else math.nan,
        min(100.0, 100 * worked / seconds / workers) if workers else math.nan,
    ]


def _sum(one: array[float], other: array[float]) -> array[float]:
    return array("d", map(add, one, other)) if one else other


def _text(value: float) -> str:
    return "null" if math.isnan(value) else f"{value:.4g}"
