"""What became of a version's requests and batches so far, as sums: for Triton's statistics."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class Total:
    """How often something happened, and for how many seconds in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """It happened once more."""
        self.count += 1
        self.seconds += seconds


@dataclass(slots=True)
class SizeTotals:
    """The batches of one size, their seconds of preprocessing, inference and postprocessing, and the same
    seconds once for each request of a batch.
    """

    batches: int = 0
    requests: int = 0
    phases: tuple[float, float, float] = (0.0, 0.0, 0.0)
    of_requests: tuple[float, float, float] = (0.0, 0.0, 0.0)


class Totals:
    """Of one version. ``failed``: requests that ended with an error, from their arrival; ``failed_answers``
    are those of them that a worker had answered. ``last_batch`` is the time of the last one's end, or 0.
    """

    __slots__ = ("by_size", "cancelled", "failed", "failed_answers", "last_batch")

    def __init__(self) -> None:
        self.by_size: dict[int, SizeTotals] = {}
        self.failed, self.failed_answers, self.cancelled = Total(), Total(), Total()
        self.last_batch = 0.0

    def fail(self, seconds: float, *, answered: bool) -> None:
        """A request ended with an error, which a worker may have answered."""
        self.failed.add(seconds)
        if answered:
            self.failed_answers.add(seconds)

    def batch(self, size: int, requests: int, handler_s: float, phases: tuple[float, float, float]) -> None:
        """A batch ended. A handler whose ``phases`` are all zero does nothing but infer."""
        totals = self.by_size.get(size)
        if totals is None:
            totals = self.by_size[size] = SizeTotals()
        before, inference, after = phases
        if not (before or inference or after):
            inference = handler_s
        totals.batches += 1
        totals.requests += requests
        a, b, c = totals.phases
        totals.phases = a + before, b + inference, c + after
        a, b, c = totals.of_requests
        totals.of_requests = a + requests * before, b + requests * inference, c + requests * after
        self.last_batch = time.time()
