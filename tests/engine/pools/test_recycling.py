"""Workers that have grown or served enough are replaced, and no request notices (F46)."""

import asyncio
from dataclasses import replace

import pytest
from tests.engine.pools.pools import contents, request

from modelserver.engine.pools import recycling
from modelserver.engine.pools.crew import LOOKS
from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.spec import PoolLimits, WorkerState

pytestmark = pytest.mark.usefixtures("simulated_time")

LIMITS = PoolLimits(batch_size=1, policy="greedy", max_delay=0.0, max_requests=10, max_bytes=10_000)


class Sizes:
    """What processes occupy, in bytes: 100 unless told otherwise."""

    def __init__(self):
        self.of = {}

    def __call__(self, pid):
        return self.of.get(pid, 100)


@pytest.fixture
def sizes(monkeypatch):
    made = Sizes()
    monkeypatch.setattr(recycling, "worker_memory", made)
    return made


@pytest.fixture
def make(begin, sizes, spec, times, counts):
    async def pool(workers=1, **limits):
        ids = iter(range(9000, 9100))
        bounds, ring = replace(LIMITS, **limits), DeviceRing(0)
        clock = asyncio.get_running_loop().time
        one = Pool(
            "m", "m_1", spec, times, bounds, next_id=ids.__next__, devices=ring, metrics=counts, clock=clock
        )
        await begin(one, workers)
        return one

    return pool


async def ask(pool, stage, process):
    sent = request(b"x")
    pool.submit(sent)
    await stage.settle()
    stage.processes[process].answer()
    assert contents(sent) == [b"x"]


async def test_worker_that_has_served_enough_is_replaced(make, stage, counts):
    pool = await make(max_worker_requests=2)
    for _ in range(3):
        await ask(pool, stage, 0)
    fresh = await stage.enter(2)
    assert [worker.pid for worker in pool.workers] == [1000]
    running = request(b"late")
    pool.submit(running)
    await stage.settle()
    fresh.load()
    await stage.settle()
    assert [worker.pid for worker in pool.workers] == [1001]
    await ask(pool, stage, 1)
    stage.processes[0].answer()
    await stage.settle()

    assert contents(running) == [b"late"]
    assert not stage.processes[0].killed
    assert counts("count") == [("workers_recycled_total", "requests")]
    assert counts("gone") == [("W-9000-m_1",)]
    assert len(stage.processes) == 2


async def test_worker_that_has_grown_is_replaced(make, stage, sizes, counts):
    pool = await make(2, options={"max_worker_memory": 150})
    sizes.of = {1000: 151, 1001: 200}
    for number in (3, 4):
        fresh = await stage.enter(number)
        assert len(stage.processes) == number
        fresh.load()
        await stage.settle()

    assert [worker.pid for worker in pool.workers] == [1002, 1003]
    assert counts("count") == [("workers_recycled_total", "memory")] * 2


async def test_one_that_is_too_large_from_the_start(make, stage, sizes, caplog):
    """It is left alone: a fresh one would be no smaller. The log says so."""
    sizes.of = {1000: 151}
    pool = await make(options={"max_worker_memory": 150})
    await asyncio.sleep(10 * LOOKS)

    assert len(stage.processes) == 1
    assert pool.ready
    assert "151 bytes right after loading" in caplog.text


async def test_a_fresh_one_that_cannot_load(make, stage, counts, caplog):
    caplog.set_level("INFO", "modelserver.workers")
    pool = await make(max_worker_requests=1)
    await ask(pool, stage, 0)
    (await stage.enter(2)).fail_to_load("no memory")
    await stage.settle()
    await ask(pool, stage, 0)
    await stage.settle()

    assert [worker.pid for worker in pool.workers] == [1000]
    assert caplog.text.count("W-9000-m_1 is recycled: it has answered 1 requests") == 1
    assert "W-9000-m_1 is kept, a new one could not be loaded: no memory" in caplog.text
    assert counts("count") == []


async def test_scaling_wins(make, stage, counts):
    pool = await make(max_worker_requests=1)
    await ask(pool, stage, 0)
    fresh = await stage.enter(2)
    pool.scale(0, 0)
    fresh.load()
    await stage.settle()

    assert pool.workers == []
    assert counts("count") == []
    assert any(type(message).__name__ == "Stop" for message, _ in fresh.received)


async def test_limits_may_change(make, stage, sizes, times):
    pool = await make()
    sizes.of = {1000: 1000}
    pool.reconfigure(replace(LIMITS, options={"max_worker_memory": 500}), times, batch_size=1, frame_limit=99)
    (await stage.enter(2)).load()
    await stage.settle()
    sizes.of = {1001: 1000}
    pool.reconfigure(LIMITS, times, batch_size=1, frame_limit=99)
    await asyncio.sleep(10 * LOOKS)

    assert len(stage.processes) == 2
    assert [worker.state for worker in pool.workers] == [WorkerState.READY]


async def test_closing_ends_one_that_is_coming(make, stage):
    pool = await make(max_worker_requests=1)
    await ask(pool, stage, 0)
    fresh = await stage.enter(2)
    await pool.close(0.01)

    assert fresh.killed


async def test_sizes_are_reported_from_other_machines(make, stage, counts, caplog):
    """It counts as too large by the first report after its load, and as grown by later reports."""
    stage.away = 0.001
    pool = await make(options={"max_worker_memory": 150})
    node = stage.processes[0].node
    node.resident, node.reports = 10, 1
    await asyncio.sleep(10 * LOOKS)
    node.resident, node.reports = 200, 2
    await asyncio.sleep(10 * LOOKS)
    assert "has 200 bytes right after loading" in caplog.text
    assert len(stage.processes) == 1
    pool.reconfigure(
        replace(pool.limits, options={"max_worker_memory": 180}), pool.crew.times, batch_size=1, frame_limit=1
    )
    fresh = await stage.enter(2)
    fresh.load()
    await stage.settle()
    assert counts("count") == [("workers_recycled_total", "memory")]
