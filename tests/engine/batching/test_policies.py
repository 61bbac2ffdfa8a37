import heapq
import itertools
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.batching.policies import (
    Adaptive,
    ArrivalEstimate,
    CostCurve,
    Expectation,
    GapEstimate,
    Greedy,
    ReturnEstimate,
    Waiting,
    Window,
    WorkerEstimate,
    make_policy,
)
from modelserver.engine.batching.queue import BatchQueue
from modelserver.engine.batching.request import Batch, Request
from modelserver.engine.policy_names import POLICIES
from modelserver.engine.wire.messages import Row
from modelserver.ext import console
from modelserver.ext.console.estimates import Choice


def one_idle(count, oldest, newest):
    return Waiting(count, oldest, newest, idle_workers=1)


def learned(policy, a, b, gap, until=100.0):
    """Has seen arrivals every ``gap`` seconds, batches that cost a + b*n, and at ``until`` the end of one."""
    for n in range(1, 33):
        policy.finished(n, a + b * n, 0.0)
    for i in range(200, -1, -1):
        policy.arrived(1, until - i * gap)
    policy.finished(32, a + b * 32, until)
    return policy


def test_policies_are_made_by_name():
    """Everything else that names them has the names from there; the console has its own lists."""
    policies = [make_policy(name, 0.5) for name in POLICIES]
    page = (Path(console.__file__).parent / "static" / "change.js").read_text(encoding="utf-8")

    assert [policy.name for policy in policies] == [*POLICIES]
    assert {getattr(policy, "max_delay", 0.5) for policy in policies} == {0.5}
    assert get_args(get_type_hints(Choice)["policy"]) == POLICIES
    assert f"export const POLICIES = {json.dumps(POLICIES)};" in page


def test_window_and_greedy_ignore_what_was_learned():
    window, greedy = Window(0.5), Greedy()
    for policy in (window, greedy):
        policy.arrived(7, 10.4)
        policy.finished(7, 30.0, 0.0)

    assert window.due(one_idle(3, oldest=10.0, newest=10.4), now=10.4) == 10.5
    assert window.due(Waiting(1, 10.0, 10.0, idle_workers=3), now=12.0) == 10.5
    assert greedy.due(one_idle(1, 5.0, 5.0), now=5.0) == 5.0


@given(
    a=st.floats(0.0, 0.5),
    b=st.floats(1e-4, 0.1),
    sizes=st.lists(st.integers(1, 64), min_size=2, max_size=100).filter(lambda s: len(set(s)) > 1),
)
def test_cost_curve_recovers_the_line(a, b, sizes):
    curve = CostCurve()
    for n in sizes:
        curve.add(n, a + b * n)

    assert curve.line() == pytest.approx((a, b), rel=1e-3, abs=1e-5)


def test_cost_curve_of_one_size_is_half_fixed():
    curve = CostCurve()
    assert curve.line() == (0.0, 0.0)
    for _ in range(500):
        curve.add(8, 0.4)

    assert curve.line() == pytest.approx((0.2, 0.025))


def test_cost_curve_follows_a_change():
    curve = CostCurve()
    for a, b, count in ((1.0, 0.5, 400), (0.02, 0.001, 800)):
        for n in itertools.islice(itertools.cycle(range(1, 9)), count):
            curve.add(n, a + b * n)

    assert curve.line() == pytest.approx((0.02, 0.001), abs=1e-4)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.0, 10.0)), min_size=1, max_size=60))
def test_cost_curve_is_never_negative(batches):
    """Whatever times batches took, neither the fixed cost nor that of an instance is below 0."""
    curve = CostCurve()
    for n, seconds in batches:
        curve.add(n, seconds)

    a, b = curve.line()
    assert a >= -1e-9
    assert b >= 0.0


def test_gap_is_the_mean_time_between_instances():
    """Steady arrivals give their own gap; one arrival of n instances counts as n equal gaps."""
    single, grouped = GapEstimate(), GapEstimate()
    assert single.mean == 0.0
    for i in range(200):
        single.add(1, i * 0.25, longest=1.0)
        grouped.add(5, i * 0.25, longest=1.0)

    assert single.mean == pytest.approx(0.25)
    assert grouped.mean == pytest.approx(0.05)


def test_group_weighs_as_much_as_its_instances():
    single, grouped = GapEstimate(), GapEstimate()
    for gap in (single, grouped):
        gap.add(1, 0.0, longest=9.0)
        gap.add(1, 5.0, longest=9.0)
    for i in range(1, 11):
        single.add(1, 5.0 + i * 0.1, longest=9.0)
    grouped.add(10, 6.0, longest=9.0)

    assert grouped.mean == pytest.approx(single.mean)


def test_gap_follows_recent_arrivals_but_no_pauses():
    """When arrivals become ten times as frequent, the estimate has followed after fifty of them."""
    gap = GapEstimate()
    now = 0.0
    for step in [1.0] * 50 + [0.1] * 50:
        now += step
        gap.add(1, now, longest=9.0)

    assert gap.mean == pytest.approx(0.1, rel=0.1)

    gap = GapEstimate()
    for burst in range(20):
        for i in range(20):
            gap.add(1, burst * 60.0 + i * 0.001, longest=0.1)

    assert gap.mean == pytest.approx(0.001)


def test_arrivals_are_timed_one_by_one_and_in_groups():
    single, grouped = ArrivalEstimate(), ArrivalEstimate()
    assert single.gap == single.newest == math.inf
    for i in range(300):
        single.add(1, i * 0.25, pause=1.0)
        grouped.add(5, i * 0.25, pause=1.0)

    assert single.gap == pytest.approx(0.25)
    assert grouped.gap == pytest.approx(0.05, rel=1e-3)
    assert single.newest == grouped.newest == 0.25


def test_a_night_or_an_unknown_cost_makes_no_gap():
    arrivals = ArrivalEstimate()
    for i in range(100):
        arrivals.add(1, i * 0.01, pause=0.1)
    arrivals.add(1, 30_000.0, pause=0.1)

    assert 0.01 < arrivals.gap < 0.02
    assert arrivals.newest > 20_000.0

    unknown = ArrivalEstimate()
    for i in range(10):
        unknown.add(1, i * 0.01, pause=0.0)

    assert unknown.gap == math.inf


@given(workers=st.integers(1, 12), seconds=st.floats(1e-4, 10.0))
def test_workers_are_counted_when_all_compute(workers, seconds):
    for shift in (0.0, seconds / workers):
        estimate = WorkerEstimate()
        for turn in range(4):
            for worker in range(workers):
                began = turn * 1.001 * seconds + worker * shift
                estimate.add(began, began + seconds)

        assert estimate.count == workers


def test_workers_that_are_gone_are_forgotten():
    estimate = WorkerEstimate()
    for turn in range(4):
        for _ in range(4):
            estimate.add(turn * 1.0, turn + 0.9)
    assert estimate.count == 4
    for turn in range(10, 110):
        estimate.add(turn * 1.0, turn + 0.9)

    assert estimate.count == 1


def test_clients_in_step_are_seen_to_come_back():
    """Those who are back within the silence count, and what would have come anyhow is taken off."""
    step, chance = ReturnEstimate(), ReturnEstimate()
    for turn in range(50):
        step.answered(8, turn * 1.0, silence=0.01, gap=0.125)
        chance.answered(8, turn * 1.0, silence=0.25, gap=0.125)
        for i in range(8):
            step.arrived(1, turn + 0.005)
            chance.arrived(1, turn + (i + 1) * 0.12)

    assert step.share == pytest.approx(0.99, abs=0.02)
    assert step.usual
    assert step.missing == 0
    assert chance.share == pytest.approx(0.0, abs=0.05)
    assert not chance.usual


def test_silence_says_nothing_about_returns():
    """Answers after which nobody came at all, as at the end of a test, leave the estimate as it is."""
    estimate = ReturnEstimate()
    for turn in range(50):
        estimate.answered(8, turn * 1.0, silence=0.01, gap=1.0)

    assert estimate.share == 1.0


def test_adaptive_without_knowledge_is_greedy():
    policy = Adaptive(1.0)
    assert policy.due(one_idle(1, 0.0, 0.0), now=0.0) == 0.0
    policy.arrived(1, 0.0)
    policy.arrived(1, 0.001)
    assert policy.due(one_idle(1, 0.0, 0.001), now=0.001) == 0.001


@pytest.mark.parametrize(
    ("count", "gap", "silence"),
    [
        # t(n) = 50 ms + 1 ms * n. Holding n for one more pays while n * (gap + 1) < 50 + n - gap.
        (1, 0.001, 0.003),
        (10, 0.001, 0.003),  # 20 < 59
        (24, 0.001, 0.003),  # 48 < 73
        (30, 0.003, 0.0),  # 120 > 77
        (1, 0.0001, 0.002),  # three gaps would be too short for clients to ask again
        (1, 0.005, 0.010),  # three gaps would be longer than a fifth of the fixed cost
        (1, 0.100, 0.002),  # nothing but pauses
    ],
)
def test_adaptive_holds_where_it_pays_and_for_as_long(count, gap, silence):
    now = 100.0
    policy = learned(Adaptive(10.0), 0.050, 0.001, gap, until=now)
    waits_since = now - (count - 1) * gap

    due = policy.due(one_idle(count, waits_since, now), now)

    assert due == pytest.approx(now + silence, abs=1e-6)


def test_adaptive_holds_for_nobody_with_another_worker_free_or_when_all_came_back():
    """With a second idle worker the next arrival would not wait; no more come than the last batch had."""
    policy = learned(Adaptive(10.0), 0.050, 0.001, 0.001)
    for i in range(32):
        assert policy.due(one_idle(1, 100.0, 100.0), now=100.0) > 100.0
        assert policy.due(Waiting(1, 100.0, 100.0, idle_workers=2), now=100.0) == 100.0
        policy.arrived(1, 100.0 + i * 1e-6)

    assert policy.due(one_idle(1, 100.0, 100.0), now=100.0) == 100.0


@given(count=st.integers(1, 31), gap=st.floats(1e-5, 0.1))
def test_adaptive_does_not_hold_where_batching_saves_nothing(count, gap):
    policy = learned(Adaptive(10.0), 0.0, 0.010, gap)
    assert policy.due(one_idle(count, 100.0, 100.0), now=100.0) == 100.0


def test_adaptive_gives_up_when_the_burst_is_over():
    policy = learned(Adaptive(10.0), 0.050, 0.001, 0.002)

    assert policy.due(one_idle(1, 100.0, 100.0), now=100.005) > 100.005
    assert policy.due(one_idle(1, 100.0, 100.0), now=100.007) <= 100.007


def independent(policy, gap, workers):
    """Arrivals every ``gap`` s until 100 s, and batches of 40 ms + 1 ms * n that bring nobody back."""
    times = [(100.0 - i * gap, 0, 1) for i in range(400)]
    turns = 40 * workers
    times += [(99.9 - i * 0.049 / workers, 1, 1 + i % 8) for i in range(turns)]
    for at, what, count in sorted(times):
        if what == 0:
            policy.arrived(1, at)
        else:
            policy.finished(count, 0.040 + 0.001 * count, at)
    return policy


@pytest.mark.parametrize(
    ("workers", "gap", "turn"),
    [
        (1, 0.009, 5.0),  # n* = 40 / (9 - 1)
        (4, 0.004, 1.25 * 40 / 15),  # n* = 40 / (16 - 1), and a quarter more for four
        (2, 0.0055, 5.0),  # n* = 40 / (11 - 1), and a quarter more
    ],
)
def test_the_last_worker_waits_for_a_batch_of_its_turn(workers, gap, turn):
    """Independent arrivals: fewer than n* = a / (k*g - b) are held, n* are not."""
    policy = independent(Adaptive(10.0), gap, workers)
    few, enough = math.ceil(turn) - 1, math.ceil(turn + 1e-6)

    held = policy.due(one_idle(few, 100.0, 100.0), now=100.0)

    assert 100.0 < held <= 100.0 + 5 * gap + 1e-9
    assert policy.due(one_idle(enough, 100.0, 100.0), now=100.0) == 100.0


@given(
    delay=st.floats(0.0, 0.1),
    gap=st.floats(1e-5, 0.1),
    count=st.integers(1, 64),
    spread=st.floats(0.0, 0.2),
    workers=st.integers(1, 4),
)
def test_a_turn_never_lasts_beyond_the_cap(delay, gap, count, spread, workers):
    policy = independent(Adaptive(delay), gap, workers)

    due = policy.due(one_idle(count, 100.0 - spread, 100.0), now=100.0)

    assert due <= max(100.0, 100.0 - spread + delay)


@pytest.mark.parametrize(
    ("gap", "workers", "count", "at"),
    [(0.009, 1, 100_000, 100.0), (0.004, 4, 1, 100.050)],
    ids=["at one moment", "after a pause"],
)
def test_arrivals_all_at_one_moment_or_after_a_pause_are_not_held(gap, workers, count, at):
    policy = independent(Adaptive(10.0), gap, workers)
    policy.arrived(count, at)

    assert policy.due(one_idle(1, at, at), now=at) == at


def test_hold_ends_with_its_turn_or_its_gain():
    """After a turn and a quarter, or if n * (g + b) is twice the fixed cost: 2 * 40 / (2 + 1) = 26.7."""
    policy = independent(Adaptive(10.0), 0.008, 1)  # n* = 40 / 7, a turn of 46 ms

    assert policy.due(one_idle(1, 99.944, 100.0), now=100.0) > 100.0
    assert policy.due(one_idle(1, 99.942, 100.0), now=100.0) <= 100.0

    policy = independent(Adaptive(10.0), 0.002, 1)  # n* = 40

    assert policy.due(one_idle(26, 100.0, 100.0), now=100.0) > 100.0
    assert policy.due(one_idle(27, 100.0, 100.0), now=100.0) == 100.0


@given(
    delay=st.floats(0.0, 1.0),
    a=st.floats(0.0, 5.0),
    b=st.floats(0.0, 1.0),
    gap=st.floats(1e-6, 2.0),
    count=st.integers(1, 64),
    spread=st.floats(0.0, 2.0),
    age=st.floats(0.0, 3.0),
    workers=st.integers(1, 3),
)
def test_adaptive_never_holds_beyond_its_cap(delay, a, b, gap, count, spread, age, workers):
    policy = learned(Adaptive(delay), a, b, gap)
    oldest, now = 100.0 - spread, 100.0 + age

    due = policy.due(Waiting(count, oldest, 100.0, workers), now)

    assert due <= max(now, oldest + delay)


def test_adaptive_counts_its_cap_from_the_oldest():
    policy = learned(Adaptive(0.004), 0.050, 0.001, 0.001)
    assert policy.due(one_idle(2, 99.998, 100.0), now=100.0) == pytest.approx(100.002)


@dataclass(order=True)
class Event:
    at: float
    order: int
    what: str
    batch: Batch | None = None


class ClosedLoop:
    """``clients`` send one instance, wait for its answer, think, and send again; one worker costs a + b*n."""

    def __init__(self, policy, clients, a, b, think=0.0, spread=0.0):
        self.queue = BatchQueue(32, policy, 1000, 1 << 20)
        self.cost = a, b
        self.clients = clients
        self.think = think
        self.spread = spread
        self.now = 0.0
        self.idle = True
        self.sizes = []
        self.holds = []
        self.waits = []
        self.latencies = []
        self.events = []
        self.order = itertools.count()
        self.random = random.Random(7)
        for _ in range(clients):
            self.come_later()

    def come_later(self):
        self.add(self.now + self.think + self.random.random() * self.spread, "arrive")

    def add(self, at, what, batch=None):
        heapq.heappush(self.events, Event(at, next(self.order), what, batch))

    def run(self, seconds):
        while self.events and self.events[0].at <= seconds:
            event = heapq.heappop(self.events)
            self.now = event.at
            if event.what == "arrive":
                self.queue.put(Request("r", [Row("r", 0)], [b""], self.now))
            elif event.what == "answer":
                self.idle = True
                self.queue.policy.finished(event.batch.size, self.time_of(event.batch), self.now)
                self.latencies += [self.now - parcel.request.arrived for parcel in event.batch.parcels]
                if self.clients:
                    for _ in event.batch.parcels:
                        self.come_later()
            self.pump()
        return self

    def time_of(self, batch):
        a, b = self.cost
        return a + b * batch.size

    def pump(self):
        if not self.idle or not self.queue.requests:
            return
        batch = self.queue.take(self.now, 1)
        if batch is None:
            self.add(self.queue.due(self.now, 1), "look")
            return
        self.idle = False
        self.sizes.append(batch.size)
        self.waits += [self.now - parcel.request.arrived for parcel in batch.parcels]
        self.add(self.now + self.time_of(batch), "answer", batch)


@given(a=st.floats(0.0, 0.5), b=st.floats(1e-3, 0.1), think=st.floats(0.0, 0.2), skilled=st.booleans())
def test_lone_sequential_client_is_never_held(a, b, think, skilled):
    """A client that waits for each answer before it sends again pays no delay, whatever the cost (F26)."""
    policy = Adaptive(0.1)
    if skilled:
        for n in range(1, 33):
            policy.finished(n, a + b * n, -9.0)
        policy.arrived(32, -8.0)

    loop = ClosedLoop(policy, 1, a, b, think).run(20 * (a + b + think))

    assert len(loop.waits) >= 15
    assert max(loop.waits) == 0.0


def test_lone_client_after_a_burst_is_served_at_once():
    policy = learned(Adaptive(1.0), 0.050, 0.001, 0.002, until=0.0)

    waits = ClosedLoop(policy, 1, 0.050, 0.001).run(5.0).waits

    assert waits[0] <= 0.010
    assert not any(waits[1:])


@pytest.mark.parametrize(
    ("clients", "a", "b", "think", "spread"),
    [
        (8, 0.050, 0.001, 0.0, 0.0),
        (8, 0.050, 0.001, 0.0005, 0.002),
        (5, 0.010, 0.002, 0.001, 0.001),
        (2, 0.05, 0.001, 0.0, 0.001),
    ],
)
def test_adaptive_keeps_clients_in_step_together(clients, a, b, think, spread):
    """Clients that ask again as soon as they are answered share batches; greedy splits them for ever."""
    possible = clients / (a + b * clients + think + spread)
    rates = {
        policy.name: len(ClosedLoop(policy, clients, a, b, think, spread).run(20.0).latencies) / 20.0
        for policy in (Greedy(), Adaptive(0.1))
    }

    assert rates["adaptive"] > 0.9 * possible
    assert rates["greedy"] < 0.8 * possible


def test_adaptive_costs_little_where_it_guesses_wrong():
    rates = {
        policy.name: len(ClosedLoop(policy, 8, 0.050, 0.001, 0.02, 0.02).run(20.0).latencies)
        for policy in (Greedy(), Adaptive(0.1))
    }

    assert rates["adaptive"] > 0.9 * rates["greedy"]


def test_adaptive_spares_the_worker_under_random_arrivals():
    """Poisson arrivals at a load of 0.9 (one by one): the same requests take less of the worker's time."""
    busy = {}
    for policy in (Greedy(), Adaptive(0.1)):
        loop = ClosedLoop(policy, 0, 0.050, 0.001)
        arrivals, at = random.Random(3), 0.0
        while at < 60.0:
            at += arrivals.expovariate(0.9 / 0.051)
            loop.add(at, "arrive")
        loop.run(60.0)
        busy[policy.name] = sum(0.050 + 0.001 * size for size in loop.sizes)

    assert busy["adaptive"] < 0.97 * busy["greedy"]


def test_window_of_half_a_second_gives_the_documented_figures():
    """Five closed-loop clients at 32 / 500 ms: batches of 5, one per 0.5 s and the model's time."""
    loop = ClosedLoop(Window(0.5), 5, 0.014, 0.001).run(10.5361)

    assert set(loop.sizes) == {5}
    assert len(loop.sizes) == pytest.approx(10.5361 / (0.5 + 0.019), abs=1.5)
    assert max(loop.waits) == pytest.approx(0.5)


def test_expectation_follows_the_size_and_not_single_long_batches():
    """After batches of several sizes each has its own; one that takes a hundred times as long adds little."""
    expectation = Expectation()
    assert expectation.seconds(8) == 0.0
    for count in [1, 8, 4, 32] * 30:
        expectation.add(count, 0.005 + 0.00025 * count)
    assert expectation.seconds(16) == pytest.approx(0.009)
    expectation.add(16, 0.9)
    assert expectation.seconds(16) == pytest.approx(0.009, rel=0.05)
    for _ in range(300):
        expectation.add(16, 0.09)

    assert expectation.seconds(16) == pytest.approx(0.09, rel=0.05)
