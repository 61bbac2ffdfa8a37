import gc
import logging
import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
from tests.waiting import until

from modelserver.engine.batching.request import Request
from modelserver.engine.pools.devices import DeviceList, DeviceRing
from modelserver.engine.pools.gate import BASE_NEED, StartGate
from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.spec import PoolLimits, Ports, Ranks, WorkerState
from modelserver.engine.telemetry.gpus import GpuMemory
from modelserver.engine.wire.messages import Row
from modelserver.ext.autoscaling.autoscaler import RESERVE, SHORTAGE, Autoscaler, sample_of
from modelserver.ext.autoscaling.scaling import ScalingRule

RULE = ScalingRule(target_wait=0.1, up_pause=2.0, down_pause=4.0)
LIMITS = PoolLimits(batch_size=1, policy="greedy", max_delay=0.0, max_requests=100, max_bytes=10_000)
PLENTY = 100 << 30


class Machine:
    """Memory that the test gives and takes."""

    def __init__(self):
        self.available = float(PLENTY)
        self.gpus: dict[int, GpuMemory] = {}
        self.resident = 0


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def autoscaler(machine):
    """Its timer does nothing: tests look by a clock of their own, however long they take."""
    made = Autoscaler(machine.gpus.get, lambda _: machine.resident)
    made._tick = lambda: None
    return made


@pytest.fixture
async def make(stage, spec, times, counts, machine, autoscaler):
    """Makes followed pools of one loaded worker and at most ``most``."""
    made = []

    async def pool(most=4, *, fewest=1, devices=None, rule=RULE, special=None, **limits):
        ids = iter(range(9000, 9100))
        gate = StartGate(available=lambda: machine.available)
        own = Pool(
            "m",
            "m_1.0",
            replace(spec, gate=gate, **(special or {})),
            times,
            replace(LIMITS, **limits),
            next_id=ids.__next__,
            devices=devices or DeviceRing(0),
            metrics=counts,
        )
        made.append(own)
        autoscaler.follow(own, rule)
        own.scale(fewest, most)
        await load(stage, fewest)
        return own

    yield pool
    for each in made:
        await each.close(0.01)


async def load(stage, count):
    """Loads all that were started, up to this many."""
    await stage.enter(count)
    for process in stage.processes[:count]:
        if any(type(message).__name__ == "Load" for message, _ in process.received):
            process.received = [m for m in process.received if type(m[0]).__name__ != "Load"]
            process.load()
    await stage.settle()


def submit(pool, count, arrived=0.0):
    requests = [Request("id", [Row("id", 1)], [b"a"], arrived) for _ in range(count)]
    for request in requests:
        pool.submit(request)
    return requests


def look(autoscaler, start, seconds):
    """Looks again and again for so long; returns the end."""
    now = start
    while now < start + seconds:
        autoscaler.look(now)
        now += RULE.every
    return now


async def test_timer_stops_without_pools(make, autoscaler, counts):
    pool = await make(rule=None)
    assert autoscaler.idle
    autoscaler.follow(pool, RULE)
    assert not autoscaler.idle
    autoscaler.follow(pool, None)

    assert autoscaler.idle
    assert pool.crew.autoscaling is None

    pool = await make()
    await pool.close(0.01)
    autoscaler.look(1.0)

    assert autoscaler.idle
    assert counts("set_wish")[-1] == (None,)


async def test_forgotten_pools_are_left(spec, times, counts, autoscaler):
    """A pool that was made and never used, as of a registration that failed, is not kept alive."""
    pool = Pool("m", "m_1.0", spec, times, LIMITS, next_id=int, devices=DeviceRing(0), metrics=counts)
    autoscaler.follow(pool, RULE)
    del pool
    gc.collect()
    Autoscaler._tick(autoscaler)

    assert autoscaler.idle


async def test_the_timer_makes_decisions(make, machine):
    pool = await make(rule=None)
    autoscaler = Autoscaler(machine.gpus.get)
    autoscaler.follow(pool, ScalingRule(up_pause=0.1))

    await until(lambda: pool.crew.autoscaling.decision)
    assert not autoscaler.idle


async def test_pool_scales_up_and_down(make, stage, autoscaler, counts, caplog):
    caplog.set_level(logging.INFO, "modelserver.workers")
    pool = await make()
    requests = submit(pool, 6)
    now = look(autoscaler, 0.0, 3.0)
    assert len(pool.workers) == 2
    assert counts("count") == [("scalings_total", "up", "queue_wait")]
    assert "Autoscaling m_1.0: 1 -> 2 workers (queue_wait): waited" in caplog.text
    assert "target 100 ms, busy 1.0 of 1 workers" in caplog.text

    await load(stage, 2)
    for _ in range(6):
        for process in stage.processes:
            while process.batches:
                process.answer()
        await stage.settle()
    assert all(request.done and request.error is None for request in requests)
    look(autoscaler, now, 12.0)

    assert len(pool.workers) == 1
    assert counts("count") == [("scalings_total", "up", "queue_wait"), ("scalings_total", "down", "idle")]
    assert counts("set_wish")[-1] == (1,)
    assert (pool.crew.autoscaling.event.before, pool.crew.autoscaling.event.after) == (2, 1)


async def test_bounds_set_by_hand_are_obeyed(make, stage, autoscaler, counts):
    pool = await make()
    pool.scale(2, 2)
    submit(pool, 9)
    look(autoscaler, 0.0, 20.0)
    assert len(pool.workers) == 2
    assert pool.crew.autoscaling.decision.reason == "equal_bounds"
    pool.scale(0, 4)
    look(autoscaler, 20.0, 20.0)

    assert pool.workers == []
    assert counts("count") == []


async def test_changed_rule_takes_effect_at_once(make, autoscaler):
    pool = await make(rule=replace(RULE, up_pause=100.0))
    submit(pool, 6)
    now = look(autoscaler, 0.0, 10.0)
    assert len(pool.workers) == 1
    autoscaler.follow(pool, RULE)
    autoscaler.look(now)

    assert len(pool.workers) == 2


async def test_one_that_breaks(make, autoscaler, counts, caplog):
    """What goes wrong with one pool is logged, and the others are looked at."""
    broken, sound = await make(), await make()
    broken.queue.oldest = lambda: 1 / 0
    autoscaler.look(1.0)

    assert sound.crew.autoscaling.decision is not None
    assert "Autoscaling m_1.0 failed" in caplog.text


async def test_failed_starts_are_not_repeated_at_once(make, stage, autoscaler, counts, caplog):
    """A worker that cannot load goes again, and for a while none is tried; the one that serves is kept."""
    caplog.set_level(logging.INFO, "modelserver.workers")
    pool = await make()
    submit(pool, 6)
    now = look(autoscaler, 0.0, 3.0)
    (await stage.enter(2)).fail_to_load("no room", permanent=True)
    await stage.settle()
    now = look(autoscaler, now, 20.0)

    assert len(pool.workers) == 1
    assert pool.workers[0].state is WorkerState.READY
    assert [each[1:] for each in counts("count")] == [("up", "queue_wait"), ("down", "start_failed")]
    assert (pool.crew.autoscaling.decision.reason, pool.crew.autoscaling.decision.wish) == ("start_failed", 2)
    assert "2 -> 1 workers (start_failed): no room" in caplog.text
    assert caplog.text.count("keeping 1 workers, 2 are wanted (start_failed)") == 1
    look(autoscaler, now, 12.0)
    assert len(pool.workers) == 2


@pytest.mark.parametrize(
    ("available", "resident", "room", "workers"),
    [
        (RESERVE + BASE_NEED, 0, 1.0, 2),
        (RESERVE + BASE_NEED - 1, 0, 1.0, 1),
        (RESERVE + BASE_NEED, BASE_NEED + 1, 1.0, 1),
        (RESERVE + 2 * BASE_NEED, BASE_NEED + 1, 1.0, 2),
        (PLENTY, 0, 0.9, 1),
    ],
    ids=["enough", "short", "large workers", "enough for large ones", "small budget"],
)
async def test_worker_is_added_where_memory_suffices(
    make, autoscaler, machine, available, resident, room, workers
):
    pool = await make()
    machine.available, machine.resident = available, resident
    pool.crew.spec = replace(pool.crew.spec, room=lambda: room)
    submit(pool, 6)
    look(autoscaler, 0.0, 3.0)

    assert len(pool.workers) == workers


async def test_memory_of_loading_workers_is_reserved(make, stage, autoscaler, machine):
    """What loading workers of other pools may take still counts as taken."""
    pool, other = await make(), await make(rule=None)
    other.crew.spec = replace(other.crew.spec, gate=pool.crew.spec.gate)
    machine.available = RESERVE + BASE_NEED
    other.scale(2, 2)
    await stage.settle()
    submit(pool, 6)
    look(autoscaler, 0.0, 3.0)

    assert len(pool.workers) == 1
    assert pool.crew.autoscaling.decision.reason == "memory"


async def test_memory_is_read_seldom(make, autoscaler, machine):
    pool = await make()
    available = Mock(return_value=PLENTY)
    pool.crew.spec = replace(pool.crew.spec, gate=StartGate(available=available))
    look(autoscaler, 0.0, 20.0)

    assert 5 <= available.call_count <= 11


@pytest.mark.parametrize(("available", "room"), [(SHORTAGE - 1, 1.0), (PLENTY, -0.1)])
async def test_shortage_of_memory_removes_workers(make, stage, autoscaler, machine, available, room):
    """That of the machine, or of the budget of models that are loaded on demand."""
    pool = await make(fewest=3)
    pool.scale(1, 4)
    machine.available = available
    pool.crew.spec = replace(pool.crew.spec, room=lambda: room)
    look(autoscaler, 0.0, 10.0)

    assert len(pool.workers) == 1
    assert pool.crew.autoscaling.event.reason == "memory"


@pytest.mark.parametrize(
    ("gpus", "workers"),
    [
        ({0: GpuMemory(PLENTY, 10 << 30), 1: GpuMemory(PLENTY, 0)}, 2),
        ({0: GpuMemory(5 << 30, 10 << 30), 1: GpuMemory(PLENTY, 0)}, 1),
        (
            {
                0: GpuMemory(5 << 30, 10 << 30, {1000: 4 << 30}),
                1: GpuMemory(PLENTY, 4 << 30, {1000: 4 << 30}),
            },
            2,
        ),
        ({}, 2),
    ],
    ids=["enough", "short", "known by process", "unreadable"],
)
async def test_gpu_must_have_memory_for_the_next_worker(make, autoscaler, machine, gpus, workers):
    """The next worker's GPU must have as much free as one of its kind occupies."""
    pool = await make(devices=DeviceRing(2))
    assert (pool.workers[0].gpu_id, pool.crew.devices.peek()) == (1, 0)
    machine.gpus.update(gpus)
    if gpus and not gpus[1].used:
        machine.gpus[1] = gpus[1]._replace(used=10 << 30)
    submit(pool, 6)
    look(autoscaler, 0.0, 3.0)

    assert len(pool.workers) == workers


@pytest.mark.parametrize(("devices", "order"), [(None, ["look"]), (DeviceRing(2), ["renew", "look"])])
async def test_gpus_are_read_before_pools_are_sampled(make, machine, devices, order, monkeypatch):
    seen = []

    async def renew():
        seen.append("renew")

    pool = await make(devices=devices, rule=None)
    autoscaler = Autoscaler(machine.gpus.get, lambda _: machine.resident, renew)
    monkeypatch.setattr(autoscaler, "look", lambda _: seen.append("look"))
    autoscaler.follow(pool, RULE)
    autoscaler._tick()
    await until(lambda: "look" in seen)

    assert seen[: len(order)] == order
    assert not autoscaler.idle
    autoscaler.follow(pool, None)


async def test_each_gpu_of_a_group_must_have_memory(make, autoscaler, machine):
    ranks = Ranks(0, broadcast=True, groups={0: (0, 1), 2: (2, 3)}, threads=0, ports=Ports(29500))
    pool = await make(devices=DeviceList([0, 2]), rule=None)
    pool.crew.spec = replace(pool.crew.spec, ranks=ranks)
    autoscaler.follow(pool, RULE)
    machine.gpus.update({gpu: GpuMemory(20 << 30, 10 << 30) for gpu in range(4)})
    machine.gpus[3] = GpuMemory(9 << 30, 0)
    submit(pool, 6)
    look(autoscaler, 0.0, 3.0)

    assert len(pool.workers) == 1
    assert pool.crew.autoscaling.decision.reason == "memory"


async def test_devices_stay_evenly_taken(make, stage):
    pool = await make(fewest=3, devices=DeviceRing(3))
    before = [worker.gpu_id for worker in pool.workers]
    for _ in range(4):
        pool.crew.min_workers = 2
        pool.crew.resize(2)
        pool.crew.resize(3)

    assert [worker.gpu_id for worker in pool.workers] == before


async def test_sample_takes_the_oldest_waiting_request(make, stage):
    pool = await make(fewest=2)
    assert sample_of(pool, 5.0) == replace(sample_of(pool, 5.0), wait=0.0, busy=0.0, ready=2)
    submit(pool, 2, arrived=1.0)
    assert (sample_of(pool, 5.0).wait, sample_of(pool, 5.0).busy) == (0.0, 2.0)
    submit(pool, 1, arrived=2.0)
    assert sample_of(pool, 5.0).wait == 3.0
    stage.processes[0].kill()

    assert (sample_of(pool, 5.0).ready, sample_of(pool, 5.0).loading) in {(2, 0), (1, 1)}


async def test_waiting_for_the_batch_does_not_count(make):
    pool = await make(batch_size=4, policy="window", max_delay=2.0)
    submit(pool, 3, arrived=1.0)
    assert sample_of(pool, 2.0).wait == 0.0
    submit(pool, 1, arrived=1.0)
    submit(pool, 1, arrived=1.0)
    assert sample_of(pool, 2.0).wait == 0.0

    assert sample_of(pool, 4.5).wait == 1.5


async def test_pool_with_tickets_counts_busy_workers(make):
    pool = await make(tickets=True)
    assert sample_of(pool, 1.0).wait == 0.0
    submit(pool, 1)

    assert sample_of(pool, 1.0).wait == math.inf


async def test_concurrent_worker_counts_as_busy_in_part(make):
    pool = await make(special={"concurrency": 4})
    submit(pool, 3)
    assert (sample_of(pool, 9.0).busy, sample_of(pool, 9.0).wait) == (0.75, 0.0)
    submit(pool, 2, arrived=1.0)

    assert (sample_of(pool, 9.0).busy, sample_of(pool, 9.0).wait) == (1.0, 8.0)
