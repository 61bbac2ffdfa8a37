"""The rule of autoscaling, played through with simulated pools: a queue, workers, a clock of their own."""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from modelserver.ext.autoscaling.scaling import (
    ALL_BUSY,
    EQUAL_BOUNDS,
    FIRST_HOLD,
    IDLE,
    LOADING,
    LONGEST_HOLD,
    MAX_WORKERS,
    MEMORY,
    QUEUE_WAIT,
    START_FAILED,
    STEADY,
    WORKER_FAILED,
    Decision,
    Sample,
    Scaler,
    ScalingRule,
)

RULE = ScalingRule(target_wait=0.1, up_pause=2.0, down_pause=60.0)


@dataclass
class Simulation:
    """Requests of a rate that changes with time, served one by one by a pool that the rule scales.

    ``service`` and ``loading`` are seconds: the mean of an exponential time, and a fixed one. ``room`` is
    what is left of memory when so many workers live at that time; ``fails``: a worker started then fails.
    """

    rate: Callable[[float], float]
    service: float = 0.1
    loading: float = 5.0
    bounds: tuple[int, int] = (1, 8)
    room: Callable[[int, float], float] = lambda _count, _now: math.inf
    fails: Callable[[float], bool] = lambda _now: False
    ready: int = 1
    steps: list[tuple[float, int, int, str]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    attempts: list[float] = field(default_factory=list)

    def run(self, seconds, seed=1):
        self._random = random.Random(seed)
        self._queue: deque[float] = deque()
        self._running: list[float] = []
        self._starting: list[tuple[float, bool]] = []
        arrivals = self._arrivals(seconds)
        scaler = Scaler(RULE)
        now = 0.0
        while now < seconds:
            now += RULE.every
            self._serve(arrivals, now)
            self._load(scaler, now)
            decision = scaler.decide(self._sample(now), *self.bounds)
            count = self.ready + len(self._starting)
            if decision.workers != count:
                self.steps.append((now, count, decision.workers, decision.reason))
                self._resize(decision.workers - count, now)
        return self

    def _arrivals(self, seconds):
        most = max(self.rate(second) for second in range(int(seconds)))
        result, now = deque[float](), 0.0
        while (now := now + self._random.expovariate(most)) < seconds:
            if self._random.random() * most < self.rate(now):
                result.append(now)
        return result

    def _serve(self, arrivals, until):
        while True:
            arrival = arrivals[0] if arrivals else math.inf
            end = self._running[0] if self._running else math.inf
            now = min(arrival, end)
            if now > until:
                return
            if end <= arrival:
                heapq.heappop(self._running)
            else:
                self._queue.append(arrivals.popleft())
            self._begin(now)

    def _begin(self, now):
        while self._queue and len(self._running) < self.ready:
            arrived = self._queue.popleft()
            self.waits.append((arrived, now - arrived))
            heapq.heappush(self._running, now + self._random.expovariate(1 / self.service))

    def _load(self, scaler, now):
        for start in [start for start in self._starting if start[0] <= now]:
            self._starting.remove(start)
            if start[1]:
                scaler.start_failed(now)
            else:
                self.ready += 1
        self._begin(now)

    def _resize(self, change, now):
        if change < 0:
            self.ready += change
            return
        self.attempts.append(now)
        self._starting += [(now + self.loading, self.fails(now))] * change

    def _sample(self, now):
        busy = min(len(self._running), self.ready)
        wait = now - self._queue[0] if self._queue and busy == self.ready else 0.0
        room = self.room(self.ready + len(self._starting), now)
        return Sample(now, wait, busy, self.ready, len(self._starting), room=room)

    def most_workers(self):
        return max(after for _, _, after, _ in self.steps)

    def share_waiting(self, since, until):
        """The share of the requests of this time that waited longer than the target."""
        waits = [wait for arrived, wait in self.waits if since <= arrived < until]
        return sum(wait > RULE.target_wait for wait in waits) / len(waits)


@pytest.fixture
def scaler():
    return Scaler(RULE)


def test_burst_gets_enough_workers_in_time():
    """A burst that needs seven workers has eight within three times the loading, and they go afterwards."""
    burst = Simulation(lambda now: 60.0 if 300 <= now < 480 else 2.0).run(1800)
    ups = [(now, after) for now, before, after, _ in burst.steps if after > before]

    assert ups[0][0] - 300 <= 2 * RULE.up_pause
    assert next(now for now, after in ups if after == 8) - 300 <= 3 * (5.0 + RULE.up_pause + 2)
    assert burst.share_waiting(400, 480) < 0.25
    assert burst.ready == 1
    assert {reason for _, before, after, reason in burst.steps if after > before} == {QUEUE_WAIT}
    assert {reason for _, before, after, reason in burst.steps if after < before} == {IDLE}


def test_slow_changes_are_followed():
    day = Simulation(lambda now: 25 - 24 * math.cos(now / 3600 * 2 * math.pi)).run(3600)

    assert day.most_workers() >= 6
    assert day.ready <= 2
    assert len(day.steps) <= 20
    assert day.share_waiting(0, 3600) < 0.1


@pytest.mark.parametrize(("rate", "service"), [(6.5, 0.1), (13.0, 0.1), (0.6, 1.0), (0.35, 1.0), (3.0, 0.5)])
def test_noise_makes_no_flapping(rate, service):
    steady = Simulation(lambda _: rate, service).run(7200)
    late = sum(now > 3600 for now, *_ in steady.steps)

    assert late <= len(steady.steps) / 2
    # One in four minutes, where a rule that learns nothing would take one in every pause of one minute.
    assert late <= 15


def test_short_bursts_keep_their_workers():
    bursts = Simulation(lambda now: 40.0 if now % 180 < 20 else 2.0).run(3600)

    assert sum(now > 1800 for now, *_ in bursts.steps) <= 8
    assert bursts.ready >= 4


def test_lone_or_quiet_load_changes_nothing():
    """Requests one at a time, however slow, never start a second worker."""
    assert Simulation(lambda _: 2.0).run(1800).steps == []

    scaler = Scaler(RULE)
    decisions = [scaler.decide(Sample(n / 2, 0.0, 1.0, 1), 1, 4) for n in range(1000)]

    assert {decision.reason for decision in decisions} == {STEADY}


def test_never_more_than_memory_allows():
    tight = Simulation(lambda now: 60.0 if now % 600 < 200 else 2.0, room=lambda count, _: 3 - count)
    tight.run(1800)

    assert tight.most_workers() == 3


def test_memory_that_others_take():
    """Where memory runs short workers go, down to the least, and come back when there is some."""
    gone = Simulation(lambda _: 30.0, room=lambda count, at: (1 if 600 <= at < 900 else 8) - count).run(1800)
    during = [step for step in gone.steps if 600 <= step[0] < 900]

    assert {reason for *_, reason in during} == {MEMORY}
    assert during[-1][2] == 1
    assert during[0][0] - 600 <= RULE.up_pause + 1
    assert gone.ready >= 3
    assert all(now >= 900 for now, before, after, _ in gone.steps if now >= 600 and after > before)


def test_what_cannot_be_had_is_wished_for(scaler):
    """The decision says how many there would be with enough memory."""
    decisions = [scaler.decide(Sample(n / 2, 1.0, 2.0, 2, room=0), 1, 8) for n in range(10)]

    assert decisions[-1] == Decision(workers=2, wish=3, reason=MEMORY)


def test_at_least_the_minimum_stays(scaler):
    decisions = [scaler.decide(Sample(n / 2, 0.0, 0.0, 2, room=-1), 2, 8) for n in range(100)]

    assert {decision.workers for decision in decisions} == {2}


def test_starts_that_fail_make_no_loop():
    """Under a load that never ends, starts that all fail are tried ever less often."""
    broken = Simulation(lambda _: 30.0, fails=lambda _: True).run(3600)
    pauses = [later - earlier for earlier, later in pairwise(broken.attempts)]

    assert broken.ready == 1
    assert 3 <= len(broken.attempts) <= 8
    assert pauses[0] >= FIRST_HOLD
    assert all(later > 1.5 * earlier for earlier, later in pairwise(pauses))


def test_starts_that_succeed_again(scaler):
    for _ in range(20):
        scaler.start_failed(0.0)
    assert scaler.decide(Sample(LONGEST_HOLD - 5, 1.0, 1.0, 1), 1, 8).reason == STEADY
    held = [scaler.decide(Sample(LONGEST_HOLD - 5 + n / 2, 1.0, 1.0, 1), 1, 8) for n in range(10)]
    tried = [scaler.decide(Sample(LONGEST_HOLD + n / 2, 1.0, 1.0, 1), 1, 8) for n in range(1, 4)]
    assert (held[-1].reason, held[-1].wish) == (START_FAILED, 2)
    assert tried[0].workers == 2

    scaler.decide(Sample(LONGEST_HOLD + 2, 0.0, 1.0, 2), 1, 8)
    scaler.start_failed(LONGEST_HOLD + 3)
    later = [scaler.decide(Sample(LONGEST_HOLD + 4 + n / 2, 1.0, 2.0, 2), 1, 8) for n in range(80)]
    assert any(decision.workers > 2 for decision in later)


@pytest.mark.parametrize(("loading", "failed", "reason"), [(1, 0, LOADING), (0, 1, WORKER_FAILED)])
def test_workers_that_are_not_well(loading, failed, reason, scaler):
    """While one loads or was given up nothing is added, however long requests wait."""
    decisions = [scaler.decide(Sample(n / 2, 9.0, 1.0, 1, loading, failed), 1, 8) for n in range(100)]

    assert {decision.reason for decision in decisions} == {reason}
    assert {decision.workers for decision in decisions} == {1 + loading}


def test_decisions_stay_within_bounds():
    """Never above the most, and nothing at all where both are equal."""
    assert Simulation(lambda _: 90.0, bounds=(1, 3)).run(300).most_workers() == 3
    full = Scaler(RULE)
    assert [full.decide(Sample(n / 2, 9.0, 3.0, 3), 1, 3) for n in range(20)][-1].reason == MAX_WORKERS
    fixed = Scaler(RULE)
    assert {fixed.decide(Sample(n / 2, 9.0, 1.0, 1), 1, 1).reason for n in range(20)} == {EQUAL_BOUNDS}


def test_changed_bounds_restart_the_pauses(scaler):
    for n in range(4):
        scaler.decide(Sample(n / 2, 1.0, 1.0, 1), 1, 4)
    decisions = [scaler.decide(Sample(2 + n / 2, 1.0, 2.0, 2), 2, 4) for n in range(6)]

    assert [decision.workers for decision in decisions[:4]] == [2, 2, 2, 3]


def test_refused_requests_ask_for_workers(scaler):
    decisions = [scaler.decide(Sample(n / 2, math.inf, 2.0, 2), 1, 8) for n in range(6)]

    assert next(d for d in decisions if d.workers > 2).reason == ALL_BUSY


def test_a_loop_that_was_held_up(scaler):
    """One moment of waiting after a long silence is not taken for a long wait."""
    scaler.decide(Sample(0.0, 0.0, 0.0, 1), 1, 4)

    assert scaler.decide(Sample(600.0, 1.0, 1.0, 1), 1, 4).workers == 1


@pytest.mark.parametrize(("up", "every"), [(2.0, 0.5), (0.4, 0.1), (0.001, 0.05), (60.0, 0.5)])
def test_samples_follow_the_shorter_pause(up, every):
    assert ScalingRule(up_pause=up).every == pytest.approx(every)
