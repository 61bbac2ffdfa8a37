"""One queue, from which whoever is free takes: its latencies, and what a server's workers did against it."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

_Gap = tuple[float, float, float]


def single_queue(
    arrivals: Sequence[float], durations: Sequence[float], workers: int, batch_size: int, way: float = 0.0
) -> list[float]:
    """The latency of each request, in seconds.

    A worker that is free takes up to ``batch_size`` of the oldest that have arrived, at once, and is busy for
    the longest of their durations, and for the ``way`` of a batch. ``arrivals`` ascend.
    """
    free = [0.0] * workers
    latencies: list[float] = []
    while len(latencies) < len(arrivals):
        first = len(latencies)
        began = max(heapq.heappop(free), arrivals[first])
        end = min(bisect_right(arrivals, began, first), first + batch_size)
        ended = began + max(durations[first:end]) + way
        latencies += [ended - arrived for arrived in arrivals[first:end]]
        heapq.heappush(free, ended)
    return latencies


@dataclass(frozen=True, slots=True)
class Served:
    """When a request was sent, or had arrived, and when a worker had it, in seconds of one clock."""

    sent: float
    worker: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class _Run:
    """A batch in a handler; ``oldest`` is when the first of its requests was sent."""

    began: float
    ended: float
    oldest: float


def idle_before(served: Sequence[Served]) -> list[float]:
    """For each request, the seconds for which its worker was idle before it began what had been sent.

    The way from client to worker is a part of it.
    """
    runs = _runs(served)
    freed = {
        (worker, run.began): before.ended for worker, mine in runs.items() for before, run in pairwise(mine)
    }
    return [each.began - max(each.sent, freed.get((each.worker, each.began), 0.0)) for each in served]


def passed_over(served: Sequence[Served], workers: int) -> list[float]:
    """For each request, the seconds for which another worker had nothing while it waited at a busy one.

    These are the longest stretch, between its being sent and its beginning, in which the worker that had it
    in the end ran something else, and another was idle and afterwards began only what was sent later. A
    request that is in the one queue, from which workers take the oldest, has none.
    """
    runs = _runs(served)
    idle = [(float("-inf"), float("inf"), float("inf"))] * (workers > len(runs))
    gaps = {worker: _between(mine) for worker, mine in runs.items()}
    held = []
    for each in served:
        others = [idle, *(spans for worker, spans in gaps.items() if worker != each.worker)]
        busy = [(run.began, run.ended) for run in runs[each.worker]]
        held.append(_longest(each, busy, others))
    return held


def _runs(served: Sequence[Served]) -> dict[int, list[_Run]]:
    """What each worker ran, in order."""
    oldest: dict[tuple[int, float, float], float] = {}
    for each in sorted(served, key=lambda each: each.sent, reverse=True):
        oldest[each.worker, each.began, each.ended] = each.sent
    runs: dict[int, list[_Run]] = {}
    for worker, began, ended in sorted(oldest):
        runs.setdefault(worker, []).append(_Run(began, ended, oldest[worker, began, ended]))
    return runs


def _between(runs: Sequence[_Run]) -> list[_Gap]:
    """Begin and end of each time in which a worker ran nothing, and when what it began next was sent."""
    begins = [float("-inf"), *(run.ended for run in runs)]
    ends = [*((run.began, run.oldest) for run in runs), (float("inf"), float("inf"))]
    return [(begin, *end) for begin, end in zip(begins, ends, strict=True)]


def _longest(each: Served, busy: Sequence[tuple[float, float]], others: Iterable[Sequence[_Gap]]) -> float:
    mine = [(max(b, each.sent), min(e, each.began)) for b, e in busy if b < each.began and e > each.sent]
    return max(
        (
            min(end, ended) - max(begin, began)
            for began, ended in mine
            for gaps in others
            for begin, end, following in gaps
            if following > each.sent and begin < ended and end > began
        ),
        default=0.0,
    )
