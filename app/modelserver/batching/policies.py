"""When does a waiting batch go? A full one always goes at once; for the others a policy names the moment.

Three answers, in the order in which they wait less:

* ``window``: when the oldest instance has waited ``max_delay`` (TorchServe's and KServe's documented rule,
  with the clock started at arrival). Requests that come within the window share a batch; a lone one pays all
  of it.
* ``adaptive``: at once, unless holding pays. With one worker free, sending n instances now makes the next
  arrival, expected after a gap g, wait for what is left of t(n) = a + b*n. Holding for it instead delays the
  n waiting ones by g + b each. So a hold pays while

      n * (g + b) < t(n) - g        and a next arrival is still to be expected (no silence of several gaps)

  a and b are fitted to the batches seen, g is the recent mean gap between arrivals. With another worker free
  the newcomer would not wait at all, so nothing is held. A lone sequential client sees g >= t(1): never held.
* ``greedy``: at once.

A policy is pure: it sees the time and what waits, keeps what it learned, owns no timer. All times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits in one lane, seen by a policy when a worker is idle."""

    count: int
    oldest: float
    newest: float
    idle_workers: int


class Policy(Protocol):
    """The rule that decides when a waiting, not yet full batch goes."""

    name: str

    def due(self, waiting: Waiting, now: float) -> float:
        """The moment at which the batch goes; not later than ``now`` means at once."""
        ...

    def arrived(self, count: int, now: float) -> None:
        """``count`` instances came in."""
        ...

    def finished(self, count: int, seconds: float) -> None:
        """A batch of ``count`` instances took its worker ``seconds``."""
        ...


class Greedy:
    """An idle worker takes what is there."""

    name = "greedy"

    def due(self, waiting: Waiting, now: float) -> float:
        return now

    def arrived(self, count: int, now: float) -> None:
        pass

    def finished(self, count: int, seconds: float) -> None:
        pass


class Window:
    """The oldest instance waits ``max_delay`` seconds, not longer and, unless the batch fills, not less."""

    name = "window"

    def __init__(self, max_delay: float) -> None:
        self.max_delay = max_delay

    def due(self, waiting: Waiting, now: float) -> float:
        return waiting.oldest + self.max_delay

    def arrived(self, count: int, now: float) -> None:
        pass

    def finished(self, count: int, seconds: float) -> None:
        pass


class Adaptive:
    """Greedy, with a hold where it pays; never beyond ``max_delay`` seconds after the oldest arrival."""

    name = "adaptive"

    # A gap this many times the mean says that the burst is over.
    PATIENCE = 3.0

    def __init__(self, max_delay: float) -> None:
        self.max_delay = max_delay
        self._gap = GapEstimate()
        self._cost = CostCurve()

    def arrived(self, count: int, now: float) -> None:
        self._gap.add(count, now)

    def finished(self, count: int, seconds: float) -> None:
        self._cost.add(count, seconds)

    def due(self, waiting: Waiting, now: float) -> float:
        gap = self._gap.mean
        if waiting.idle_workers > 1 or gap is None or not self._cost.known:
            return now
        n = waiting.count
        a, b = self._cost.line()
        if n * (gap + b) >= a + b * n - gap:
            return now
        return min(waiting.newest + self.PATIENCE * gap, waiting.oldest + self.max_delay)


class GapEstimate:
    """The mean time between arriving instances, recent ones counting most."""

    WEIGHT = 0.1

    def __init__(self) -> None:
        self.mean: float | None = None
        self._last: float | None = None

    def add(self, count: int, now: float) -> None:
        """``count`` instances at once count as ``count`` equal gaps since the last arrival."""
        if self._last is not None:
            gap = max(0.0, now - self._last) / count
            keep = (1.0 - self.WEIGHT) ** count
            self.mean = gap if self.mean is None else keep * self.mean + (1.0 - keep) * gap
        self._last = now


class CostCurve:
    """A line a + b*n through the batches seen, by least squares with forgetting."""

    FORGET = 0.98

    def __init__(self) -> None:
        self._w = self._n = self._t = self._nn = self._nt = 0.0

    @property
    def known(self) -> bool:
        return self._w > 0.0

    def add(self, count: int, seconds: float) -> None:
        f = self.FORGET
        self._w = f * self._w + 1.0
        self._n = f * self._n + count
        self._t = f * self._t + seconds
        self._nn = f * self._nn + count * count
        self._nt = f * self._nt + count * seconds

    def line(self) -> tuple[float, float]:
        """(a, b), both at least 0.

        While only one batch size was seen, its cost is taken as proportional, b = t/n: that never holds on a
        guess, for a hold needs evidence of a fixed cost.
        """
        mean_n, mean_t = self._n / self._w, self._t / self._w
        spread = self._nn / self._w - mean_n * mean_n
        if spread < 1e-9:
            return 0.0, mean_t / mean_n
        b = (self._nt / self._w - mean_n * mean_t) / spread
        b = min(max(b, 0.0), mean_t / mean_n)
        return mean_t - b * mean_n, b


def make_policy(name: str, max_delay: float) -> Policy:
    """The policy called ``name`` (window, greedy, adaptive) with its cap in seconds."""
    if name == "window":
        return Window(max_delay)
    if name == "adaptive":
        return Adaptive(max_delay)
    if name == "greedy":
        return Greedy()
    raise ValueError(f"no batch policy {name!r}: window, greedy and adaptive are known")
