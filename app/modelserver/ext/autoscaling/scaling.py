"""Decides how many workers a pool should have, from samples of its state.

The rule is pure: it gets samples with their times and keeps what it learned, but has no clock, task or
worker.

* *Up* when requests wait longer than ``target_wait`` for more than a quarter of the time: a moment above the
  target counts three times as much as one below, and the balance must reach ``up_pause`` seconds. By half of
  the workers at a time, or to twice as many if a request has been waiting for ``up_pause``, and only once the
  workers started last have loaded, as their effect is unknown before.
* *Down* when the remaining workers would be busy for at most ``SPARE`` of their time, by the same balance
  over ``down_pause`` seconds. By a third at a time, at least one.
* *No flapping.* A step down that soon has to be reversed doubles the pause before the next one, up to
  ``MOST_PATIENCE`` times; one that proves right halves it again.
* *Memory.* Never more workers than there is memory for; if it is short for ``up_pause`` seconds, one worker
  is removed, and none is added for ``down_pause`` seconds.
* *Failed starts* are retried after ``FIRST_HOLD`` seconds, then after twice as long each time, up to
  ``LONGEST_HOLD``. While a worker is loading or has failed, none is added.

Requests that wait while a worker is free wait for their batch, not for a worker: that is no reason to scale
up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from modelserver.engine.pools.worker import Worker
from modelserver.surface.api.describe import moment

# The share of their time that the remaining workers may be busy after a step down.
SPARE = 0.6
# Weight of a moment of waiting against one of not waiting; the reverse for a step down.
WEIGHT = 3.0
# A step down is reversed soon if within so many pauses.
SOON = 4.0
MOST_PATIENCE = 16.0
# Seconds until a failed start is retried: at first, and at most.
FIRST_HOLD = 30.0
LONGEST_HOLD = 1800.0
# Seconds between samples, at most and at least.
SELDOM = 0.5
OFTEN = 0.05

# Why the number changes ...
QUEUE_WAIT = "queue_wait"
ALL_BUSY = "all_busy"
IDLE = "idle"
MEMORY = "memory"
START_FAILED = "start_failed"
# ... and why it does not.
STEADY = "steady"
LOADING = "loading"
MAX_WORKERS = "max_workers"
WORKER_FAILED = "worker_failed"
EQUAL_BOUNDS = "equal_bounds"


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """In seconds: how long requests may wait for a worker, and the pauses before scaling."""

    target_wait: float = 0.1
    up_pause: float = 2.0
    down_pause: float = 60.0

    @property
    def every(self) -> float:
        """Seconds between samples."""
        return min(SELDOM, max(OFTEN, self.up_pause / 4))


@dataclass(frozen=True, slots=True)
class Sample:
    """A pool at the moment ``now`` (seconds of a clock that only goes forward).

    ``wait``: seconds that the oldest request has been waiting for a worker; infinite where requests are
    refused instead of waiting. ``busy``: workers that compute, a fraction for those that take several
    requests at a time. ``room``: for how many further workers there is memory; below 0 where it runs short.
    """

    now: float
    wait: float
    busy: float
    ready: int
    loading: int = 0
    failed: int = 0
    room: float = math.inf


@dataclass(frozen=True, slots=True)
class Decision:
    """The target number of ``workers``, the number without limits (``wish``), and a reason from above."""

    workers: int
    wish: int
    reason: str


class Scaler:
    """Decides for one pool."""

    def __init__(self, rule: ScalingRule) -> None:
        self.rule = rule
        self._seen: float | None = None
        self._bounds = (0, 0)
        self._busy = 0.0
        self._pressure = self._calm = self._short = 0.0
        self._patience = 1.0
        self._shrunk: float | None = None
        self._held_until = -math.inf
        self._held_because = STEADY
        self._hold = FIRST_HOLD
        self._trying = False

    def decide(self, sample: Sample, fewest: int, most: int) -> Decision:
        """What to do now, within these bounds; if they changed, all pauses restart."""
        self._observe(sample, fewest, most)
        count = sample.ready + sample.loading
        if fewest >= most:
            return Decision(count, count, EQUAL_BOUNDS)
        if self._short >= self.rule.up_pause and count > fewest:
            return self._relieve(sample.now, count)
        if sample.failed:
            return Decision(count, count, WORKER_FAILED)
        if sample.loading:
            return Decision(count, count, LOADING)
        if self._pressure >= self.rule.up_pause:
            return self._grow(sample, count, most)
        fewer = self._enough(count, fewest)
        if fewer < count and self._calm >= self.rule.down_pause * self._patience:
            return self._shrink(sample.now, fewer)
        return Decision(count, count, STEADY)

    def start_failed(self, now: float) -> None:
        """A started worker could not load its model."""
        self._keep(now, self._hold, START_FAILED)
        self._hold = min(2 * self._hold, LONGEST_HOLD)
        self._trying = False

    # -- observing

    def _observe(self, sample: Sample, fewest: int, most: int) -> None:
        if self._bounds != (fewest, most):
            self._bounds = fewest, most
            self._pressure = self._calm = self._short = 0.0
            self._patience, self._shrunk = 1.0, None
        # A blocked event loop did not observe the time in between.
        passed = 0.0 if self._seen is None else min(sample.now - self._seen, 2 * self.rule.every)
        self._follow(sample.busy, passed)
        self._seen = sample.now
        self._short = self._short + passed if sample.room < 0 else 0.0
        if sample.loading or sample.failed:
            self._pressure = self._calm = 0.0
            return
        if self._trying:
            self._trying, self._hold = False, FIRST_HOLD
        waits = sample.wait > self.rule.target_wait
        self._pressure = _balance(self._pressure, waits, passed, WEIGHT, self.rule.up_pause)
        spared = self._enough(sample.ready, fewest) < sample.ready and not waits
        limit = self.rule.down_pause * self._patience
        self._calm = _balance(self._calm, spared, passed, 1 / WEIGHT, limit)

    def _follow(self, busy: float, passed: float) -> None:
        """Smooths the number of busy workers over a quarter of the pause before a step down."""
        if self._seen is None:
            self._busy = busy
        else:
            self._busy += (busy - self._busy) * (1 - math.exp(-passed / max(self.rule.down_pause / 4, 1e-9)))

    def _enough(self, count: int, fewest: int) -> int:
        """The number of workers that would suffice, within one step."""
        needed = math.ceil(self._busy / SPARE - 1e-9)
        return min(count, max(fewest, needed, count - max(1, count // 3)))

    # -- deciding

    @property
    def _soon(self) -> float:
        """How long after a step down it may prove wrong."""
        return self.rule.down_pause * max(SOON, self._patience)

    def _grow(self, sample: Sample, count: int, most: int) -> Decision:
        behind = sample.wait >= max(self.rule.up_pause, self.rule.target_wait)
        wish = min(most, count + (count if behind else max(1, count // 2)))
        if wish <= count:
            return Decision(count, count, MAX_WORKERS)
        if sample.now < self._held_until:
            return Decision(count, wish, self._held_because)
        workers = int(min(wish, count + max(0.0, sample.room)))
        if workers <= count:
            return Decision(count, wish, MEMORY)
        if self._shrunk is not None and sample.now - self._shrunk < self._soon:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        else:
            self._patience = max(self._patience / 2, 1.0)
        self._shrunk = None
        self._trying = True
        self._pressure = self._calm = 0.0
        return Decision(workers, wish, ALL_BUSY if math.isinf(sample.wait) else QUEUE_WAIT)

    def _shrink(self, now: float, workers: int) -> Decision:
        if self._shrunk is not None and now - self._shrunk >= self._soon:
            # The previous step was right.
            self._patience = max(self._patience / 2, 1.0)
        self._shrunk = now
        self._calm = 0.0
        return Decision(workers, workers, IDLE)

    def _relieve(self, now: float, count: int) -> Decision:
        self._keep(now, self.rule.down_pause, MEMORY)
        self._short = self._calm = 0.0
        return Decision(count - 1, count - 1, MEMORY)

    def _keep(self, now: float, seconds: float, reason: str) -> None:
        """Adds no workers for so many seconds."""
        if now + seconds > self._held_until:
            self._held_until, self._held_because = now + seconds, reason


def _balance(value: float, grows: bool, passed: float, weight: float, limit: float) -> float:
    """The weighted balance of time for and against something, from 0 to ``limit``."""
    return min(limit, value + passed) if grows else max(0.0, value - passed / weight)


@dataclass(frozen=True, slots=True)
class ScaleEvent:
    """A change of the number of workers; ``at`` is in seconds since the epoch."""

    at: float
    before: int
    after: int
    reason: str


class PoolScaling:
    """The state of one pool; ``sample`` and ``decision`` are the last ones, None before the first."""

    def __init__(self, rule: ScalingRule) -> None:
        self.scaler = Scaler(rule)
        self.sample: Sample | None = None
        self.decision: Decision | None = None
        self.event: ScaleEvent | None = None
        self.starting: list[Worker] = []
        self.reminded = -math.inf
        self.due = -math.inf

    @property
    def rule(self) -> ScalingRule:
        """The pool's rule."""
        return self.scaler.rule

    @property
    def wish(self) -> int:
        """How many workers it wants; 0 before the first decision."""
        return 0 if self.decision is None else self.decision.wish

    def describe(self) -> dict[str, Any]:
        """What it has seen and decided, with times in ms; empty before the first decision."""
        if self.decision is None or self.sample is None:
            return {}
        answer: dict[str, Any] = {
            "wish": self.decision.wish,
            "reason": self.decision.reason,
            "queueWait": None if math.isinf(self.sample.wait) else round(self.sample.wait * 1000),
            "busy": round(self.sample.busy, 2),
        }
        if (event := self.event) is not None:
            answer["lastChange"] = {
                "time": moment(event.at),
                "from": event.before,
                "to": event.after,
                "reason": event.reason,
            }
        return answer
