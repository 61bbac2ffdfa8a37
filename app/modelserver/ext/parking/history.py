"""When models were used that are to be loaded ahead of time, before and after a restart of the server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from modelserver.ext.parking.forecast import PastUse
from modelserver.ext.parking.stored import StoredValues
from modelserver.models.version import ModelVersion

FILE = "history.json"
# Models whose uses are stored, and uses of each; the most recent ones. A use has about 30 bytes.
MOST = 1000
MOST_USES = 300
# Its name among the histories of a version.
_NAME = "uses"
_MINUTE, _HOUR = 60.0, 3600.0
# How long a use of more than an hour ago lasts at least, and how long uses are remembered.
_QUARTER = 900.0
_OLDEST = 86_400.0 + _QUARTER


class RecentUses:
    """When a version was used from ``now`` on, by its counters, so that requests pay nothing.

    Times are monotonic.
    """

    def __init__(self, now: float, model: ModelVersion) -> None:
        # Begin, end and requests of each use, the oldest first.
        self._spans: list[tuple[float, float, float]] = []
        self._at, self._count = now, _arrived(model)

    def look(self, now: float, model: ModelVersion) -> None:
        """Reads the counters, at most once a second."""
        if now - self._at >= 1.0:
            count = _arrived(model)
            if count > self._count:
                self._spans.append((self._at, now, count - self._count))
            self._at, self._count = now, count

    def replaced(self) -> None:
        """The counters of another version may begin at 0."""
        self._count = math.inf

    def uses(self, now: float, model: ModelVersion) -> list[PastUse]:
        """The uses up to now, the newest first; of each minute, or quarter of an hour, there is one."""
        self.look(now, model)
        spans: list[tuple[float, float, float]] = []
        for begin, end, requests in self._spans:
            if spans and begin < spans[-1][1]:
                first, last, before = spans.pop()
                spans.append((first, max(last, end), before + requests))
            elif now - end < _OLDEST:
                least = _MINUTE if now - begin < _HOUR else _QUARTER
                spans.append((begin, max(end, begin + least), requests))
        self._spans = spans
        return [PastUse(now - begin, max(0.0, now - end), count) for begin, end, count in reversed(spans)]


def recent_uses(model: ModelVersion, now: float) -> RecentUses:
    """The uses of a version, and of what it replaced, from the first call on."""
    history = model.histories.get(_NAME)
    if not isinstance(history, RecentUses):
        history = model.histories[_NAME] = RecentUses(now, model)
    return history


def _arrived(model: ModelVersion) -> float:
    requests = model.metrics.requests
    return sum(requests.seconds.counts) + requests.unanswered


class StoredUse(msgspec.Struct, frozen=True, array_like=True):
    """So many requests, in seconds from a time (of the epoch) on."""

    begin: float
    seconds: float
    requests: float


class History(StoredValues[list[StoredUse]]):
    """The uses of the last day by key. ``now`` are seconds since the epoch."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__("When models were used", FILE, list[StoredUse], MOST, folder)

    def uses(self, key: str, recent: Sequence[PastUse], now: float) -> list[PastUse]:
        """Returns the ``recent`` uses, the newest of which is first, and the stored ones from before.

        What would be in the future, after a clock was set back, counts as nothing.
        """
        begin = recent[-1].first if recent else 0.0
        before = [
            PastUse(now - each.begin, now - each.begin - each.seconds, each.requests)
            for each in self.get(key) or ()
        ]
        return [*(use for use in before if begin <= use.last and use.first <= _OLDEST), *recent]

    def note(self, key: str, recent: Sequence[PastUse], now: float) -> None:
        """Stores the uses with the next :meth:`save`."""
        rows = [
            StoredUse(round(now - use.first, 1), round(use.first - use.last, 1), use.requests)
            for use in self.uses(key, recent, now)
        ]
        rows = sorted(rows, key=lambda row: row.begin)[-MOST_USES:]
        if rows != self.get(key):
            self.learn(key, rows)
