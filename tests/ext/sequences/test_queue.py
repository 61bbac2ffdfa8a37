import math

import pytest
from tests.opcodes import opcodes_of

from modelserver.engine.batching.queue import ImmediateKey, QueueFull, UnsharedKey
from modelserver.engine.batching.request import Request, SequencedRequest, SequenceMark
from modelserver.engine.pools.spec import PoolLimits
from modelserver.engine.wire.messages import Row, SequenceHeaders
from modelserver.ext.sequences import queue as sequences
from modelserver.ext.sequences.queue import SequenceLimits, SequenceLost, SequenceQueue

LIMITS = SequenceLimits(max_idle=10.0, max_age=100.0, max_sequences=4, max_waiting=2)


def queue(batch_size=4, policy="greedy", limits=LIMITS):
    return SequenceQueue(PoolLimits(batch_size, policy, 5.0, 10, 1000), limits, SequenceHeaders())


@pytest.fixture
def sut():
    return queue()


def step(name, now=0.0, rows=1, *, starts=False, ends=False, key=None, deadline=None, body=b"x"):
    mark = SequenceMark(name, starts, ends)
    return SequencedRequest(
        name, [Row(name, 1)] * rows, [body] * rows, now, mark=mark, key=key, deadline=deadline
    )


def test_request_of_a_sequence_has_its_times():
    first = step("a", now=1.0)
    queue().put(first)

    assert (first.is_first, first.began) == (True, None)

    first.handled(3.5, 2.0)

    assert (first.is_first, first.began, first.queued) == (True, 3.5, 2.5)


def put(target, *requests):
    for request in requests:
        target.put(request)


def arrive(target, *requests):
    """New sequences get the only worker, ``w``."""
    put(target, *requests)
    target.place(["w"], 1)


def ids(batch):
    return [parcel.request.id for parcel in batch.parcels]


def names(requests):
    return [request.id for request in requests]


def run_first_steps(target, *names, worker="w", now=0.0):
    put(target, *(step(name, now) for name in names))
    target.place([worker], 1)
    batch = target.take_for(worker, now)
    assert ids(batch) == list(names)
    assert target.finish(batch, now) == []


def test_explanations_wait_for_nobody_and_teach_the_policy_nothing():
    seen = []
    sut = queue(policy="window")
    sut.policy.arrived = lambda count, now: seen.append(count)
    arrive(sut, step("a", rows=2), step("b", key=ImmediateKey(None)), step("c", key=ImmediateKey(None)))

    explanations = sut.take_for("w", 0.0)
    assert ids(explanations) == ["b", "c"]
    assert sut.take_for("w", 0.0) is None
    predictions = sut.take_for("w", 5.0)
    assert ids(predictions) == ["a"]
    assert (explanations.at_once, predictions.at_once) == (True, False)
    assert seen == [2]


def test_batch_waits_for_its_window():
    sut = queue(policy="window")
    arrive(sut, step("a", 1.0))

    assert sut.take_for("w", 2.0) is None
    assert sut.due_at("w", 2.0) == 6.0
    arrive(sut, step("b", 2.0, deadline=3.0))
    assert ids(sut.take_for("w", 2.0)) == ["a", "b"]

    sut = queue(policy="window")
    arrive(sut, step("a"))
    sut.flushing = True

    assert sut.due_at("w", 0.0) == 0.0
    batch = sut.take_for("w", 0.0)
    assert batch.reason == "flush"


def test_sequences_are_spread_and_nobody_else_is_waited_for():
    sut = queue(batch_size=8, policy="window", limits=SequenceLimits(10.0, max_sequences=4))
    put(sut, step("a"), step("b"), step("c"))
    sut.place(["v", "w"], 2)

    assert sut.take_for("w", 0.0) is None
    batch = sut.take_for("v", 0.0)
    assert ids(batch) == ["a", "c"]
    assert batch.reason == "size"

    sut = queue(limits=SequenceLimits(10.0, max_sequences=3))
    put(sut, *(step(name) for name in "abc"))
    sut.place(["w"], 2)

    assert sut.living("w") == 2
    sut.place(["w", "v"], 2)
    assert sut.living("v") == 1


def test_sequence_is_lost_with_its_worker_once_it_has_started(sut):
    """With its worker a sequence ends: waiting requests are given back, and later ones are refused (F39)."""
    run_first_steps(sut, "a", "b")
    put(sut, running := step("a"))
    batch = sut.take_for("w", 0.0)
    put(sut, waiting := step("a"))

    assert sut.lose("w", 5.0) == [waiting]
    assert running.waiting == 0
    for name in "ab":
        with pytest.raises(SequenceLost):
            sut.put(step(name, 6.0))
        assert sut.knows(name)
    assert not sut.knows("c")
    assert sut.requests == 0
    assert sut.finish(batch, 7.0) == []

    sut = queue()
    arrive(sut, step("a"))
    put(sut, step("b"))

    assert sut.lose("w", 1.0) == []
    sut.place(["v"], 2)
    assert ids(sut.take_for("v", 1.0)) == ["a", "b"]


def test_lost_ids_are_few(monkeypatch):
    monkeypatch.setattr(sequences, "MAX_LOST", 1)
    sut = queue(limits=SequenceLimits(10.0, max_sequences=2))
    for first, second in ("ab", "cd"):
        run_first_steps(sut, first, second)
        sut.lose("w", 0.0)

    put(sut, step("a"))
    with pytest.raises(SequenceLost):
        sut.put(step("d"))


def test_too_many_requests_or_bytes_are_refused(sut):
    """Beyond ``max_waiting`` they are refused; the one that runs does not count."""
    arrive(sut, step("a"))
    sut.take_for("w", 0.0)
    put(sut, step("a"), step("a"))

    with pytest.raises(QueueFull) as refused:
        sut.put(step("a"))
    assert refused.value.reason == "sequence_queue"

    sut = queue()
    put(sut, step("a", body=b"x" * 900))

    with pytest.raises(QueueFull) as refused:
        sut.put(step("b", body=b"x" * 101))
    assert refused.value.reason == "bytes"
    assert len(sut.lines) == 1


def test_idle_sequence_ends(sut):
    """A sequence of which nothing waits or runs for ``max_idle`` ends, and its place is free."""
    run_first_steps(sut, *"abcd", now=1.0)
    put(sut, step("b", 2.0))

    assert sut.next_end() == 11.0
    assert sut.expire(10.9) == []
    assert len(sut.lines) == 4
    assert sut.expire(11.0) == []
    assert len(sut.lines) == 1
    put(sut, again := step("a", 12.0))
    assert again.is_first

    sut = queue()
    arrive(sut, step("a"))
    batch = sut.take_for("w", 0.0)
    sut.expire(50.0)
    sut.finish(batch, 50.0)

    assert sut.next_end() == 60.0
    sut.expire(59.0)
    put(sut, later := step("a", 59.0))
    assert not later.is_first


def test_sequence_ends_after_its_lifetime(sut):
    """A sequence older than ``max_age`` ends: its running step may end, waiting requests are given back."""
    arrive(sut, step("a"))
    batch = sut.take_for("w", 99.0)
    put(sut, waiting := step("a", 99.0))

    assert sut.expire(101.0) == []
    assert sut.next_end() == math.inf
    sut.finish(batch, 102.0)
    assert sut.next_end() == 100.0
    assert sut.expire(102.0) == [waiting]
    assert len(sut.lines) == 0


def test_client_closes_a_sequence(sut):
    """After its last request a sequence accepts no other, and ends."""
    run_first_steps(sut, "a")
    put(sut, step("a", ends=True))

    with pytest.raises(QueueFull) as refused_while_it_waits:
        sut.put(step("a"))
    batch = sut.take_for("w", 0.0)
    with pytest.raises(QueueFull) as refused_while_it_runs:
        sut.put(step("a"))
    sut.finish(batch, 0.0)
    put(sut, again := step("a"))

    assert refused_while_it_waits.value.reason == "sequence_closed"
    assert refused_while_it_runs.value.reason == "sequence_closed"
    assert again.is_first


def test_handler_ends_a_sequence_that_runs(sut):
    """After its running step, and until then it accepts no other."""
    arrive(sut, step("a"), waiting := step("a"))
    batch = sut.take_for("w", 0.0)

    assert sut.end("w", ["a"]) == []
    with pytest.raises(QueueFull):
        sut.put(step("a"))
    assert sut.finish(batch, 0.0) == [waiting]
    assert not sut.lines


def test_removed_requests_leave_their_sequences_in_order(sut):
    run_first_steps(sut, "a", "b")
    put(sut, gone := step("a", 5.0))
    sut.remove(gone)

    assert sut.next_end() == 10.0
    sut.expire(10.0)
    assert [name for name in "ab" if name in sut.lines] == ["a"]
    assert sut.next_end() == 15.0

    sut = queue(2)
    arrive(sut, first := step("a", key=1), step("a", key=2), step("b", key=2), step("c", key=2))
    sut.remove(first)

    assert [ids(sut.take_for("w", 0.0)) for _ in range(2)] == [["a", "b"], ["c"]]
    assert sut.take_for("w", 0.0) is None


def test_queue_is_drained_wholly_or_of_what_has_no_worker(sut):
    """Requests that would need a worker to begin with, or all."""
    run_first_steps(sut, "a")
    put(sut, step("a"), step("b"))

    assert names(sut.drain_unplaced()) == ["b"]
    assert ids(sut.take_for("w", 0.0)) == ["a"]

    sut = queue()
    run_first_steps(sut, "a")
    put(sut, step("a", rows=2), step("b"), Request("q", [Row("q", 0)], [b""], 0.0, key=UnsharedKey()))

    assert sorted(names(sut.drain())) == ["a", "b", "q"]
    assert (sut.requests, sut.instances, sut.nbytes) == (0, 0, 0)
    assert len(sut.lines) == 0


def test_ticket_needs_room_at_an_idle_worker():
    sut = queue(batch_size=1)
    run_first_steps(sut, "a")

    assert sut.would_run(step("a"), ["w"])
    assert not sut.would_run(step("a"), ["v"])
    assert sut.would_run(step("new"), ["v"])
    assert not sut.would_run(step("new"), [])
    put(sut, step("a"))
    assert not sut.would_run(step("a"), ["w"])
    assert not sut.would_run(step("new"), ["w"])


def many(count):
    """With sequences at a worker, each with a key of its own."""
    sut = queue(limits=SequenceLimits(max_idle=10.0, max_age=100.0, max_sequences=count))
    arrive(sut, *(step(str(number), key=number, body=b"") for number in range(count)))
    return sut


def test_many_keys_cost_as_much_as_few():
    def serve(waiting):
        sut = many(waiting)

        def some():
            for number in range(10):
                batch = sut.take_for("w", 0.0)
                assert ids(batch) == [str(number)]
                sut.finish(batch, 0.0)

        return opcodes_of(some)

    # Ids are made in blocks: one of two runs may have made a block.
    assert min(serve(2000), serve(2000)) <= min(serve(20), serve(20))


def test_many_end_without_being_compared(monkeypatch):
    sut = many(100)
    while (batch := sut.take_for("w", 0.0)) is not None:
        sut.finish(batch, 0.0)
    compared = []

    def is_same(one, other):
        compared.append(other)
        return one is other

    monkeypatch.setattr(sequences.Line, "__eq__", is_same)
    sut.expire(1000.0)

    assert len(sut.lines) == 0
    assert len(compared) <= 100
