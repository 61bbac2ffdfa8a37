"""The requests of a version in the last 24 hours and what they cost, for estimates.

Once a second the counters of versions are read, so requests pay nothing. The older an interval is, the
longer it is: a version in constant use needs about 10 kB.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Iterator
from itertools import dropwhile
from typing import Final, NamedTuple

from modelserver.models.registry import Registry
from modelserver.models.version import ModelVersion

# From the newest to the oldest: for how many seconds intervals of about so many seconds are kept.
SPANS: Final = ((60.0, 1.0), (540.0, 10.0), (3000.0, 60.0), (82_800.0, 900.0))
DAY: Final = 86_400.0
# Seconds between copies of the histogram of latencies, which is too large for every interval.
_MARKS: Final = 3 * 3600.0
# Its name among the histories of a version.
_NAME: Final = "arrivals"

_log = logging.getLogger("modelserver.console")


class ArrivalInterval(NamedTuple):
    """Counts of one interval. ``lost`` requests were refused, expired, or left by their client;
    ``worked`` are the handlers' seconds, ``available`` those of all workers.
    """

    seconds: float
    answered: float
    lost: float
    batches: float = 0.0
    instances: float = 0.0
    worked: float = 0.0
    available: float = 0.0

    @property
    def arrived(self) -> float:
        """Requests, whatever became of them."""
        return self.answered + self.lost


class ArrivalHistory(NamedTuple):
    """Intervals in order, from the first request on; how many answers fell into each bucket of the latency
    histogram, which ends at these bounds; the mean seconds of a request beside queue and handler.
    """

    intervals: list[ArrivalInterval]
    latencies: list[float]
    overhead: float
    bounds: tuple[float, ...]


class _Sums(NamedTuple):
    """Counts since the version was registered; ``latencies`` by bucket."""

    at: float
    latencies: array[float]
    latency: float
    queued: float
    waits: int
    worked: float
    batches: int


class Arrivals:
    """Follows the counters of one version, or of versions that replace each other. Times are monotonic;
    ``now`` is that of its registration.
    """

    __slots__ = ("_at", "_counts", "_looked", "_marks", "_rows")

    def __init__(self, now: float, model: ModelVersion) -> None:
        self._rows = [array("f") for _ in SPANS]
        buckets = len(model.metrics.requests.seconds.bounds) + 1
        self._marks = [_Sums(now, array("d", [0.0] * buckets), 0.0, 0.0, 0, 0.0, 0)]
        self._counts: tuple[float, ...] | None = (0.0,) * 5
        # Until when there are intervals, and when the counters were last read.
        self._at = self._looked = now

    def look(self, now: float, model: ModelVersion) -> None:
        """Reads the counters; to be called about once a second."""
        counts, workers = _counts(model), len(model.pool.workers)
        before, self._counts = self._counts, counts
        if before is None:
            self._marks = [_sums(now, model)]
        elif counts != before:
            if any(self._rows):
                self._pass_idly(self._looked, workers)
            seconds = now - self._looked
            differences = [after - earlier for earlier, after in zip(before, counts, strict=True)]
            self._add(ArrivalInterval._make([seconds, *differences, seconds * workers]))
            self._at = now
            if now - self._marks[-1].at >= _MARKS:
                self._marks.append(_sums(now, model))
        self._looked = now

    def replaced(self) -> None:
        """Another archive serves from now on: what came before still counts, what it cost does not."""
        self._counts = None
        for rows in self._rows:
            for each in range(0, len(rows), _WIDTH):
                rows[each + _COSTS : each + _WIDTH] = array("f", [0.0] * (_WIDTH - _COSTS))

    def measured(self, now: float, model: ModelVersion) -> ArrivalHistory:
        """Everything up to now."""
        self.look(now, model)
        if any(self._rows):
            self._pass_idly(now, len(model.pool.workers))
        while len(self._marks) > 1 and now - self._marks[1].at >= DAY:
            del self._marks[0]
        first, last = self._marks[0], _sums(now, model)
        answers = sum(last.latencies) - sum(first.latencies)
        waits = last.waits - first.waits
        batches = last.batches - first.batches
        overhead = 0.0
        if answers and waits and batches:
            overhead = (last.latency - first.latency) / answers - (last.queued - first.queued) / waits
            overhead -= (last.worked - first.worked) / batches
        intervals = [each for rows in reversed(self._rows) for each in _intervals(rows)]
        return ArrivalHistory(
            list(dropwhile(lambda each: not each.arrived, intervals)),
            [after - before for before, after in zip(first.latencies, last.latencies, strict=True)],
            min(1.0, max(0.0, overhead)),
            model.metrics.requests.seconds.bounds,
        )

    def _pass_idly(self, until: float, workers: int) -> None:
        if (seconds := until - self._at) > 0:
            self._add(ArrivalInterval(seconds, 0.0, 0.0, available=seconds * workers))
            self._at = until

    def _add(self, interval: ArrivalInterval) -> None:
        coming = [interval]
        for rows, (span, _), (_, longer) in zip(self._rows, SPANS, (*SPANS[1:], SPANS[-1]), strict=True):
            for each in coming:
                rows.extend(each)
            coming = []
            while sum(rows[::_WIDTH]) > span + longer:
                coming.append(_take_oldest(rows, longer))
            if not coming:
                return


_WIDTH: Final = len(ArrivalInterval._fields)
_COSTS: Final = ArrivalInterval._fields.index("batches")


def arrivals_of(model: ModelVersion, now: float) -> Arrivals:
    """The history of a version, which begins with the first call."""
    history = model.histories.get(_NAME)
    if not isinstance(history, Arrivals):
        history = model.histories[_NAME] = Arrivals(now, model)
    return history


async def follow_arrivals(registry: Registry) -> None:
    """Looks at all versions once a second."""
    while True:
        try:
            now = time.monotonic()
            for model in registry.versions():
                if not model.metrics.series.is_hidden:
                    arrivals_of(model, now).look(now, model)
        except Exception:  # noqa: BLE001 - the next look may succeed
            _log.exception("The arrivals of requests could not be read")
        await asyncio.sleep(1.0)


def _counts(model: ModelVersion) -> tuple[float, ...]:
    """The counts of an interval's fields."""
    requests, batches = model.metrics.requests, model.metrics.batches
    answered, handled = sum(requests.seconds.counts), sum(batches.sizes.counts)
    return answered, requests.unanswered, handled, batches.sizes.total, batches.handler_seconds.total


def _sums(now: float, model: ModelVersion) -> _Sums:
    latencies, batches = model.metrics.requests.seconds, model.metrics.batches
    waits, handled = batches.queue_seconds, batches.handler_seconds
    return _Sums(
        at=now,
        latencies=array("d", latencies.counts),
        latency=latencies.total,
        queued=waits.total,
        waits=sum(waits.counts),
        worked=handled.total,
        batches=sum(handled.counts),
    )


def _take_oldest(rows: array[float], longest: float) -> ArrivalInterval:
    """Removes the oldest interval, together with those after it that last at most ``longest`` with it."""
    count, seconds = 1, rows[0]
    while count * _WIDTH < len(rows) and seconds + rows[count * _WIDTH] <= longest:
        seconds += rows[count * _WIDTH]
        count += 1
    taken = ArrivalInterval(*(sum(rows[field : count * _WIDTH : _WIDTH]) for field in range(_WIDTH)))
    del rows[: count * _WIDTH]
    return taken


def _intervals(rows: array[float]) -> Iterator[ArrivalInterval]:
    return (ArrivalInterval(*rows[each : each + _WIDTH]) for each in range(0, len(rows), _WIDTH))
