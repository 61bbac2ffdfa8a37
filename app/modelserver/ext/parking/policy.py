"""Which of the loaded models are worth least: those with the fewest requests, for their size and cost.

A model's value is the rate of its requests times the seconds that loading it takes, for each byte of its
memory, as in Greedy-Dual-Size-Frequency (L. Cherkasova, "Improving WWW Proxies Performance with
Greedy-Dual-Size-Frequency Caching Policy", Hewlett-Packard Laboratories, HPL-98-69, 1998). There, what was
valuable long ago falls behind what comes after others were parked; here it does so by time. A request counts
half after some time, as in LRFU (D. Lee et al., "LRFU: A Spectrum of Policies that Subsumes the Least
Recently Used and Least Frequently Used Policies", IEEE Transactions on Computers 50(12), 2001), and the rate
is at most one request in the time since the last one. The policy has no clock: times are seconds of one that
only goes forward.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

# Seconds after which a request counts half.
HALF_LIFE = 600.0


@dataclass(slots=True)
class _Use:
    """Requests, of which old ones count less, up to the last ones at the time ``at``."""

    requests: float = 0.0
    at: float = 0.0


class ModelValues:
    """The values of models by their keys."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._half_life = half_life
        self._uses: dict[Hashable, _Use] = {}

    def used(self, key: Hashable, requests: int, now: float) -> None:
        """The model got so many requests since the last call."""
        use = self._uses.setdefault(key, _Use(at=now))
        use.requests = self._recent(use, now) + requests
        use.at = max(use.at, now)

    def rate(self, key: Hashable, now: float, coming: float = 0.0) -> float:
        """Requests a second, of late; ``coming`` requests are expected, and count as if they were here."""
        use = self._uses.get(key) or _Use()
        rate = (self._recent(use, now) + coming) * math.log(2) / self._half_life
        idle = now - use.at
        return rate if coming or idle <= 0 else min(rate, 1 / idle)

    def value(self, key: Hashable, seconds: float, size: float, now: float, coming: float = 0.0) -> float:
        """What it is worth to have the model loaded; it loads in ``seconds``, and has ``size`` bytes."""
        return self.rate(key, now, coming) * seconds / max(1.0, size)

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
    """Chooses models of the least value that free ``needed`` bytes; None if all together are too small."""
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
