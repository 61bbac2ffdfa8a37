from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import until

from modelserver.engine.batching.request import Request
from modelserver.engine.pools import pool as pool_module
from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.gate import StartGate
from modelserver.engine.pools.pool import BACKLOG, FAILING, Pool
from modelserver.engine.pools.spec import PoolLimits, WorkerState, WorkerTimes
from modelserver.engine.wire.frames import ProtocolError
from modelserver.engine.wire.messages import Answer, Cancelled, Measurement, Parts, Proceed, Returned, Row
from modelserver.errors import (
    DeadlineExceeded,
    HandlerError,
    InternalError,
    ServiceUnavailable,
    StartFailed,
    WorkerDied,
)

if TYPE_CHECKING:
    from tests.engine.pools.conftest import Counts
    from tests.simulated_time import Clock

    from modelserver.engine.pools.spec import WorkerSpec


pytestmark = pytest.mark.usefixtures("simulated_time")

LIMITS = PoolLimits(batch_size=2, policy="greedy", max_delay=0.0, max_requests=10, max_bytes=10_000)


@pytest.fixture
async def make(stage: Any, spec: WorkerSpec, times: WorkerTimes, counts: Counts) -> Any:
    """Makes pools that are closed after the test; their workers still have to load."""
    made: list[Pool] = []

    def pool(workers: int = 1, **limits: Any) -> Pool:
        ids = iter(range(9000, 9100))
        made.append(
            Pool(
                "m",
                "m_1.0",
                spec,
                times,
                replace(LIMITS, **limits),
                next_id=ids.__next__,
                devices=DeviceRing(0),
                metrics=counts,
            )
        )
        made[-1].clock = now
        made[-1].scale(workers, workers)
        return made[-1]

    yield pool
    for each in made:
        await each.close(0.01)


@pytest.fixture
async def pool(make: Any, stage: Any) -> Pool:
    """A pool with one loaded worker."""
    made: Pool = make()
    (await stage.enter()).load()
    return made


def now() -> float:
    """The time of the event loop."""
    return asyncio.get_running_loop().time()


def request(*bodies: bytes, key: object = None, deadline: float | None = None) -> Request:
    rows = [Row("id", len(body)) for body in bodies]
    return Request("id", rows, bodies, now(), key=key, deadline=deadline)


def contents(sent: Request) -> list[bytes | None]:
    return [answer and answer[1] for answer in sent.answers]


def submit(pool: Pool, *requests: Request) -> None:
    for each in requests:
        pool.submit(each)


async def test_requests_of_one_turn_share_a_batch(pool: Pool, stage: Any) -> None:
    """What comes in one turn of the loop goes together, and each request gets its own answers."""
    first, second = request(b"a"), request(b"b")
    submit(pool, first, second)
    process = stage.processes[0]
    assert [len(batch.rows) for batch in process.batches] == [2]

    process.answer(b"A", b"B")
    assert (contents(first), contents(second)) == ([b"A"], [b"B"])
    assert first.batch_id == second.batch_id != ""
    assert (first.batch_size, first.handler_time) == (2, 0.01)


async def test_large_request_is_spread_over_batches_and_joined(pool: Pool, stage: Any) -> None:
    """A request above the maximum is spread over batches and joined (F25)."""
    large = request(b"a", b"b", b"c", b"d", b"e")
    pool.submit(large)
    process = stage.processes[0]
    for _ in range(3):
        await stage.enter()
        process.answer()

    assert contents(large) == [b"a", b"b", b"c", b"d", b"e"]
    assert large.done


async def test_batch_grows_while_the_worker_is_busy(pool: Pool, stage: Any) -> None:
    """While the worker is busy a batch can still grow; a full one waits at the worker."""
    submit(pool, request(b"a", b"b"))
    process = stage.processes[0]
    third = request(b"c")
    pool.submit(third)
    await stage.enter()
    assert len(process.batches) == 1

    pool.submit(request(b"d"))
    assert len(process.batches) == 2
    assert pool.statistics().batches_in_flight == 2


async def test_loading_workers_let_requests_wait(make: Any, stage: Any) -> None:
    """Before a worker has loaded requests wait for it (reference 8.1)."""
    made = make()
    early = request(b"a")
    made.submit(early)
    process = await stage.enter()
    assert process.batches == []

    process.load()
    process.answer()
    assert contents(early) == [b"a"]


async def test_full_queue_refuses_and_counts_why(make: Any, stage: Any, counts: Counts) -> None:
    """A full queue refuses, and counts why (F30, F31)."""
    made = make(max_requests=2, max_bytes=100)
    submit(made, request(b"a"), request(b"b"))
    with pytest.raises(ServiceUnavailable, match="has no worker to serve inference request"):
        made.submit(request(b"c"))
    other = make(max_requests=9, max_bytes=3)
    other.submit(request(b"aa"))
    with pytest.raises(ServiceUnavailable):
        other.submit(request(b"bb"))

    assert counts("rejected") == [("requests",), ("bytes",)]
    assert made.statistics().pending == 2


async def test_pool_without_workers_refuses(make: Any, counts: Counts) -> None:
    """Without workers nothing is taken in."""
    with pytest.raises(ServiceUnavailable):
        make(workers=0).submit(request(b"a"))

    assert counts("rejected") == [("no_worker",)]


async def test_requests_are_refused_when_the_last_worker_is_given_up(make: Any, stage: Any) -> None:
    """When the last worker is given up, what waits is refused at once, with the reason without output."""
    made = make()
    waiting = request(b"a")
    made.submit(waiting)
    process = await stage.enter()
    process.output = "Traceback"
    process.fail_to_load("no", permanent=True)
    await stage.enter()

    assert isinstance(waiting.error, ServiceUnavailable)
    assert made.failure.startswith("no")
    assert not made.healthy
    with pytest.raises(ServiceUnavailable, match=r"Its workers fail: no$"):
        made.submit(request(b"b"))


async def test_requests_are_refused_after_three_failed_loads(make: Any, stage: Any) -> None:
    """After three tries nobody waits for the next one: the reason is told at once, until a try succeeds."""
    made = make()
    waiting = request(b"a")
    made.submit(waiting)
    for number in (1, 2, 3):
        assert waiting.error is None
        (await stage.enter(number)).fail_to_load("RuntimeError: the licence server is down\n  at line 1")
    last = await stage.enter(4)

    ending = "Its workers fail: RuntimeError: the licence server is down"
    assert str(waiting.error).endswith(ending)
    with pytest.raises(ServiceUnavailable, match=ending):
        made.submit(request(b"b"))
    last.load()
    made.submit(served := request(b"c"))
    await stage.settle()
    last.answer()
    assert contents(served) == [b"c"]


async def test_what_was_never_begun_is_put_back_once(pool: Pool, stage: Any) -> None:
    """A request for a worker that was killed a moment before goes to the next one, and to no third (F39)."""
    first, second = request(b"a"), request(b"b")
    submit(pool, first)
    stage.processes[0].begun = 0
    stage.processes[0].exit("was killed by SIGKILL")
    (await stage.enter(2)).load()
    stage.processes[1].answer()
    assert (contents(first), first.error) == ([b"a"], None)

    submit(pool, second)
    for number in (1, 2):
        stage.processes[number].begun = 0
        stage.processes[number].exit("was killed by SIGKILL")
        (await stage.enter(number + 2)).load()
        await stage.settle()
    assert isinstance(second.error, WorkerDied)


async def test_worker_that_served_and_cannot_load_again_refuses_what_waits(pool: Pool, stage: Any) -> None:
    """A worker that served, died and cannot be loaded again leaves nobody waiting for it."""
    first = await stage.enter()
    first.exit()
    second = await stage.enter(2)
    waiting = request(b"a")
    pool.submit(waiting)
    second.fail_to_load("the file is gone", permanent=True)
    await stage.settle()

    assert isinstance(waiting.error, ServiceUnavailable)
    assert pool.queue.requests == 0


async def test_refusal_names_the_version_that_the_client_named(make: Any) -> None:
    """A client that named a version reads it in the text, with TorchServe's odd quote (reference 6.5)."""
    with pytest.raises(ServiceUnavailable, match=r'^Model "m" Version 1\.0" has no worker to serve'):
        make(0).submit(request(b"a"), "1.0")


async def test_batch_that_cannot_be_sent_fails_its_requests(
    pool: Pool, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that fits no frame fails its own requests; the worker goes on."""
    process = await stage.enter()

    def refuse(message: Any, bodies: Any = ()) -> None:
        raise ProtocolError("too long")

    with monkeypatch.context() as patched:
        patched.setattr(process, "send", refuse)
        lost = request(b"a")
        pool.submit(lost)
        await stage.settle()
    assert isinstance(lost.error, InternalError)
    assert "too long" in str(lost.error)

    good = request(b"b")
    pool.submit(good)
    await stage.settle()
    process.answer()
    assert good.error is None
    assert good.done


@pytest.mark.parametrize(("workers", "threads"), [(1, 8), (2, 4), (3, 2), (100, 1)])
async def test_cores_are_shared_among_the_workers(
    make: Any, stage: Any, spec: WorkerSpec, workers: int, threads: int
) -> None:
    """The cores are shared out among a model's workers, whenever they are started; one each at least."""
    pool = make(0)
    pool.spec = replace(spec, threads=8, gate=StartGate(limit=workers, available=lambda: math.inf))
    pool.scale(workers, workers)
    await stage.enter(workers)

    assert {started.threads for started in stage.specs} == {threads}


async def test_deadline_in_the_queue_fails_the_request(make: Any, stage: Any, counts: Counts) -> None:
    """A request that waits past its deadline is failed then and computed never (F33)."""
    made = make()
    late = request(b"a", deadline=now() + 0.01)
    made.submit(late)
    await asyncio.sleep(0.03)
    (await stage.enter()).load()
    await stage.enter()

    assert isinstance(late.error, DeadlineExceeded)
    assert stage.processes[0].batches == []
    assert len(counts("expired")) == 1
    assert made.statistics().pending == 0


async def test_deadlines_of_many_leave_others_their_turn(
    make: Any, counts: Counts, simulated_time: Clock
) -> None:
    """When those of many requests pass at once, others get their turn in between."""
    made = make(max_requests=200)
    many = [request(b"a", deadline=now() + 0.01) for _ in range(200)]
    submit(made, *many)
    simulated_time.now += 0.03
    most = ended = 0
    while ended < 200:
        before = ended
        await asyncio.sleep(0)
        ended = sum(each.done for each in many)
        most = max(most, ended - before)

    assert most <= 64
    assert len(counts("expired")) == 200
    assert made.statistics().pending == 0


async def test_request_cancelled_past_its_deadline_counts_as_expired(make: Any, counts: Counts) -> None:
    """A request whose deadline has passed, though no timer has noticed, has not lost its client; nor has one
    whose client was a moment early.
    """
    made = make()
    requests = [request(b"a", deadline=now() + seconds) for seconds in (0.0, 0.001, 60.0)]
    submit(made, *requests)
    for each in requests:
        made.cancel(each)

    assert [isinstance(each.error, DeadlineExceeded) for each in requests] == [True, True, False]
    assert (len(counts("expired")), len(counts("cancelled"))) == (2, 1)
    assert made.statistics().pending == 0


async def test_deadline_while_running_fails_the_request(pool: Pool, stage: Any) -> None:
    """A request whose deadline passes while it runs is failed then, its late answer is dropped (F34)."""
    late, other = request(b"a", deadline=now() + 0.01), request(b"b")
    submit(pool, late, other)
    await asyncio.sleep(0.03)
    assert isinstance(late.error, DeadlineExceeded)

    stage.processes[0].answer()
    assert contents(other) == [b"b"]
    assert contents(late) == [None]
    assert not stage.processes[0].killed


async def test_deadline_that_is_met_leaves_no_timer(pool: Pool, stage: Any, counts: Counts) -> None:
    """A request that is answered in time leaves no timer behind."""
    quick = request(b"a", deadline=now() + 0.02)
    submit(pool, quick, request(b"b"))
    stage.processes[0].answer()
    await asyncio.sleep(0.03)

    assert (quick.error, contents(quick)) == (None, [b"a"])
    assert counts("expired") == []


async def test_cancelled_request_leaves_the_queue(make: Any, stage: Any, counts: Counts) -> None:
    """A cancelled request leaves the queue and is never computed (F24)."""
    made = make()
    gone, stays = request(b"a"), request(b"b")
    submit(made, gone, stays)
    heard: list[Any] = []
    gone.on_done = heard.append
    made.cancel(gone)
    made.cancel(gone)
    process = await stage.enter()
    process.load()

    assert [len(batch.rows) for batch in process.batches] == [1]
    process.answer()
    assert contents(stays) == [b"b"]
    assert heard == []
    assert len(counts("cancelled")) == 1


async def test_batch_that_is_not_full_leaves_at_the_end_of_its_window(make: Any, stage: Any) -> None:
    """With a window a batch that is not full goes when its oldest request has waited it out."""
    made = make(policy="window", max_delay=0.05)
    process = await stage.enter()
    process.load()
    began = now()
    made.submit(request(b"a"))
    await stage.enter()
    assert process.batches == []
    await until(lambda: process.batches)

    assert now() - began == pytest.approx(0.05, abs=0.003)


async def test_wrong_number_of_answers_kills_the_worker(pool: Pool, stage: Any) -> None:
    """A worker that miscounts loses its batch and its life (F19)."""
    sent = request(b"a", b"b")
    pool.submit(sent)
    process = stage.processes[0]
    process.answer(b"only one")

    assert isinstance(sent.error, HandlerError)
    assert process.killed


async def test_dead_worker_fails_its_running_batch_and_passes_on_the_other(pool: Pool, stage: Any) -> None:
    """When a worker dies its running batch fails, the unbegun one is served by its
    successor, each once (F39).
    """
    running, waiting = request(b"a", b"b"), request(b"c", b"d")
    submit(pool, running, waiting)
    process = stage.processes[0]
    assert len(process.batches) == 2
    process.exit("was killed by SIGSEGV")
    successor = await stage.enter(2)

    assert isinstance(running.error, WorkerDied)
    assert not waiting.done
    successor.load()
    successor.answer()
    assert contents(waiting) == [b"c", b"d"]


async def test_what_may_run_twice_is_tried_once_more(make: Any, stage: Any, spec: WorkerSpec) -> None:
    """A worker that is out of reach may have begun it; the second loss is final."""
    stage.away = 0.001
    pool = make()
    pool.spec = replace(spec, idempotent=True)
    pool.resize(0)
    pool.resize(1)
    first = await stage.enter(2)
    first.load()
    sent = request(b"a")
    submit(pool, sent)
    await stage.settle()
    first.exit("is out of reach")
    second = await stage.enter(3)
    second.load()
    assert len(second.batches) == 1
    second.exit("is out of reach")
    await until(lambda: sent.done)

    assert isinstance(sent.error, WorkerDied)


async def test_what_clients_have_a_part_of_is_not_tried_again(
    make: Any, stage: Any, spec: WorkerSpec
) -> None:
    """Of a batch that may run twice only those requests are, of whose answer nothing was sent."""
    stage.away = 0.001
    pool = make()
    pool.spec = replace(spec, idempotent=True)
    pool.resize(0)
    pool.resize(1)
    first = await stage.enter(2)
    first.load()
    streamed, waiting = request(b"a"), request(b"b")
    for each in (streamed, waiting):
        each.on_part = lambda request, answer, part: None
    submit(pool, streamed, waiting)
    await stage.settle()
    first.say(Parts(first.batches[0].sequence, [0], [Answer(1)]), [b"x"])
    first.exit("is out of reach")
    second = await stage.enter(3)
    second.load()
    second.answer()

    assert isinstance(streamed.error, WorkerDied)
    assert contents(waiting) == [b"b"]


async def test_request_is_put_back_once(pool: Pool, stage: Any) -> None:
    """A request is put back once; one whose second worker dies too before it began is failed (F21)."""
    waiting = request(b"c", b"d")
    submit(pool, request(b"a", b"b"), waiting)
    stage.processes[0].exit()
    successor = await stage.enter(2)
    successor.load()
    submit(pool, request(b"e", b"f"))
    assert len(successor.batches) == 2
    successor.exit()
    await stage.enter(3)

    assert isinstance(waiting.error, WorkerDied)


async def test_newest_workers_are_retired_first(make: Any, stage: Any) -> None:
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
async def test_scaling_keeps_between_the_bounds(make: Any, bounds: tuple[int, int], left: int) -> None:
    """Between the bounds nothing happens; a minimum of 0 means none at all (reference 5.3)."""
    made = make(workers=2)
    made.scale(*bounds)

    assert len(made.workers) == left


async def test_scale_to_nothing_refuses_what_waits(make: Any) -> None:
    """Scaled to 0, a pool refuses what waits: nobody will come for it (F50)."""
    made = make()
    waiting = request(b"a")
    made.submit(waiting)
    made.scale(0, 0)

    assert isinstance(waiting.error, ServiceUnavailable)


async def test_scaling_replaces_failed_workers(make: Any, stage: Any) -> None:
    """A worker that was given up makes place for a new try."""
    made = make()
    (await stage.enter()).fail_to_load("no", permanent=True)
    await stage.enter()
    started = made.scale(1, 1)
    (await stage.enter(2)).load()
    await made.wait_loaded(started)

    assert [worker.id for worker in made.workers] == [9001]
    assert made.healthy
    assert made.failure == ""


async def test_waiting_for_workers_ends_at_the_first_failure(make: Any, stage: Any) -> None:
    """Waiting for workers ends when all are loaded, or at the first failure."""
    made = make(workers=2)
    waiting = asyncio.create_task(made.wait_loaded(list(made.workers)))
    (await stage.enter(1)).load()
    await stage.enter(2)
    assert not waiting.done()
    stage.processes[1].fail_to_load("cause")

    with pytest.raises(StartFailed, match="cause"):
        await waiting


async def test_draining_pool_serves_what_it_has_and_refuses_more(pool: Pool, stage: Any) -> None:
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


async def test_drain_ends_with_a_batch_that_comes_back_for_nobody(pool: Pool, stage: Any) -> None:
    """A worker returns the last batch, and its requests have ended: nothing is left to wait for."""
    process = await stage.enter()
    running = request(b"a", b"b", deadline=now() + 0.01)
    pool.submit(running)
    draining = asyncio.create_task(pool.drain(60))
    await until(lambda: running.done)
    await stage.settle()
    assert not draining.done()
    process.say(Returned(0))

    assert await asyncio.wait_for(draining, 5) is True


async def test_drain_ends_with_batches_that_are_taken_back_for_nobody(
    make: Any, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where the server takes back what a worker has not begun."""
    pool = make(2)
    for number in (1, 2):
        (await stage.enter(number)).load()
    first, second = stage.processes
    for _ in range(60):
        submit(pool, request(b"a", b"b"), request(b"a", b"b"))
        first.answer(seconds=0.0001)
        second.answer(seconds=0.0001)
    requests = [request(b"a", b"b") for _ in range(3)]
    submit(pool, *requests)
    assert [len(first.batches), len(second.batches)] == [2, 1]
    monkeypatch.setattr(first, "recall", lambda sequence: 0)
    pool.cancel(requests[0])
    pool.cancel(requests[2])
    draining = asyncio.create_task(pool.drain(60))
    await asyncio.sleep(0)
    second.answer(seconds=0.0001)

    assert await asyncio.wait_for(draining, 5) is True


async def test_drain_waits_for_what_a_dead_worker_had_not_begun(make: Any, stage: Any) -> None:
    """Two batches of it had begun, and fail one after the other; the third one is still served."""
    pool = make()
    process = await stage.enter()
    process.load()
    for _ in range(60):
        pool.submit(request(b"a", b"b"))
        process.answer(seconds=0.0001)
    requests = [request(b"a", b"b") for _ in range(3)]
    submit(pool, *requests)
    assert len(process.batches) == 3
    draining = asyncio.create_task(pool.drain(60))
    await stage.settle()
    process.begun = process.batches[2].sequence
    process.exit()
    fresh = await stage.enter(2)
    assert not draining.done()
    fresh.load()
    fresh.answer()

    assert await asyncio.wait_for(draining, 5) is True
    assert [each.error is None for each in requests] == [False, False, True]


async def test_drain_waits_for_retired_workers(pool: Pool, stage: Any) -> None:
    """What a worker runs that was scaled away is waited for like everything else."""
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


async def test_close_does_not_wait_longer_for_retired_workers(pool: Pool, stage: Any) -> None:
    """The grace of the close holds for workers that were scaled away before, too."""
    process = await stage.enter()
    running = request(b"a")
    pool.submit(running)
    await stage.settle()
    pool.scale(0, 0)
    await stage.settle()
    await asyncio.wait_for(pool.close(0.01), 2.0)

    assert process.killed
    assert isinstance(running.error, WorkerDied)


async def test_drain_sends_open_windows(make: Any, stage: Any) -> None:
    """Draining does not wait for windows."""
    made = make(policy="window", max_delay=60.0)
    process = await stage.enter()
    process.load()
    made.submit(request(b"a"))
    draining = asyncio.create_task(made.drain(5))
    await stage.enter()
    process.answer()

    assert await draining is True


@pytest.mark.parametrize(("bodies", "grace"), [((b"a", b"b"), 0.01), ((), 0.0)], ids=["busy", "idle"])
async def test_drain_gives_up_after_its_grace(pool: Pool, bodies: tuple[bytes, ...], grace: float) -> None:
    """An idle pool is drained at once."""
    if bodies:
        pool.submit(request(*bodies))

    assert await pool.drain(grace) is not bool(bodies)


async def test_closed_pool_has_neither_requests_nor_workers(make: Any, stage: Any) -> None:
    """A closed pool has refused what waited, lost what did not finish, and has no worker."""
    made = make()
    process = await stage.enter()
    process.load()
    running, waiting = request(b"a", b"b"), request(b"c")
    submit(made, running, waiting)
    await made.close(0.01)

    assert isinstance(waiting.error, ServiceUnavailable)
    assert isinstance(running.error, WorkerDied)
    assert process.killed
    assert made.workers == []


async def test_batches_and_waits_are_counted(pool: Pool, stage: Any, counts: Counts) -> None:
    """Batches, waits, isolated instances and handlers' own metrics are counted."""
    submit(pool, request(b"a", b"b"))
    own = Measurement("Own", 1.0, "Count", "counter", [("k", "v")], "id")
    stage.processes[0].answer(calls=3, phases=(0.1, 0.2, 0.3), metrics=[own])

    size, requests, capacity, reason, _, phases = counts("finished")[0]
    assert (size, requests, capacity, reason, phases) == (2, 1, 2, "size", (0.1, 0.2, 0.3))
    assert len(counts("waited")) == 1
    assert counts("isolated") == [(0,)]
    assert counts("handler_metric") == [("Own", 1.0, "Count", "counter", [("k", "v")], "id")]
    assert counts("loaded")[0][0] == "W-9000-m_1.0"


async def test_statistics_show_the_state_of_the_pool(make: Any, stage: Any) -> None:
    """The state of a pool is one frozen value."""
    made = make(workers=2)
    made.submit(request(b"a", b"b"))
    statistics = made.statistics()

    assert (statistics.pending, statistics.instances, statistics.capacity) == (1, 2, 10)
    assert (statistics.ready, statistics.loading, statistics.failed) == (0, 2, 0)
    assert not made.ready


# Answers in parts


def parts(sequence: int, *texts: bytes, wait: bool = False) -> tuple[Parts, list[bytes]]:
    """A part for each row from the first."""
    return Parts(sequence, list(range(len(texts))), [Answer(len(text)) for text in texts], wait), list(texts)


async def test_parts_go_to_their_requests(pool: Pool, stage: Any) -> None:
    """Each request gets its own, and at last what the handler returned."""
    got: list[tuple[Request, int, bytes]] = []
    first, second = request(b"a"), request(b"b")
    for each in (first, second):
        each.on_part = lambda sent, answer, part: got.append((sent, answer.size, part))
    submit(pool, first, second)
    process = stage.processes[0]
    process.say(*parts(0, b"one", b"zwei"))
    process.say(Parts(0, [1, 7], [Answer(1), Answer(1)]), [b"2", b"?"])
    process.answer(b"A", b"B")

    assert got == [(first, 3, b"one"), (second, 4, b"zwei"), (second, 1, b"2")]
    assert (contents(first), contents(second)) == ([b"A"], [b"B"])


async def test_request_that_cannot_take_parts_fails(pool: Pool, stage: Any) -> None:
    """They fail at their first part, and the worker is told that nobody waits."""
    sent = request(b"a", b"b")
    pool.submit(sent)
    process = stage.processes[0]
    process.say(*parts(0, b"one"))

    assert isinstance(sent.error, HandlerError)
    assert sent.error.status == 500
    assert "streams its answer" in sent.error.message
    assert Cancelled(0, [0, 1]) in [message for message, _ in process.received]
    process.say(*parts(0, b"two"))
    process.answer()


async def test_the_worker_hears_of_clients_that_leave(pool: Pool, stage: Any) -> None:
    """It is told of what it runs, not of what still waits; parts that are on their way are dropped."""
    running, waiting = request(b"a"), request(b"b")
    got: list[bytes] = []
    running.on_part = lambda sent, answer, part: got.append(part)
    pool.submit(running)
    await stage.settle()
    pool.submit(waiting)
    process = stage.processes[0]
    pool.cancel(waiting)
    assert [m for m, _ in process.received if isinstance(m, Cancelled)] == []
    pool.cancel(running)
    process.say(*parts(0, b"late"))

    assert [m for m, _ in process.received if isinstance(m, Cancelled)] == [Cancelled(0, [0])]
    assert got == []


async def test_the_worker_hears_of_deadlines(pool: Pool, stage: Any) -> None:
    """Past its deadline a request is answered, and the worker need not go on with it."""
    late, done = request(b"a", deadline=now() + 0.01), asyncio.Event()
    late.on_done = lambda _: done.set()
    pool.submit(late)
    process = stage.processes[0]
    await done.wait()
    await stage.settle()

    assert isinstance(late.error, DeadlineExceeded)
    assert Cancelled(0, [0]) in [message for message, _ in process.received]


async def test_a_worker_waits_for_slow_clients(pool: Pool, stage: Any) -> None:
    """It may go on when the clients of its batch have taken most of what it sent, or are gone."""
    slow, gone = request(b"a"), request(b"b")
    left = [BACKLOG + 1]
    for each in (slow, gone):
        each.on_part = lambda *_: None
        each.backlog = lambda: left[0]
    submit(pool, slow, gone)
    process = stage.processes[0]
    process.say(*parts(0, b"much", b"much", wait=True))
    pool.cancel(gone)
    await asyncio.sleep(0.03)
    assert Proceed(0) not in [message for message, _ in process.received]
    left[0] = BACKLOG
    await until(lambda: Proceed(0) in [message for message, _ in process.received])

    process.say(*parts(0, b"more", wait=True))
    assert [message for message, _ in process.received].count(Proceed(0)) == 2


async def test_clients_are_waited_for_once(pool: Pool, stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is too slow holds the worker up for a while, and not again."""
    monkeypatch.setattr(pool_module, "PATIENCE", 0.03)
    slow = request(b"a")
    slow.on_part, slow.backlog = lambda *_: None, lambda: 1 << 30
    pool.submit(slow)
    await stage.settle()
    process = stage.processes[0]
    process.say(*parts(0, b"much", wait=True))
    assert Proceed(0) not in [message for message, _ in process.received]
    await until(lambda: Proceed(0) in [message for message, _ in process.received])
    process.say(*parts(0, b"more", wait=True))

    assert [message for message, _ in process.received].count(Proceed(0)) == 2


# Another pool in its place


async def test_a_pool_that_is_replaced_serves_what_waits(make: Any, stage: Any) -> None:
    """What runs and what waits ends where it was; what comes late goes to the successor."""
    old, new = make(), make()
    (await stage.enter()).load()
    (await stage.enter(2)).load()
    before, after = stage.processes
    running, waiting, late = request(b"a", b"b"), request(b"c"), request(b"d")
    submit(old, running, waiting)
    await stage.enter()
    retiring = asyncio.create_task(old.retire(new, 5.0))
    await until(lambda: old._successor is new)
    old.submit(late)
    before.answer()
    await until(lambda: before.batches)
    before.answer()
    await until(lambda: after.batches)
    after.answer()
    await retiring

    assert [contents(each) for each in (running, waiting, late)] == [[b"a", b"b"], [b"c"], [b"d"]]
    assert old.workers == []


async def test_what_runs_in_part_is_not_passed_on(make: Any, stage: Any) -> None:
    """A request of which a batch runs at the old pool is not computed again by the new one."""
    old, new = make(), make()
    (await stage.enter()).load()
    (await stage.enter(2)).load()
    before, after = stage.processes
    first, parted = request(b"a", b"b"), request(b"c", b"d", b"e")
    submit(old, first, parted)
    await until(lambda: len(before.batches) == 2)
    retiring = asyncio.create_task(old.retire(new, 0.01))
    await until(lambda: parted.done)
    before.answer()
    before.answer()
    await retiring

    assert isinstance(parted.error, ServiceUnavailable)
    assert contents(first) == [b"a", b"b"]
    assert after.batches == []


async def test_what_has_no_time_is_passed_on(make: Any, stage: Any) -> None:
    """When the old pool's time is over the new one takes what it did not begin; clients may still leave."""
    old, new = make(), make()
    (await stage.enter()).load()
    (await stage.enter(2)).load()
    before, after = stage.processes
    running, leaving = request(b"a", b"b"), request(b"d", key=2)
    waiting = request(b"c", key=1, deadline=now() + 60)
    submit(old, running)
    await until(lambda: before.batches)
    submit(old, waiting, leaving)
    retiring = asyncio.create_task(old.retire(new, 0.01))
    await until(lambda: len(old._passed_on) == 2)
    old.cancel(leaving)
    await until(lambda: after.batches)
    after.answer()
    before.answer()
    await retiring

    assert (contents(running), contents(waiting), contents(leaving)) == ([b"a", b"b"], [b"c"], [None])
    assert not old._deadlines
    assert not new._deadlines


async def test_a_version_is_failing_after_batches_that_all_failed(pool: Pool, stage: Any) -> None:
    """One good row ends the run; refusals of the handler, such as 400, are no failures."""
    process = stage.processes[0]

    async def ask(status: int) -> None:
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


async def test_lost_batches_count_as_failures_of_the_version(make: Any, stage: Any) -> None:
    """A worker that dies of each batch makes its version a failing one."""
    made = make(batch_size=1)
    for number in range(1, FAILING + 1):
        (process := (await stage.enter(number), stage.processes[-1])[1]).load()
        made.submit(request(b"a"))
        await stage.settle()
        process.exit()
        await stage.settle()

    assert made.failing
