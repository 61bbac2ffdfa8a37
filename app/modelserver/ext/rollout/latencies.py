"""A histogram of the latency of answers, whose percentiles are exact to 5 %."""

from __future__ import annotations

from math import ceil, log2

# Intervals per doubling, from a microsecond to about an hour.
_PER_OCTAVE = 16
_COUNT = 32 * _PER_OCTAVE


class Latencies:
    """Seconds, counted in intervals that grow by 4.4 % each."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * _COUNT
        self.total = 0

    def add(self, seconds: float) -> None:
        """Counts one answer."""
        place = int(log2(seconds * 1e6) * _PER_OCTAVE) if seconds > 1e-6 else 0
        self._counts[min(place, _COUNT - 1)] += 1
        self.total += 1

    def percentile(self, share: float) -> float | None:
        """The seconds within which this share of the answers came; None without any."""
        if not self.total:
            return None
        left = ceil(share * self.total)
        for place, count in enumerate(self._counts):
            left -= count
            if left <= 0:
                return _end(place)
        return _end(_COUNT - 1)

    def above(self, seconds: float) -> int:
        """How many took longer for certain: those of intervals that begin there or later."""
        return sum(count for place, count in enumerate(self._counts) if count and _end(place - 1) >= seconds)


def _end(place: int) -> float:
    return float(2 ** ((place + 1) / _PER_OCTAVE)) * 1e-6


def milliseconds(seconds: float | None) -> float | None:
    """Converts seconds to milliseconds with three decimals."""
    return None if seconds is None else round(seconds * 1e3, 3)
