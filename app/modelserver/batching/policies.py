"""When does a waiting batch go? A full one always goes at once; for the others a policy names the moment.

Three answers, in the order in which they wait less:

* ``window``: when the oldest instance has waited ``max_delay`` (TorchServe's and KServe's documented rule,
  with the clock started at arrival). Requests that come within the window share a batch; a lone one pays all
  of it.
* ``adaptive``: at once, unless the clients that were just answered are about to ask again. Clients in step
  would otherwise split: one request is back first and goes alone, and all others wait for it, again and
  again. So until as many instances came as the last batch answered, a batch is held, as long as that pays:
  sending n instances now makes the next arrival, expected after a gap g, wait for what is left of
  t(n) = a + b*n; holding for it delays the n waiting ones by g + b each:

      n * (g + b) < t(n) - g

  a and b are fitted to the batches seen; g is the usual gap within a burst (longer ones are pauses). The
  hold ends when nothing came for a few gaps after the later of that batch's end and the last arrival, so
  that a wrong guess costs little, and at the latest after ``max_delay``. With another worker free the
  newcomer would not wait at all, and nothing is held. A lone sequential client never is: one answer, one
  request.
* ``greedy``: at once.

A policy is pure: it sees the time and what waits, keeps what it learned, owns no timer. All times in seconds.
"""

from __future__ import annotations

import math
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

    def finished(self, count: int, seconds: float, now: float) -> None:
        """A batch of ``count`` instances came back, after it took its worker ``seconds``."""
        ...


class Greedy:
    """An idle worker takes what is there."""

    name = "greedy"

    def due(self, waiting: Waiting, now: float) -> float:
        return now

    def arrived(self, count: int, now: float) -> None:
        pass

    def finished(self, count: int, seconds: float, now: float) -> None:
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

    def finished(self, count: int, seconds: float, now: float) -> None:
        pass


class Adaptive:
    """Greedy, with a hold where it pays; never beyond ``max_delay`` seconds after the oldest arrival."""

    name = "adaptive"

    # A silence of this many usual gaps says that the burst is over ...
    PATIENCE = 3.0
    # ... but not one shorter than this many seconds: clients need a moment to read an answer and ask again.
    TURNAROUND = 0.002
    # Gaps and holds are measured against the fixed cost of a batch, for that is what a hold can save.
    LONGEST_GAP = 0.1
    LONGEST_SILENCE = 0.2

    def __init__(self, max_delay: float) -> None:
        self.max_delay = max_delay
        self._gap = GapEstimate()
        self._cost = CostCurve()
        self._returning = 0
        self._answered = 0.0

    def arrived(self, count: int, now: float) -> None:
        self._gap.add(count, now, longest=self.LONGEST_GAP * self._cost.line()[0])
        self._returning = max(0, self._returning - count)

    def finished(self, count: int, seconds: float, now: float) -> None:
        self._cost.add(count, seconds)
        self._returning = count
        self._answered = now

    def due(self, waiting: Waiting, now: float) -> float:
        if waiting.idle_workers > 1 or not self._returning:
            return now
        a, b = self._cost.line()
        silence = min(max(self.PATIENCE * self._gap.mean, self.TURNAROUND), self.LONGEST_SILENCE * a)
        n, gap = waiting.count, silence / self.PATIENCE
        if n * (gap + b) >= a + b * n - gap:
            return now
        return min(max(waiting.newest, self._answered) + silence, waiting.oldest + self.max_delay)


class GapEstimate:
    """The mean time between the instances of a burst, recent ones counting most; 0 before any was seen."""

    WEIGHT = 0.1

    def __init__(self) -> None:
        self.mean = 0.0
        self._last = -math.inf

    def add(self, count: int, now: float, longest: float) -> None:
        """``count`` instances at once count as ``count`` equal gaps since the last arrival.

        What is longer than ``longest`` is a pause and left out.
        """
        gap = max(0.0, now - self._last)
        if gap <= longest:
            keep = (1.0 - self.WEIGHT) ** count
            self.mean = keep * self.mean + (1.0 - keep) * gap / count
        self._last = now


class CostCurve:
    """A line a + b*n through the batches seen, by least squares with forgetting."""

    FORGET = 0.98

    def __init__(self) -> None:
        self._w = self._n = self._t = self._nn = self._nt = 0.0

    def add(self, count: int, seconds: float) -> None:
        f = self.FORGET
        self._w = f * self._w + 1.0
        self._n = f * self._n + count
        self._t = f * self._t + seconds
        self._nn = f * self._nn + count * count
        self._nt = f * self._nt + count * seconds

    def line(self) -> tuple[float, float]:
        """(a, b), both at least 0; zeros before any batch was seen.

        While all batches had one size, half of their cost is taken as fixed: a guess that is put right as
        soon as a hold that it led to brings a batch of another size.
        """
        if self._w == 0.0:
            return 0.0, 0.0
        mean_n, mean_t = self._n / self._w, self._t / self._w
        spread = self._nn / self._w - mean_n * mean_n
        if spread < 1e-9:
            return mean_t / 2, mean_t / 2 / mean_n
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
