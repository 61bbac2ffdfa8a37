import asyncio
import weakref

import pytest
from tests.cycles import no_cycles
from tests.engine.pools.pools import contents, now, request, submit
from tests.waiting import until

from modelserver.engine.pools.pool import FAILING
from modelserver.errors import ServiceUnavailable, WorkerDied

pytestmark = pytest.mark.usefixtures("simulated_time")


async def test_draining_pool_serves_what_it_has_and_refuses_more(pool, stage):
    """A pool that drains takes nothing in, sends what waits, and is done when all is answered (F49)."""
    running, waiting = request(b"a", b"b"), request(b"c")
    submit(pool, running, waiting)
    draining = asyncio.create_task(pool.drain(5))
    await stage.enter()
    with pytest.raises(ServiceUnavailable):
        pool.submit(request(b"d"))
    stage.processes[0].answer()
    await stage.enter()
    assert not draining.done()
    stage.processes[0].answer()

    assert await draining is True
    assert contents(waiting) == [b"c"]


async def test_drain_waits_for_retired_workers(pool, stage):
    process = await stage.enter()
    running = request(b"a")
    pool.submit(running)
    await stage.settle()
    pool.scale(0, 0)
    await stage.settle()
    draining = asyncio.get_running_loop().create_task(pool.drain(5.0))
    await stage.settle()
    assert not draining.done()

    process.answer()
    assert await draining
    assert running.error is None


@pytest.mark.parametrize(("bodies", "grace"), [((b"a", b"b"), 0.01), ((), 0.0)], ids=["busy", "idle"])
async def test_drain_gives_up_after_its_grace(pool, bodies, grace):
    if bodies:
        pool.submit(request(*bodies))

    assert await pool.drain(grace) is not bool(bodies)


async def test_closed_pool_has_neither_requests_nor_workers(make, stage):
    made = make()
    process = await stage.enter()
    process.load()
    running, waiting = request(b"a", b"b"), request(b"c")
    submit(made, running, waiting)
    draining = asyncio.create_task(made.drain(60.0))
    await stage.settle()
    await made.close(0.01)

    assert await draining
    assert isinstance(waiting.error, ServiceUnavailable)
    assert isinstance(running.error, WorkerDied)
    assert made.scale(1, 1) == []
    assert process.killed
    assert made.workers == []


async def test_closed_pool_leaves_no_reference_cycles(make, stage):
    """Nor does one with a worker that retires, one that is about to replace another, and a late request."""
    made = make(workers=2)
    for number in (1, 2):
        (await stage.enter(number)).load()
    with no_cycles():
        submit(made, request(b"a", deadline=now() + 9), request(b"b", deadline=now() + 1))
        await asyncio.sleep(2)
        made.scale(1, 1)
        made.crew.recycle(made.workers[0], "why", "a test")
        await stage.enter(3)
        pool = weakref.ref(made)
        await asyncio.gather(made.close(0.01), made.close(0.01))
        await made.close(0.01)
        del made
        make.made.clear()
        stage.processes.clear()
        await asyncio.sleep(10)

    assert pool() is None


@pytest.mark.parametrize("error", [None, OSError])
async def test_worker_that_is_stopped_in_a_pause_leaves_no_reference_cycles(make, stage, error):
    """Nor do the loads that have failed before, or the starts of its process."""
    with no_cycles():
        stage.error = error
        made = make()
        for number in range(0 if error else 5):
            (await stage.enter(number + 1)).fail_to_load("no")
        failures = made.workers[0].failures
        await until(lambda: failures.loads == 5)
        await made.close(0.01)
        del made
        make.made.clear()
        stage.processes.clear()
        await asyncio.sleep(10)


async def test_statistics_show_the_state_of_the_pool(make, stage):
    made = make(workers=2)
    made.submit(request(b"a", b"b"))
    statistics = made.statistics()

    assert (statistics.pending, statistics.instances, statistics.capacity) == (1, 2, 10)
    assert (statistics.ready, statistics.loading, statistics.failed) == (0, 2, 0)
    assert not made.ready


async def test_a_pool_that_is_replaced_serves_what_waits(make, stage):
    old, new = make(), make()
    (await stage.enter()).load()
    (await stage.enter(2)).load()
    before, after = stage.processes
    running, waiting, late = request(b"a", b"b"), request(b"c"), request(b"d")
    submit(old, running, waiting)
    await stage.enter()
    retiring = asyncio.create_task(old.retire(new, 5.0))
    await until(lambda: old.admission.successor is new)
    old.submit(late)
    before.answer()
    await until(lambda: before.batches)
    before.answer()
    await until(lambda: after.batches)
    after.answer()
    await retiring

    assert [contents(each) for each in (running, waiting, late)] == [[b"a", b"b"], [b"c"], [b"d"]]
    assert old.workers == []


async def test_a_version_is_failing_after_batches_that_all_failed(pool, stage):
    """One good row ends the run; refusals of the handler, such as 400, are no failures."""
    process = stage.processes[0]

    async def ask(status):
        pool.submit(request(b"a"))
        await stage.settle()
        process.answer(status=status)

    for status in (503, 400, *[503] * (FAILING - 1)):
        await ask(status)
    assert not pool.failing

    await ask(507)
    assert pool.failing

    await ask(200)
    assert not pool.failing


async def test_lost_batches_count_as_failures_of_the_version(make, stage):
    made = make(batch_size=1)
    for number in range(1, FAILING + 1):
        (process := (await stage.enter(number), stage.processes[-1])[1]).load()
        made.submit(request(b"a"))
        await stage.settle()
        process.exit()
        await stage.settle()

    assert made.failing
