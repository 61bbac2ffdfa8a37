"""Requests to many models, and how many find theirs loaded by one policy or another, without a server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from modelserver.ext.parking.needs import Need
from modelserver.ext.parking.policy import Candidate, ModelValues, choose
from modelserver.ext.parking.room import MIN_RESIDENCE

if TYPE_CHECKING:
    from random import Random

# Names of what is simulated.
POLICY, LRU, BELADY = "our policy", "LRU", "Belady's optimum"
# After so many requests, some of the most popular models change places with others.
DRIFT_AFTER, DRIFTING, POPULAR = 500, 5, 20


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request for a model, ``at`` seconds since the first part began."""

    at: float
    model: str


def zipf(names: Sequence[str], times: Sequence[float], power: float, chance: Random) -> list[Arrival]:
    """A request at each time: the first name is the most popular one."""
    weights = [1 / rank**power for rank in range(1, len(names) + 1)]
    return [
        Arrival(at, name)
        for at, name in zip(times, chance.choices(names, weights, k=len(times)), strict=True)
    ]


def drifting(names: Sequence[str], times: Sequence[float], power: float, chance: Random) -> list[Arrival]:
    """The same, while popular models become less popular and others take their places."""
    order, arrivals = list(names), list[Arrival]()
    for first in range(0, len(times), DRIFT_AFTER):
        arrivals += zipf(order, times[first : first + DRIFT_AFTER], power, chance)
        for _ in range(DRIFTING):
            one, other = chance.randrange(min(POPULAR, len(order))), chance.randrange(len(order))
            order[one], order[other] = order[other], order[one]
    return arrivals


class Policy(Protocol):
    """Values models; those of the least value are parked. ``residence``: seconds that they stay at least."""

    residence: float

    def used(self, number: int, arrival: Arrival) -> None:
        """The request of this number has arrived."""

    def value(self, model: str, now: float) -> float:
        """What it is worth that the model is loaded."""


class Ours:
    """The server's own policy."""

    residence = MIN_RESIDENCE

    def __init__(self, needs: Mapping[str, Need]) -> None:
        self._needs, self._policy = needs, ModelValues()

    def used(self, number: int, arrival: Arrival) -> None:
        self._policy.used(arrival.model, 1, arrival.at)

    def value(self, model: str, now: float) -> float:
        need = self._needs[model]
        return self._policy.value(model, max(0.1, need.seconds), need.memory, now)


class LeastRecent:
    """LRU: parks what was used least recently."""

    residence = 0.0

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def used(self, number: int, arrival: Arrival) -> None:
        self._used[arrival.model] = number

    def value(self, model: str, now: float) -> float:
        return self._used[model]


class Belady(LeastRecent):
    """Parks what is needed again the latest, by the requests that are still to come; with ``needs``, for each
    byte.
    """

    def __init__(self, trace: Sequence[Arrival], needs: Mapping[str, Need] | None = None) -> None:
        super().__init__()
        self._needs, self._number = needs, 0
        self._next = [math.inf] * len(trace)
        coming: dict[str, int] = {}
        for number in range(len(trace) - 1, -1, -1):
            self._next[number] = coming.get(trace[number].model, math.inf)
            coming[trace[number].model] = number

    def used(self, number: int, arrival: Arrival) -> None:
        super().used(number, arrival)
        self._number = number

    def value(self, model: str, now: float) -> float:
        waits = self._next[self._used[model]] - self._number
        return -waits * (self._needs[model].memory if self._needs else 1)


def hits(trace: Sequence[Arrival], needs: Mapping[str, Need], budget: float, policy: Policy) -> list[bool]:
    """Whether each request finds its model loaded, if loading took no time."""
    loaded: dict[str, float] = {}
    results, free = [], budget
    for number, arrival in enumerate(trace):
        policy.used(number, arrival)
        results.append(arrival.model in loaded)
        if results[-1]:
            continue
        free -= needs[arrival.model].memory
        everything = [Candidate(m, policy.value(m, arrival.at), needs[m].memory) for m in loaded]
        old = [each for each in everything if arrival.at - loaded[str(each.key)] >= policy.residence]
        for each in choose(old, -free) or choose(everything, -free) or ():
            free += each.size
            del loaded[str(each.key)]
        loaded[arrival.model] = arrival.at
    return results


def simulated(trace: Sequence[Arrival], needs: Mapping[str, Need], budget: float) -> dict[str, list[bool]]:
    """Hits by policy. With several sizes there is no simple optimum: the better one of two is taken."""
    both = (hits(trace, needs, budget, Belady(trace, by)) for by in (None, needs))
    return {
        POLICY: hits(trace, needs, budget, Ours(needs)),
        LRU: hits(trace, needs, budget, LeastRecent()),
        BELADY: max(both, key=sum),
    }
