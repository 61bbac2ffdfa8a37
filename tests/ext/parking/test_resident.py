import asyncio
import contextlib

import pytest
from tests.cycles import no_cycles
from tests.waiting import until

from modelserver.errors import Conflict, DeadlineExceeded, ServiceUnavailable
from modelserver.ext.parking.resident import FIRST_PAUSE, LONGEST_PAUSE


async def test_failed_load_answers_what_waits_and_pauses(floor, caplog, resident):
    """The next request after the pause tries again; the pauses grow. The log has each reason."""
    for number, pause in enumerate((FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE), 1):
        waiting = [floor.ask("a"), floor.ask("a")]
        await floor.settle()
        # The pauses between tries of a worker, which it leaves at once, pass at once here.
        floor.stage.processes[-1].fail_to_load("no such file")
        await until(lambda: floor.states() == {"a": "failed"})
        assert all("no such file" in str(request.failure()) for request in waiting)
        with pytest.raises(ServiceUnavailable, match="Model a is not loaded: no such file") as refused:
            floor.ask("a")
        assert refused.value.headers == ((b"retry-after", f"{pause:.0f}".encode()),)
        assert resident.describe()["failedLoads"] == number
        assert f"{caplog.messages}".count("Model a 1.0 is not loaded: ") == number
        floor.now += pause
        assert floor.states() == {"a": "parked"}
    floor.ask("a")
    await floor.settle()
    await floor.load(len(floor.stage.processes))

    assert resident.describe()["failure"] is None
    assert floor.states() == {"a": "loaded"}
    for _ in range(20):
        resident.fail(ServiceUnavailable("again"))
    assert resident.refusal.headers == ((b"retry-after", f"{LONGEST_PAUSE:.0f}".encode()),)


async def test_model_is_ready_while_it_is_loaded_for_a_request(floor):
    """Its requests wait for it, so that it keeps its share of the traffic; when its worker dies none do."""
    pool = floor.add("a").pool
    parked = pool.ready
    request = floor.ask("a")
    await floor.settle()
    process = await floor.stage.enter(1)
    loading = pool.ready
    process.exit("was killed by SIGKILL")
    await until(lambda: floor.states() == {"a": "failed"})

    assert (parked, loading, pool.ready) == (True, True, False)
    assert "SIGKILL" in str(request.failure())


async def test_load_waits_and_park_refuses_the_busy(floor, resident):
    loading = asyncio.create_task(resident.load())
    await floor.settle()
    process = await floor.load(1)
    await loading
    await resident.load()
    floor.ask("a")
    with pytest.raises(Conflict, match=r"Model a 1\.0 is not parked: it has requests"):
        resident.park()
    await floor.answer(process)
    resident.park()
    await floor.settle()
    resident.park()

    assert floor.states() == {"a": "parked"}
    assert resident.describe()["parks"] == {"request": 1}


async def test_load_fails_as_a_request_does(floor, resident):
    loading = asyncio.create_task(resident.load())
    await floor.settle()
    (await floor.stage.enter(1)).fail_to_load("no such file")

    with pytest.raises(ServiceUnavailable, match="no such file"):
        await loading
    with pytest.raises(ServiceUnavailable, match="no such file"):
        await resident.load()
    with no_cycles(), contextlib.suppress(ServiceUnavailable):
        await resident.load()


async def test_loads_that_wait_are_bounded(resident):
    loads = [asyncio.create_task(resident.load()) for _ in range(10)]
    await asyncio.sleep(0)
    with pytest.raises(ServiceUnavailable, match="Too many requests wait"):
        await resident.load()
    for each in loads:
        each.cancel()
    await asyncio.gather(*loads, return_exceptions=True)

    assert not resident._is_busy


async def test_request_that_comes_as_the_model_is_parked_loads_it_again(floor, resident):
    await floor.use(1, "a")
    resident.park()
    request = floor.ask("a")
    await floor.answer(await floor.load(2))

    assert request.failure() is None
    assert request.done


async def test_load_ends_when_the_model_is_unregistered(floor, resident):
    loading = asyncio.create_task(resident.load())
    await floor.settle()
    await floor.pools["a"].close(0.0)
    await floor.settle()
    await loading

    with pytest.raises(ServiceUnavailable):
        floor.ask("a")


async def test_restart_of_a_worker_is_no_load_and_says_nothing_of_its_time(floor, resident):
    """The worker's process dies and comes back: nobody has waited for the model."""
    floor.ask("a")
    await floor.settle()
    first = await floor.load(1, seconds=2.0)
    await floor.answer(first)
    floor.now += 200.0
    first.exit("was killed by SIGKILL")
    await floor.load(2, seconds=3.0)

    assert (resident.loads, floor.states()) == (1, {"a": "loaded"})
    assert resident.load_seconds == 2.0
    assert resident.describe()["loadTime"] == 2000


async def test_model_that_is_scaled_is_loaded_and_parked_too(floor, resident):
    """Without workers it has no memory, and the next one is a load, as for a request."""
    await floor.use(1, "a")
    floor.pools["a"].scale(0, 0)
    await floor.settle()
    assert (resident.state, resident.memory, resident.loads) == ("parked", 0, 1)
    floor.pools["a"].scale(1, 1)
    await floor.load(2, 70)

    assert (resident.state, resident.memory, resident.loads) == ("loaded", 70 << 20, 2)


async def test_what_a_load_waits_for_says_nothing_of_the_time_to_load(floor, resident):
    """As the start of the process from which workers are forked, which the first load of a server needs."""
    floor.ask("a")
    await floor.settle()
    floor.now += 4.0
    await floor.load(1, seconds=0.2)

    assert resident.load_seconds == 0.2
    assert floor.keeper.need_of(resident).seconds == 0.2


async def test_requests_wait_for_a_load_within_deadline_and_queue(floor, resident):
    """They count with those in the queue."""
    size = resident.pool.limits.max_bytes
    first = asyncio.create_task(resident.load(size))
    await asyncio.sleep(0)
    with pytest.raises(ServiceUnavailable, match="Too many requests wait until model a is loaded") as full:
        await resident.load(1)
    await floor.settle()
    with pytest.raises(DeadlineExceeded, match="passed before model a was loaded"):
        await resident.load(seconds=0.0)
    await floor.load(1)
    await first

    # The type in metrics is that of a full queue.
    assert (type(full.value), full.value.openai_status) == (ServiceUnavailable, 429)
    assert resident.model.metrics.requests.refused == 1
    assert resident.model.metrics.requests.unanswered == 2
