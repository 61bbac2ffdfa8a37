"""When models were used that are to be loaded ahead of time, before and after a restart of the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from modelserver.ext.parking.forecast import PastUse, RequestInterval, uses_of
from modelserver.ext.parking.stored import StoredValues

FILE = "history.json"
# Models whose uses are stored, and uses of each; the most recent ones. A use has about 30 bytes.
MOST = 1000
MOST_USES = 300
# A day, and the quarter of an hour for which an old use is expected.
_OLDEST = 86_400.0 + 900.0


class StoredUse(msgspec.Struct, frozen=True, array_like=True):
    """So many requests, in seconds from a time (of the epoch) on."""

    begin: float
    seconds: float
    requests: float


class History(StoredValues[list[StoredUse]]):
    """The uses of the last day by key. ``now`` are seconds since the epoch."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__("When models were used", FILE, list[StoredUse], MOST, folder)

    def uses(self, key: str, intervals: Sequence[RequestInterval], now: float) -> list[PastUse]:
        """Returns the uses in ``intervals``, the last of which ends now, and the stored ones from before.

        What would be in the future, after a clock was set back, counts as nothing.
        """
        begin = sum(each.seconds for each in intervals)
        before = [
            PastUse(now - each.begin, now - each.begin - each.seconds, each.requests)
            for each in self.get(key) or ()
        ]
        return [*(use for use in before if begin <= use.last and use.first <= _OLDEST), *uses_of(intervals)]

    def note(self, key: str, intervals: Sequence[RequestInterval], now: float) -> None:
        """Stores the uses with the next :meth:`save`."""
        rows = [
            StoredUse(round(now - use.first, 1), round(use.first - use.last, 1), use.requests)
            for use in self.uses(key, intervals, now)
        ]
        rows = sorted(rows, key=lambda row: row.begin)[-MOST_USES:]
        if rows != self.get(key):
            self.learn(key, rows)
