"""One queue, from which whoever is free takes: its latencies, and what a server's workers did against it."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
    """When a request was sent, and when which worker's handler had it, in seconds of one clock."""

    sent: float
    worker: int
    began: float
    ended: float


def held_up(served: Iterable[Served], workers: int) -> list[float]:
    """For each request, the seconds for which it was kept at a busy worker while another was idle.

    These are the longest stretch, between its being sent and its beginning, in which the worker that later
    had it ran something else and one of the others ran nothing.
    """
    requests = list(served)
    runs: dict[int, list[tuple[float, float]]] = {-place: [] for place in range(1, workers + 1)}
    for worker, began, ended in sorted({(r.worker, r.began, r.ended) for r in requests}):
        runs.setdefault(worker, []).append((began, ended))
    # As many of those that never ran anything as there are: process ids are above 0.
    for place in range(1, min(workers, len(runs) - workers) + 1):
        del runs[-place]
    gaps = {worker: _between(spans) for worker, spans in runs.items()}
    return [_longest(request, runs, gaps) for request in requests]


def _between(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The times in which a worker ran nothing, given those in which it did."""
    edges = [float("-inf"), *(edge for span in spans for edge in span), float("inf")]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _longest(
    request: Served,
    runs: dict[int, list[tuple[float, float]]],
    gaps: dict[int, list[tuple[float, float]]],
) -> float:
    longest = 0.0
    for busy in _within(runs[request.worker], request.sent, request.began):
        for other in gaps.keys() - {request.worker}:
            for begin, end in _within(gaps[other], *busy):
                longest = max(longest, end - begin)
    return longest


def _within(spans: Sequence[tuple[float, float]], begin: float, end: float) -> list[tuple[float, float]]:
    """The parts of ascending spans that lie in the time from ``begin`` to ``end``."""
    place = max(0, bisect_right(spans, (begin, begin)) - 1)
    found = []
    while place < len(spans) and spans[place][0] < end:
        cut = max(spans[place][0], begin), min(spans[place][1], end)
        if cut[0] < cut[1]:
            found.append(cut)
        place += 1
    return found
