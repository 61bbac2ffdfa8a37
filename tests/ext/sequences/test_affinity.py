import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.cycles import no_cycles
from tests.waiting import until

from modelserver.engine.batching.queue import UnsharedKey
from modelserver.engine.batching.request import Request, SequencedRequest, SequenceMark
from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.spec import PoolLimits
from modelserver.engine.wire.messages import Answer, Pong, Result, Row, SequenceHeaders, Stop
from modelserver.errors import HandlerError, ResponseTimeout, ServiceUnavailable, WorkerDied
from modelserver.ext.sequences.affinity import sequence_affinity
from modelserver.models.options.resolve import ModelOptions

LIMITS = PoolLimits(batch_size=4, policy="greedy", max_delay=0.0, max_requests=10, max_bytes=10_000)
REFUSED = (
    'Model "m" has no worker to serve inference request. Please use scale workers API to add workers. '
    "If this is a sequence inference, please check if it is closed, or expired; or exceeds "
    "maxSequenceJobQueueSize"
)


@pytest.fixture
def make(begin, spec, times, counts):
    """Makes pools with loaded workers: ``make(workers, idle=ms, age=ms, most=, waiting=, **limits)``."""

    async def pool(workers=1, idle=60000, age=0, most=4, waiting=2, concurrency=0, response=60.0, **limits):
        bounds = replace(LIMITS, **limits)
        options = SimpleNamespace(
            sequence_max_idle_ms=idle,
            sequence_timeout_ms=age,
            max_num_sequence=most,
            max_sequence_job_queue_size=waiting,
        )
        sut = Pool(
            "m",
            "m_1.0",
            replace(spec, concurrency=concurrency),
            replace(times, response=response),
            bounds,
            affinity=sequence_affinity(bounds, options, SequenceHeaders()),
            next_id=iter(range(9000, 9100)).__next__,
            devices=DeviceRing(0),
            metrics=counts,
        )
        await begin(sut, workers)
        return sut

    return pool


def step(name, body=b"x", **mark):
    row = Row("id", len(body))
    return SequencedRequest("id", [row], [body], time.monotonic(), mark=SequenceMark(name, **mark))


def submit(pool, *requests):
    for each in requests:
        pool.submit(each)


async def send(stage, pool, *requests):
    """Submits the requests; the workers get what they may."""
    submit(pool, *requests)
    await stage.settle()


def content(request):
    answered = request.answers[0]
    return answered and answered[1]


def bodies(process):
    return [sent for message, sent in process.received if hasattr(message, "rows")]


async def test_description_goes_to_any_worker(make, stage):
    pool = await make(2)
    await send(stage, pool, step("a"))
    submit(pool, question := Request("q", [Row("q", 0)], [b""], time.monotonic(), key=UnsharedKey()))
    await stage.settle()

    assert bodies(stage.processes[1]) == [[b""]]
    stage.processes[1].answer(b"{}")
    assert content(question) == b"{}"


async def test_too_many_sequences_are_refused(make, counts):
    """One sequence too many is refused with TorchServe's text, and counted."""
    pool = await make(most=1)
    submit(pool, step("a"))

    with pytest.raises(ServiceUnavailable) as refused:
        pool.submit(step("b"))
    assert refused.value.message == REFUSED
    assert counts("rejected") == [("sequences",)]


async def test_idle_sequence_ends_by_itself(make, stage):
    pool = await make(most=1, idle=30)
    await send(stage, pool, first := step("a"))
    assert first.is_first
    with pytest.raises(ServiceUnavailable):
        pool.submit(step("b"))
    stage.processes[0].answer()
    await until(lambda: pool.affinity.statistics["living"] == 0)

    submit(pool, other := step("b"))
    assert other.is_first


async def test_handler_ends_sequences(make, stage):
    """The header of an answer names sequences that end, in any case and separated by ``;``."""
    pool = await make()
    await send(stage, pool, a := step("a"), b := step("b"), c := step("c"), waiting := step("a"))
    process = stage.processes[0]
    headers = [("TS_Request_Sequence_End", "a; b;nobody")]
    message = Result(0, [Answer(0), Answer(0, headers=headers), Answer(0)], 0.0)
    process.say(message)

    assert [request.error for request in (a, b, c)] == [None] * 3
    assert isinstance(waiting.error, ServiceUnavailable)
    assert pool.affinity.statistics["living"] == 1


async def test_a_deadline_lets_a_worker_leave(make, stage):
    pool = await make(concurrency=1)
    await send(stage, pool, step("a", b"1", ends=True))
    late = step("b", b"2")
    late.deadline = time.monotonic() + 0.02
    await send(stage, pool, late)
    pool.scale(0, 0)
    stage.processes[0].answer()

    await until(lambda: not pool.crew.leaving)


async def test_wrong_number_of_answers_ends_the_worker(make, stage):
    pool = await make()
    await send(stage, pool, first := step("a"), second := step("a"))
    stage.processes[0].answer(b"1", b"2")
    await stage.settle()

    assert isinstance(first.error, HandlerError)
    assert isinstance(second.error, WorkerDied)


async def test_one_of_several_is_abandoned(make, stage):
    """A request that is overdue while its process lives does not cost the sequences their state (F34)."""
    pool = await make(batch_size=1, concurrency=4, response=0.3)
    process = stage.processes[0]
    await send(stage, pool, first := step("a", b"a1"))
    for _ in range(1000):
        process.say(Pong())
        await asyncio.sleep(0.002)
        if first.done:
            break
    await send(stage, pool, step("a", b"a2"))

    assert isinstance(first.error, ResponseTimeout)
    assert bodies(process)[-1] == [b"a2"]


async def test_scaled_down_worker_keeps_its_sequences(make, stage):
    pool = await make(2, most=8)
    first, second = stage.processes
    await send(stage, pool, step("a"), step("b", b"b1"))
    first.answer()
    second.answer()
    pool.scale(1, 1)
    await stage.settle()
    await send(stage, pool, step("b", b"b2", ends=True), step("c", b"c1"), step("d", b"d1"))

    assert bodies(second) == [[b"b2"]]
    assert bodies(first) == [[b"c1", b"d1"]]
    second.answer()
    await stage.settle()
    assert [type(message).__name__ for message, _ in second.received][-1] == "Stop"


async def test_scaled_down_worker_waits_no_longer(make, stage):
    """Sequences that do not end in time are lost as if the worker had died."""
    pool = await make(2)
    await send(stage, pool, step("a"), step("b"))
    for process in stage.processes[:2]:
        process.answer()
    pool.crew.times = replace(pool.crew.times, response=0.02)
    pool.scale(1, 1)

    await until(lambda: pool.affinity.statistics["living"] == 1)
    with pytest.raises(WorkerDied):
        pool.submit(step("b"))


async def test_living_sequences_are_served_when_scaled_to_nothing(make, stage):
    """Sequences that live are served to their end (F50); new ones are refused."""
    pool = await make()
    await send(stage, pool, step("a", b"1"))
    stage.processes[0].answer()
    pool.scale(0, 0)
    await stage.settle()

    with pytest.raises(ServiceUnavailable):
        pool.submit(step("b"))
    await send(stage, pool, last := step("a", b"2", ends=True))
    stage.processes[0].answer()
    assert content(last) == b"2"


async def test_requests_without_a_worker_are_refused_with_the_reason(make, stage, counts):
    """Where no worker can be loaded, what waits and what comes is refused with the reason (F40, F41)."""
    pool = await make()
    await send(stage, pool, step("a", b"1"))
    stage.processes[0].exit("was killed by SIGKILL")
    waiting = step("b")
    await stage.settle()
    submit(pool, waiting)
    for number in range(2, 5):
        (await stage.enter(number)).fail_to_load("RuntimeError: the licence server is down\n  at line 1")
        await stage.settle()

    reports = f"{REFUSED}. Its workers fail: RuntimeError: the licence server is down"
    assert isinstance(waiting.error, ServiceUnavailable)
    assert waiting.error.message == reports
    with pytest.raises(ServiceUnavailable) as refused:
        pool.submit(step("c"))
    assert refused.value.message == reports
    assert counts.calls["rejected"] == [("no_worker",)]


async def test_leaving_worker_that_dies_is_not_waited_for(make, stage):
    pool = await make(2)
    await send(stage, pool, step("a"), waiting := step("b"))
    pool.scale(1, 1)
    await stage.settle()
    stage.processes[1].exit("was killed by SIGKILL")
    await stage.settle()

    assert isinstance(waiting.error, WorkerDied)
    await until(lambda: not pool.crew.leaving)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_worker_that_leaves_is_stopped_whatever_happens(make, stage, monkeypatch, cancelled):
    pool = await make()
    await send(stage, pool, step("a"))
    stage.processes[0].answer()
    if not cancelled:
        lose, failures = pool.affinity.lose, [ZeroDivisionError()]

        def fail_once(worker, now):
            if failures:
                raise failures.pop()
            return lose(worker, now)

        monkeypatch.setattr(pool.affinity, "lose", fail_once)
        pool.queue.drain()
    pool.scale(0, 0)
    (leaving,) = pool.crew.leaving.values()
    await stage.settle()
    if cancelled:
        leaving.cancel()
        await stage.settle()

    await until(lambda: not pool.crew.leaving)
    assert isinstance(stage.processes[0].received[-1][0], Stop)
    assert cancelled == leaving.cancelled()
    assert cancelled or isinstance(leaving.exception(), ZeroDivisionError)


async def test_drained_pool_serves_what_waits(make, stage):
    pool = await make()
    await send(stage, pool, step("a", b"1"), last := step("a", b"2"))
    closing = asyncio.create_task(pool.drain(5.0))
    await stage.settle()
    with pytest.raises(ServiceUnavailable):
        pool.submit(step("a"))
    stage.processes[0].answer()
    stage.processes[0].answer()

    assert await closing is True
    assert content(last) == b"2"


async def test_closed_pool_refuses_what_waits(make, stage):
    pool = await make(2)
    await send(stage, pool, step("a"), step("b"), waiting := step("b"))
    pool.scale(1, 1)
    await stage.settle()
    await pool.close(0.01)

    assert isinstance(waiting.error, ServiceUnavailable)
    assert pool.affinity.statistics["living"] == 0
    await until(lambda: not pool.crew.leaving)


def test_affinity_and_its_queue_are_no_reference_cycle():
    with no_cycles():
        options = ModelOptions(sequence_max_idle_ms=1)
        sequence_affinity(LIMITS, options, SequenceHeaders())
