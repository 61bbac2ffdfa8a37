import asyncio
import contextlib

import pytest
from tests.cycles import no_cycles
from tests.engine.pools.pools import contents, now, request, submit
from tests.waiting import until

from modelserver.engine.wire.messages import Returned
from modelserver.errors import DeadlineExceeded, ServiceUnavailable

pytestmark = pytest.mark.usefixtures("simulated_time")


async def test_full_or_empty_pool_refuses_and_counts_why(make, stage, counts):
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

    with pytest.raises(ServiceUnavailable):
        make(workers=0).submit(request(b"a"))
    assert counts("rejected")[2:] == [("no_worker",)]


async def test_refused_requests_leave_no_reference_cycles(make, stage):
    """A cycle would hold their bodies: gigabytes of them, while clients that are refused try again."""
    full = make(max_requests=1)
    full.submit(request(b"a"))
    empty = make(workers=0)
    with no_cycles():
        for pool in (full, empty):
            with contextlib.suppress(ServiceUnavailable):
                pool.submit(request(b"b"))


async def test_requests_are_refused_when_the_last_worker_is_abandoned(make, stage):
    made = make()
    waiting = request(b"a")
    made.submit(waiting)
    process = await stage.enter()
    process.output = "Traceback"
    process.fail_to_load("no", permanent=True)
    await stage.enter()

    assert isinstance(waiting.error, ServiceUnavailable)
    assert made.queue.requests == 0
    assert made.failure.startswith("no")
    assert not made.healthy
    with pytest.raises(ServiceUnavailable, match=r"Its workers fail: no$"):
        made.submit(request(b"b"))


async def test_requests_are_refused_after_three_failed_loads(make, stage):
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


async def test_worker_that_served_and_cannot_load_again_refuses_what_waits(pool, stage):
    first = await stage.enter()
    first.exit()
    second = await stage.enter(2)
    waiting = request(b"a")
    pool.submit(waiting)
    second.fail_to_load("the file is gone", permanent=True)
    await stage.settle()

    assert isinstance(waiting.error, ServiceUnavailable)
    assert pool.queue.requests == 0


async def test_refusal_names_the_version_that_the_client_named(make):
    """A client that named a version reads it in the text, with TorchServe's odd quote (reference 6.5)."""
    with pytest.raises(ServiceUnavailable, match=r'^Model "m" Version 1\.0" has no worker to serve'):
        make(0).submit(request(b"a"), "1.0")


async def test_deadline_in_the_queue_fails_the_request(make, stage, counts):
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


async def test_deadlines_of_many_leave_others_their_turn(make, counts, simulated_time):
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


async def test_request_cancelled_past_its_deadline_counts_as_expired(make, counts):
    made = make()
    requests = [request(b"a", deadline=now() + seconds) for seconds in (0.0, 0.001, 60.0)]
    submit(made, *requests)
    for each in requests:
        made.cancel(each)

    assert [isinstance(each.error, DeadlineExceeded) for each in requests] == [True, True, False]
    assert (len(counts("expired")), len(counts("cancelled"))) == (2, 1)
    assert made.statistics().pending == 0


async def test_deadline_while_running_fails_the_request(pool, stage):
    """A request whose deadline passes while it runs is failed then, its late answer is dropped (F34)."""
    late, other = request(b"a", deadline=now() + 0.01), request(b"b")
    submit(pool, late, other)
    await asyncio.sleep(0.03)
    assert isinstance(late.error, DeadlineExceeded)

    stage.processes[0].answer()
    assert contents(other) == [b"b"]
    assert contents(late) == [None]
    assert not stage.processes[0].killed


async def test_deadline_that_is_met_leaves_no_timer(pool, stage, counts):
    quick = request(b"a", deadline=now() + 0.02)
    submit(pool, quick, request(b"b"))
    stage.processes[0].answer()
    await asyncio.sleep(0.03)

    assert (quick.error, contents(quick)) == (None, [b"a"])
    assert counts("expired") == []


async def test_cancelled_request_leaves_the_queue(make, stage, counts):
    """A cancelled request leaves the queue and is never computed (F24)."""
    made = make()
    gone, stays = request(b"a"), request(b"b")
    submit(made, gone, stays)
    heard = []
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


async def test_drain_ends_with_a_batch_that_comes_back_for_nobody(pool, stage):
    process = await stage.enter()
    running = request(b"a", b"b", deadline=now() + 0.01)
    pool.submit(running)
    draining = asyncio.create_task(pool.drain(60))
    await until(lambda: running.done)
    await stage.settle()
    assert not draining.done()
    process.say(Returned(0))

    assert await asyncio.wait_for(draining, 5) is True


async def test_drain_ends_with_batches_that_are_taken_back_for_nobody(make, stage, monkeypatch):
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


async def test_drain_waits_for_what_a_dead_worker_had_not_started(make, stage):
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
    process.batches_started = process.batches[2].sequence
    process.exit()
    fresh = await stage.enter(2)
    assert not draining.done()
    fresh.load()
    fresh.answer()

    assert await asyncio.wait_for(draining, 5) is True
    assert [each.error is None for each in requests] == [False, False, True]


async def test_drain_sends_open_windows(make, stage):
    made = make(policy="window", max_delay=60.0)
    process = await stage.enter()
    process.load()
    made.submit(request(b"a"))
    draining = asyncio.create_task(made.drain(5))
    await stage.enter()
    process.answer()

    assert await draining is True


async def test_what_runs_in_part_is_not_passed_on(make, stage):
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


async def test_what_has_no_time_is_passed_on(make, stage):
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
    await until(lambda: len(old.admission._passed_on) == 2)
    old.cancel(leaving)
    await until(lambda: after.batches)
    after.answer()
    before.answer()
    await retiring

    assert (contents(running), contents(waiting), contents(leaving)) == ([b"a", b"b"], [b"c"], [None])
    assert not old.admission._deadlines
    assert not new.admission._deadlines
