import asyncio
from dataclasses import replace

import pytest
from tests.engine.pools.pools import contents, now, request, submit
from tests.waiting import until

from modelserver.engine.pools import dispatch as dispatch_module
from modelserver.engine.pools.dispatch import BACKLOG
from modelserver.engine.wire.arena import ProtocolError
from modelserver.engine.wire.messages import Answer, Cancelled, Measurement, Parts, Proceed
from modelserver.errors import DeadlineExceeded, HandlerError, InternalError, WorkerDied

pytestmark = pytest.mark.usefixtures("simulated_time")


async def test_requests_of_one_turn_share_a_batch(pool, stage):
    first, second = request(b"a"), request(b"b")
    submit(pool, first, second)
    process = stage.processes[0]
    assert [len(batch.rows) for batch in process.batches] == [2]

    process.answer(b"A", b"B")
    assert (contents(first), contents(second)) == ([b"A"], [b"B"])
    assert first.batch_id == second.batch_id != ""
    assert (first.batch_size, first.handler_time) == (2, 0.01)


async def test_large_request_is_spread_over_batches_and_joined(pool, stage):
    """A request above the maximum is spread over batches and joined (F25)."""
    large = request(b"a", b"b", b"c", b"d", b"e")
    pool.submit(large)
    process = stage.processes[0]
    for _ in range(3):
        await stage.enter()
        process.answer()

    assert contents(large) == [b"a", b"b", b"c", b"d", b"e"]
    assert large.done


async def test_batch_grows_while_the_worker_is_busy(pool, stage):
    submit(pool, request(b"a", b"b"))
    process = stage.processes[0]
    third = request(b"c")
    pool.submit(third)
    await stage.enter()
    assert len(process.batches) == 1

    pool.submit(request(b"d"))
    assert len(process.batches) == 2
    assert pool.statistics().batches_in_flight == 2


async def test_a_batch_that_never_started_is_put_back_once(pool, stage):
    """A request of a worker that was killed goes to the next one, and to no third (F21, F39)."""
    first, second = request(b"a"), request(b"b")
    submit(pool, first)
    stage.processes[0].batches_started = 0
    stage.processes[0].exit("was killed by SIGKILL")
    (await stage.enter(2)).load()
    stage.processes[1].answer()
    assert (contents(first), first.error) == ([b"a"], None)

    submit(pool, second)
    for number in (1, 2):
        stage.processes[number].batches_started = 0
        stage.processes[number].exit("was killed by SIGKILL")
        (await stage.enter(number + 2)).load()
        await stage.settle()
    assert isinstance(second.error, WorkerDied)


async def test_batch_that_cannot_be_sent_fails_its_requests(pool, stage, monkeypatch):
    process = await stage.enter()

    def refuse(message, bodies=()):
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


async def test_batch_that_is_not_full_leaves_at_the_end_of_its_window(make, stage):
    made = make(policy="window", max_delay=0.05)
    process = await stage.enter()
    process.load()
    began = now()
    made.submit(request(b"a"))
    await stage.enter()
    assert process.batches == []
    await until(lambda: process.batches)

    assert now() - began == pytest.approx(0.05, abs=0.003)


async def test_wrong_number_of_answers_kills_the_worker(pool, stage):
    """A worker that miscounts loses its batch and its life (F19)."""
    sent = request(b"a", b"b")
    pool.submit(sent)
    process = stage.processes[0]
    process.answer(b"only one")

    assert isinstance(sent.error, HandlerError)
    assert process.killed


async def test_dead_worker_fails_its_running_batch_and_passes_on_the_other(pool, stage):
    """Its running batch fails, the unbegun one is served by its successor, each once (F39)."""
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


@pytest.fixture
async def far(make, stage, spec):
    """A pool whose batches may run twice, and the process of its worker on another machine."""
    stage.away = 0.001
    pool = make()
    pool.crew.spec = replace(spec, idempotent=True)
    pool.crew.resize(0)
    pool.crew.resize(1)
    process = await stage.enter(2)
    process.load()
    return pool, process


async def test_what_may_run_twice_is_tried_once_more(far, stage):
    pool, first = far
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


async def test_what_clients_have_a_part_of_is_not_tried_again(far, stage):
    pool, first = far
    streamed, waiting = request(b"a"), request(b"b")
    for each in (streamed, waiting):
        each.on_part = lambda request, answer, part: None
    submit(pool, streamed, waiting)
    await stage.settle()
    first.say(Parts([first.batches[0].sequence], [0], [Answer(1)]), [b"x"])
    first.exit("is out of reach")
    second = await stage.enter(3)
    second.load()
    second.answer()

    assert isinstance(streamed.error, WorkerDied)
    assert contents(waiting) == [b"b"]


async def test_batches_and_waits_are_counted(pool, stage, counts):
    submit(pool, request(b"a", b"b"))
    own = Measurement("Own", 1.0, "Count", "counter", [("k", "v")], "id")
    stage.processes[0].answer(calls=3, phases=(0.1, 0.2, 0.3), metrics=[own])

    size, requests, capacity, reason, _, phases = counts("finished")[0]
    assert (size, requests, capacity, reason, phases) == (2, 1, 2, "size", (0.1, 0.2, 0.3))
    assert len(counts("waited")) == 1
    assert counts("isolated") == [(0,)]
    assert counts("handler_metric") == [("Own", 1.0, "Count", "counter", [("k", "v")], "id")]
    assert counts("loaded")[0][0] == "W-9000-m_1.0"


def parts(sequence, *texts, wait=False):
    answers = [Answer(len(text)) for text in texts]
    return Parts([sequence] * len(texts), list(range(len(texts))), answers, wait), list(texts)


async def test_parts_go_to_their_requests(pool, stage):
    got = []
    first, second = request(b"a"), request(b"b")
    for each in (first, second):
        each.on_part = lambda sent, answer, part: got.append((sent, answer.size, part))
    submit(pool, first, second)
    process = stage.processes[0]
    process.say(*parts(0, b"one", b"zwei"))
    process.say(Parts([0, 0], [1, 7], [Answer(1), Answer(1)]), [b"2", b"?"])
    process.answer(b"A", b"B")

    assert got == [(first, 3, b"one"), (second, 4, b"zwei"), (second, 1, b"2")]
    assert (contents(first), contents(second)) == ([b"A"], [b"B"])


async def test_one_message_has_parts_of_several_batches(pool, stage):
    """Those of a batch that is not running are dropped."""
    got = []
    first, second = request(b"a", b"b"), request(b"c", b"d")
    for each in (first, second):
        each.on_part = lambda sent, answer, part: got.append((sent, part))
    submit(pool, first, second)
    message = Parts([0, 9, 1], [0, 0, 1], [Answer(3), Answer(2), Answer(4)])
    stage.processes[0].say(message, [b"one", b"no", b"zwei"])

    assert got == [(first, b"one"), (second, b"zwei")]


async def test_request_that_cannot_take_parts_fails(pool, stage):
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


async def test_worker_is_notified_of_clients_that_leave(pool, stage):
    running, waiting = request(b"a"), request(b"b")
    got = []
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


async def test_worker_is_notified_of_deadlines(pool, stage):
    late, done = request(b"a", deadline=now() + 0.01), asyncio.Event()
    late.on_done = lambda _: done.set()
    pool.submit(late)
    process = stage.processes[0]
    await done.wait()
    await stage.settle()

    assert isinstance(late.error, DeadlineExceeded)
    assert Cancelled(0, [0]) in [message for message, _ in process.received]


async def test_a_worker_waits_for_slow_clients(pool, stage):
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


async def test_clients_are_waited_for_once(pool, stage, monkeypatch):
    monkeypatch.setattr(dispatch_module, "PATIENCE", 0.03)
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
