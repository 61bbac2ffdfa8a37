import asyncio
import math
from dataclasses import replace

import pytest
from tests.engine.pools.pools import request, submit

from modelserver.engine.pools.crew import wait_loaded
from modelserver.engine.pools.gate import StartGate
from modelserver.engine.pools.spec import WorkerState
from modelserver.errors import ServiceUnavailable, StartFailed, WorkerDied

pytestmark = pytest.mark.usefixtures("simulated_time")


@pytest.mark.parametrize(("workers", "threads"), [(1, 8), (2, 4), (3, 2), (100, 1)])
async def test_cores_are_shared_among_the_workers(make, stage, spec, workers, threads):
    pool = make(0)
    pool.crew.spec = replace(spec, threads=8, gate=StartGate(limit=workers, available=lambda: math.inf))
    pool.scale(workers, workers)
    await stage.enter(workers)

    assert {started.threads for started in stage.specs} == {threads}


async def test_newest_workers_are_retired_first(make, stage):
    """Workers are added; the newest are retired first and finish what they run (reference 18.6)."""
    made = make(workers=1)
    made.scale(3, 3)
    for number in (1, 2, 3):
        (await stage.enter(number)).load()
    oldest, *others = made.workers
    submit(made, *[request(b"a", b"b") for _ in range(3)])
    assert [len(process.batches) for process in stage.processes] == [1, 1, 1]
    made.scale(1, 1)
    await stage.enter()

    assert made.workers == [oldest]
    assert {worker.state for worker in others} == {WorkerState.UNLOADING}
    assert not any(process.killed for process in stage.processes)
    for process in stage.processes:
        process.answer()
    await stage.enter()
    assert made.statistics().ready == 1


@pytest.mark.parametrize(
    ("bounds", "left"), [((1, 2), 2), ((0, 0), 0), ((0, 5), 0), ((3, 3), 3), ((1, 5), 2), ((2, 2), 2)]
)
async def test_scaling_keeps_between_the_bounds(make, bounds, left):
    """Between the bounds nothing happens; a minimum of 0 means none at all (reference 5.3)."""
    made = make(workers=2)
    made.scale(*bounds)

    assert len(made.workers) == left


async def test_scale_to_nothing_refuses_what_waits(make):
    """Scaled to 0, a pool refuses what waits: nobody will come for it (F50)."""
    made = make()
    waiting = request(b"a")
    made.submit(waiting)
    made.scale(0, 0)

    assert isinstance(waiting.error, ServiceUnavailable)


async def test_scaling_replaces_failed_workers(make, stage):
    made = make()
    (await stage.enter()).fail_to_load("no", permanent=True)
    await stage.enter()
    started = made.scale(1, 1)
    (await stage.enter(2)).load()
    await wait_loaded(started)

    assert [worker.id for worker in made.workers] == [9001]
    assert made.healthy
    assert made.failure == ""


async def test_waiting_for_workers_ends_at_the_first_failure(make, stage):
    made = make(workers=2)
    waiting = asyncio.create_task(wait_loaded(list(made.workers)))
    (await stage.enter(1)).load()
    await stage.enter(2)
    assert not waiting.done()
    stage.processes[1].fail_to_load("cause")

    with pytest.raises(StartFailed, match="cause"):
        await waiting


async def test_close_does_not_wait_longer_for_retired_workers(pool, stage):
    process = await stage.enter()
    running = request(b"a")
    pool.submit(running)
    await stage.settle()
    pool.scale(0, 0)
    await stage.settle()
    await asyncio.wait_for(pool.close(0.01), 2.0)

    assert process.killed
    assert isinstance(running.error, WorkerDied)


async def test_closing_pool_starts_no_worker(pool, stage):
    """While its workers finish what they run, a load for a request would start one that nobody ends."""
    process = await stage.enter()
    pool.submit(request(b"a"))
    await stage.settle()
    closing = asyncio.create_task(pool.close(5.0))
    await stage.settle()

    assert pool.crew.resize(1) == []
    process.answer()
    await closing
    assert pool.crew.all() == []
    assert len(stage.processes) == 1
