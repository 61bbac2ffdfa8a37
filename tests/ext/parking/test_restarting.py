"""Workers are restarted one after the other, and no request notices."""

import asyncio
from types import SimpleNamespace

import pytest
from tests.engine.pools.conftest import Counts, Stage, begin, counts, make, spec, stage, times  # noqa: F401 - fixtures
from tests.engine.pools.pools import contents, request

from modelserver.errors import Conflict, ModelServerError
from modelserver.ext.parking.routes import restart


@pytest.fixture
async def model(make, stage):  # noqa: F811
    """A model with two workers, whose processes are the first two."""
    pool = make(2)
    for number in (1, 2):
        (await stage.enter(number)).load()
    await stage.settle()
    return SimpleNamespace(name="m", version="1.0", pool=pool)


async def test_each_worker_is_replaced_by_one_that_has_loaded(
    model,
    stage,  # noqa: F811
    counts,  # noqa: F811
):
    """What a worker has begun, it ends."""
    before = list(model.pool.workers)
    sent = request(b"x")
    model.pool.submit(sent)
    restarting = asyncio.create_task(restart(model))
    (await stage.enter(3)).load()
    fourth = await stage.enter(4)
    assert model.pool.workers[1] is before[1]
    fourth.load()
    await stage.settle()
    stage.processes[0].answer()
    await stage.settle()

    assert await restarting == 2
    assert set(model.pool.workers).isdisjoint(before)
    assert contents(sent) == [b"x"]
    assert counts("count") == [("workers_recycled_total", "restart")] * 2


async def test_one_that_cannot_load_leaves_the_others_alone(
    model,
    stage,  # noqa: F811
):
    """The reason is the answer; half a minute need not pass until the next attempt."""
    before = list(model.pool.workers)
    restarting = asyncio.create_task(restart(model))
    (await stage.enter(3)).fail_to_load("no memory")
    with pytest.raises(ModelServerError, match="no memory"):
        await restarting
    await stage.settle()
    assert model.pool.workers == before
    # The one that failed may have begun another try.
    started = len(stage.processes)
    again = asyncio.create_task(restart(model))
    for number in (1, 2):
        (await stage.enter(started + number)).load()

    assert await again == 2


async def test_two_restarts_do_not_mix(model, stage):  # noqa: F811
    restarting = asyncio.create_task(restart(model))
    await stage.enter(3)
    with pytest.raises(Conflict, match="is being replaced already"):
        await restart(model)
    for number in (3, 4):
        (await stage.enter(number)).load()

    assert await restarting == 2


async def test_a_model_without_workers_has_none_to_restart(model):
    model.pool.scale(0, 0)

    with pytest.raises(Conflict, match=r"m 1\.0 has no workers"):
        await restart(model)


async def test_a_pool_that_ends_starts_no_worker(model, stage):  # noqa: F811
    restarting = asyncio.create_task(restart(model))
    await stage.enter(3)
    model.pool.crew.stop_recycling()
    stage.processes[2].load()

    with pytest.raises(Conflict):
        await restarting
