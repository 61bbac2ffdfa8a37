"""When does a waiting batch go? A full one always goes at once; for the others a policy names the moment.

Three answers, in the order in which they wait less:

* ``window``: when the oldest instance has waited ``max_delay`` (TorchServe's and KServe's documented rule,
  with the clock started at arrival). Requests that come within the window share a batch; a lone one pays all
  of it.
* ``adaptive``: at once, unless a hold pays. It learns what a batch costs, t(n) = a + b*n, and the gap g from
  one arrival to the next, and whether clients come back as soon as they are answered. It holds

  *for those who come back*, if most do. Clients in step would otherwise split: one request is back first and
  goes alone, and all others wait for it, again and again. So until as many instances came as the last batch
  answered, a batch is held, as long as that pays: sending n instances now makes the next arrival, expected
  after the gap g within a burst, wait for what is left of t(n); holding for it delays the n waiting ones by
  g + b each:

      n * (g + b) < t(n) - g

  This hold ends when nothing came for a few gaps after the later of that batch's end and the last arrival.

  *for the workers' turns*, if most do not. k workers that begin together end together, and all that come
  meanwhile wait for the end. They do best one after another, each taking what came in its turn of t(n)/k:

      n* = t(n*) / (k * g), so n* = a / (k*g - b)

  The last idle worker is kept for a batch of n* (for several workers a quarter more: that leaves the time
  which keeps them apart), or until such a turn, n* * g, has been over for a while since the oldest came, or
  nothing came for a few gaps; and only while the wait, n * (g + b), costs less than twice the a that sharing
  a batch saves (twice: a second of a worker delays everybody who comes meanwhile).

  Every hold ends at the latest after ``max_delay``. With another worker free the newcomer would not wait at
  all, and nothing is held. A lone sequential client never is: one answer, one request, and the gaps between
  its requests are longer than a.
* ``greedy``: at once.

A policy is pure: it sees the time and what waits, keeps what it learned, owns no timer. All times in seconds.
"""

from __future__ import annotations

import math
from collections import deque
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
    # A second of a worker is worth this many of a request's waiting.
    WORTH = 2.0
    # Several workers stay apart if each waits for a little more than it would have to ...
    SPARE = 1.25
    # ... and arrivals scatter: a turn may last longer than its mean, with gaps of up to this many usual ones.
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
        """Seconds without an arrival after which nobody comes back any more."""
        return min(max(self.PATIENCE * self._burst.mean, self.TURNAROUND), self.LONGEST_SILENCE * a)

    def _all_back(self, waiting: Waiting, a: float, b: float) -> float:
        """The end of a hold for the clients that were answered last; the distant past for none."""
        if not self._return.missing:
            return -math.inf
        silence = self._silence(a)
        n, gap = waiting.count, silence / self.PATIENCE
        if n * (gap + b) >= a + b * n - gap:
            return -math.inf
        return max(waiting.newest, self._return.since) + silence

    def _turn_over(self, waiting: Waiting, a: float, b: float) -> float:
        """The end of a hold for the worker's turn; the distant past for none."""
        n, gap = waiting.count, self._arrivals.gap
        # What comes less often than a fixed cost is over has nothing to share.
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
    """The mean time between instances, and the time from the last arrival but one to the last.

    ``gap`` is infinite before two came, ``newest`` too.
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
        """At least 1; one that was taken away is forgotten after some fifty batches."""
        return round(self._most)

    def add(self, began: float, ended: float) -> None:
        """A batch of any worker; batches come in the order of their ends."""
        beside = 1
        for other_began, other_ended in reversed(self._batches):
            if other_ended <= began:
                break
            beside += other_began <= began
        self._batches.append((began, ended))
        self._most = max(float(beside), self._most + self.FORGET * (beside - self._most))


class ReturnEstimate:
    """Whether clients ask again as soon as they are answered.

    ``missing`` instances of those answered at ``since`` have not come back. ``share`` is the part that comes
    back within the silence given, beyond those who would have come anyhow: 1 for clients in step, about 0 for
    arrivals that know nothing of answers. It begins as 1.
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
        """Whether most do."""
        return self.share >= 0.5

    def arrived(self, count: int, now: float) -> None:
        """``count`` instances came."""
        self.missing = max(0, self.missing - count)
        self._came = True
        if now <= self.since + self._silence:
            self._back += count

    def answered(self, count: int, now: float, silence: float, gap: float) -> None:
        """``count`` instances went back; others come every ``gap`` seconds."""
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
