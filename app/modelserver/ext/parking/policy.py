"""Which of the loaded models are worth least: Greedy-Dual-Size-Frequency.

A model's value is the rate of its requests times the seconds that loading it takes, for each byte of its
memory, above the value of the model that was parked last: so what was valuable long ago is parked one day.
Source: L. Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy",
Hewlett-Packard Laboratories, HPL-98-69, 1998. The rate is one of recent requests instead of all since the
beginning. The policy has no clock: times are seconds of one that only goes forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

# Seconds after which a request counts half.
HALF_LIFE = 600.0


@dataclass(slots=True)
class _Use:
    """Requests, of which old ones count less, up to the time ``at``; ``above`` is the floor of that time."""

    requests: float = 0.0
    at: float = 0.0
    above: float = 0.0


class GreedyDual:
    """The values of models by their keys."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._half_life = half_life
        self._floor = 0.0
        self._uses: dict[Hashable, _Use] = {}

    def used(self, key: Hashable, requests: int, now: float) -> None:
        """The model got so many requests since the last call."""
        use = self._uses.setdefault(key, _Use(at=now))
        use.requests = self._recent(use, now) + requests
        use.at = max(use.at, now)
        use.above = self._floor

    def rate(self, key: Hashable, now: float) -> float:
        """Requests a second, of late."""
        use = self._uses.get(key)
        return 0.0 if use is None else self._recent(use, now) * math.log(2) / self._half_life

    def value(self, key: Hashable, seconds: float, size: float, now: float, coming: float = 0.0) -> float:
        """What it is worth to have the model loaded; it loads in ``seconds``, and has ``size`` bytes.

        ``coming`` requests are expected, and count as if they were here.
        """
        use = self._uses.get(key)
        above = self._floor if use is None or coming else use.above
        rate = self.rate(key, now) + coming * math.log(2) / self._half_life
        return above + rate * seconds / max(1.0, size)

    def parked(self, value: float) -> None:
        """A model of this value was parked for another."""
        self._floor = max(self._floor, value)

    def forget(self, key: Hashable) -> None:
        """The model is gone."""
        self._uses.pop(key, None)

    def _recent(self, use: _Use, now: float) -> float:
        return float(use.requests * 0.5 ** (max(0.0, now - use.at) / self._half_life))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may be parked: its key, its value, and the bytes that this frees."""

    key: Hashable
    value: float
    size: float


def choose(candidates: Iterable[Candidate], needed: float) -> list[Candidate] | None:
    """Those to park so that ``needed`` bytes become free, those of the least value; None: all are too few."""
    chosen: list[Candidate] = []
    for each in sorted(candidates, key=lambda candidate: candidate.value):
        if needed <= 0:
            break
        chosen.append(each)
        needed -= each.size
    if needed > 0:
        return None
    # A large one may have made smaller ones of less value unnecessary.
    for each in sorted(chosen, key=lambda candidate: -candidate.value):
        if needed + each.size <= 0:
            chosen.remove(each)
            needed += each.size
    return chosen
