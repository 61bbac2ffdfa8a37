"""When is a waiting batch sent? A full one always at once; for the others a policy decides.

Three policies, from the longest wait to the shortest:

* ``window``: when the oldest instance has waited ``max_delay`` (TorchServe's and KServe's documented rule,
  with the clock started at arrival). Requests that arrive within the window share a batch; a lone request
  waits for all of it.
* ``adaptive``: at once, unless a hold pays. It learns what a batch costs, t(n) = a + b*n, the gap g from one
  arrival to the next, and whether clients send again as soon as they are answered. It holds a batch

  *for returning clients*, if most return. Clients in step would otherwise split: one request is back first
  and is sent alone, and all others wait for it, again and again. So until as many instances arrived as the
  last batch answered, a batch is held as long as that pays: sending n instances now makes the next arrival,
  expected after the gap g within a burst, wait for the rest of t(n); holding for it delays the n waiting ones
  by g + b each:

      n * (g + b) < t(n) - g

  This hold ends when nothing arrived for a few gaps after that batch's end or the last arrival, whichever is
  later.

  *for the workers' turns*, if most do not return. k workers that begin together end together, and everything
  that arrives meanwhile waits for the end. They do best one after another, each taking what arrived in its
  turn of t(n)/k:

      n* = t(n*) / (k * g), so n* = a / (k*g - b)

  The last idle worker is kept for a batch of n* (with several workers a quarter more: that leaves the time
  which keeps them apart), or until such a turn, n* * g, has been over for a while since the oldest arrived,
  or nothing arrived for a few gaps; and only while the wait, n * (g + b), costs less than twice the a that
  sharing a batch saves (twice: a second of a worker delays everything that arrives meanwhile).

  Every hold ends after ``max_delay`` at the latest. If another worker is idle, the next arrival would not
  wait at all, and nothing is held. A lone sequential client is never held: one answer, one request, and the
  gaps between its requests are longer than a.
* ``greedy``: at once.

A policy is pure: it gets the time and what waits, keeps what it learned, and has no timer. All times are in
seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from modelserver.engine.policy_names import ADAPTIVE, GREEDY, WINDOW


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits in one lane, as a policy sees it when a worker is idle."""

    count: int
    oldest: float
    newest: float
    idle_workers: int


class Policy(Protocol):
    """The rule that decides when a waiting batch that is not full is sent."""

    name: str

    def due(self, waiting: Waiting, now: float) -> float:
        """The time at which the batch is sent; not later than ``now`` means at once."""

    def arrived(self, count: int, now: float) -> None:
        """``count`` instances arrived."""

    def finished(self, count: int, seconds: float, now: float) -> None:
        """A batch of ``count`` instances was answered; its worker took ``seconds``."""


class Greedy:
    """An idle worker takes what waits."""

    name = GREEDY

    def due(self, waiting: Waiting, now: float) -> float:
        return now

    def arrived(self, count: int, now: float) -> None:
        pass

    def finished(self, count: int, seconds: float, now: float) -> None:
        pass


class Window:
    """The oldest instance waits exactly ``max_delay`` seconds unless the batch fills earlier."""

    name = WINDOW

    def __init__(self, max_delay: float) -> None:
        self.max_delay = max_delay

    def due(self, waiting: Waiting, now: float) -> float:
        return waiting.oldest + self.max_delay

    def arrived(self, count: int, now: float) -> None:
        pass

    def finished(self, count: int, seconds: float, now: float) -> None:
        pass


class Adaptive:
    """Greedy, but holds where that pays; never beyond ``max_delay`` seconds after the oldest arrival."""

    name = ADAPTIVE

    # A burst is over after a silence of this many usual gaps ...
    PATIENCE = 3.0
    # ... but of at least this many seconds: clients need a moment to read an answer and send again.
    TURNAROUND = 0.002
    # Gaps and holds, as shares of the fixed cost of a batch, which is what a hold can save.
    LONGEST_GAP = 0.1
    LONGEST_SILENCE = 0.2
    # A second of a worker is worth this many seconds of a request's waiting.
    WORTH = 2.0
    # Several workers stay apart if each waits for a little more than it has to ...
    SPARE = 1.25
    # ... and arrivals vary: a turn may last longer than its mean, with gaps of up to this many usual ones.
    SLACK = 1.25
    TURN_PATIENCE = 5.0

    def __init__(self, max_delay: float) -> None:
        self.max_delay = max_delay
        self._burst = GapEstimate()
        self._arrivals = ArrivalEstimate()
        self._cost = CostCurve()
        self._workers = WorkerEstimate()
        self._return = ReturnEstimate()
        self._line = (0.0, 0.0)

    def arrived(self, count: int, now: float) -> None:
        a = self._line[0]
        self._burst.add(count, now, longest=self.LONGEST_GAP * a)
        self._arrivals.add(count, now, pause=2 * a)
        self._return.arrived(count, now)

    def finished(self, count: int, seconds: float, now: float) -> None:
        self._cost.add(count, seconds)
        self._line = self._cost.line()
        self._workers.add(now - seconds, now)
        self._return.answered(count, now, self._silence(self._line[0]), self._arrivals.gap)

    def due(self, waiting: Waiting, now: float) -> float:
        if waiting.idle_workers > 1:
            return now
        a, b = self._line
        end = self._all_back(waiting, a, b) if self._return.usual else self._turn_over(waiting, a, b)
        return now if end <= now else min(end, waiting.oldest + self.max_delay)

    def _silence(self, a: float) -> float:
        """Seconds without an arrival after which no more clients are expected to return."""
        return min(max(self.PATIENCE * self._burst.mean, self.TURNAROUND), self.LONGEST_SILENCE * a)

    def _all_back(self, waiting: Waiting, a: float, b: float) -> float:
        """The end of a hold for the clients answered last; minus infinity for no hold."""
        if not self._return.missing:
            return -math.inf
        silence = self._silence(a)
        n, gap = waiting.count, silence / self.PATIENCE
        if n * (gap + b) >= a + b * n - gap:
            return -math.inf
        return max(waiting.newest, self._return.since) + silence

    def _turn_over(self, waiting: Waiting, a: float, b: float) -> float:
        """The end of a hold for the worker's turn; minus infinity for no hold."""
        n, gap = waiting.count, self._arrivals.gap
        # Arrivals further apart than the fixed cost have nothing to share.
        if gap <= 0.0 or self._arrivals.newest >= a or n * (gap + b) >= self.WORTH * a:
            return -math.inf
        workers = self._workers.count
        room = workers * gap - b
        target = a / room if room > 0.0 else math.inf
        if target > 1.0 and workers > 1:
            target *= self.SPARE
        if n >= target:
            return -math.inf
        return min(waiting.oldest + self.SLACK * target * gap, waiting.newest + self.TURN_PATIENCE * gap)


class ArrivalEstimate:
    """The mean time between instances (``gap``), and that between the last two arrivals (``newest``).

    Both are infinite before the second arrival.
    """

    WEIGHT = 0.05

    def __init__(self) -> None:
        self.gap = self.newest = math.inf
        self._last = -math.inf

    def add(self, count: int, now: float, pause: float) -> None:
        """``count`` instances at once count as ``count`` equal gaps; a gap beyond ``pause`` counts as one."""
        self.newest = max(0.0, now - self._last)
        self._last = now
        if pause <= 0.0:
            return
        each = min(self.newest, pause) / count
        keep = 0.0 if self.gap == math.inf else (1.0 - self.WEIGHT) ** count
        self.gap = each if keep == 0.0 else keep * self.gap + (1.0 - keep) * each


class WorkerEstimate:
    """How many workers compute at once when all do, from the times at which batches began and ended."""

    FORGET = 0.02
    REMEMBERED = 64

    def __init__(self) -> None:
        self._most = 1.0
        self._batches: deque[tuple[float, float]] = deque(maxlen=self.REMEMBERED)

    @property
    def count(self) -> int:
        """At least 1; a worker that was removed is forgotten after some fifty batches."""
        return round(self._most)

    def add(self, began: float, ended: float) -> None:
        """Adds a batch of any worker; to be called in the order in which batches end."""
        beside = 1
        for other_began, other_ended in reversed(self._batches):
            if other_ended <= began:
                break
            beside += other_began <= began
        self._batches.append((began, ended))
        self._most = max(float(beside), self._most + self.FORGET * (beside - self._most))


class ReturnEstimate:
    """Whether clients send again as soon as they are answered.

    ``missing`` instances of those answered at ``since`` have not returned. ``share`` is the part that returns
    within the given silence, beyond those that would have arrived anyhow: 1 for clients in step, about 0 for
    arrivals independent of answers. It begins as 1.
    """

    WEIGHT = 0.2

    def __init__(self) -> None:
        self.missing = 0
        self.since = 0.0
        self.share = 1.0
        self._answered = 0
        self._back = 0
        self._silence = 0.0
        self._anyhow = 0.0
        self._came = False

    @property
    def usual(self) -> bool:
        """Whether most clients return."""
        return self.share >= 0.5

    def arrived(self, count: int, now: float) -> None:
        self.missing = max(0, self.missing - count)
        self._came = True
        if now <= self.since + self._silence:
            self._back += count

    def answered(self, count: int, now: float, silence: float, gap: float) -> None:
        """``count`` instances were answered; others arrive every ``gap`` seconds."""
        if self._came and self._answered:
            seen = (self._back - self._anyhow) / self._answered
            self.share += self.WEIGHT * (min(max(seen, -1.0), 1.0) - self.share)
        self.missing = self._answered = count
        self.since = now
        self._back = 0
        self._came = False
        self._silence = silence
        self._anyhow = silence / gap if gap > 0.0 else 0.0


class GapEstimate:
    """The mean time between the instances of a burst, recent ones weighted most; 0 before the first."""

    WEIGHT = 0.1

    def __init__(self) -> None:
        self.mean = 0.0
        self._last = -math.inf

    def add(self, count: int, now: float, longest: float) -> None:
        """``count`` instances at once count as ``count`` equal gaps since the last arrival.

        A gap longer than ``longest`` is a pause and is left out.
        """
        gap = max(0.0, now - self._last)
        if gap <= longest:
            keep = (1.0 - self.WEIGHT) ** count
            self.mean = keep * self.mean + (1.0 - keep) * gap / count
        self._last = now


class CostCurve:
    """A line a + b*n through the batches so far, by least squares with forgetting."""

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
        """(a, b), both at least 0; zeros before the first batch.

        While all batches had the same size, half of their cost is taken as fixed: a guess that is corrected
        as soon as a hold based on it leads to a batch of another size.
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


class Expectation:
    """What the next batch should take, from those before it; single long ones move it little."""

    # Longer than this many times the expected counts as that.
    LONGEST = 2.0

    def __init__(self) -> None:
        self._curve = CostCurve()
        self._line = (0.0, 0.0)

    def add(self, count: int, seconds: float) -> None:
        """A batch of ``count`` instances took so many seconds."""
        usual = self.seconds(count)
        self._curve.add(count, min(seconds, self.LONGEST * usual) if usual else seconds)
        self._line = self._curve.line()

    def seconds(self, count: int) -> float:
        """Expected for a batch of ``count`` instances; 0 before the first."""
        a, b = self._line
        return a + b * count


_POLICIES: Final[Mapping[str, Callable[[float], Policy]]] = {
    ADAPTIVE: Adaptive,
    GREEDY: lambda _: Greedy(),
    WINDOW: Window,
}


def make_policy(name: str, max_delay: float) -> Policy:
    """The policy called ``name``, one of ``POLICIES``, with its cap in seconds."""
    return _POLICIES[name](max_delay)
