from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from tests.opcodes import opcodes_of

from modelserver.engine.batching.policies import Greedy, Policy, Window
from modelserver.engine.batching.queue import ImmediateKey, QueueFull, UnsharedKey
from modelserver.engine.batching.request import Batch, Request, SequencedRequest, SequenceMark
from modelserver.engine.wire.messages import Row, SequenceHeaders
from modelserver.ext.sequences import queue as sequences
from modelserver.ext.sequences.queue import (
    SequenceLimits,
    SequenceLost,
    SequenceQueue,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMITS = SequenceLimits(max_idle=10.0, max_age=100.0, max_sequences=4, max_waiting=2)


def queue(
    batch_size: int = 4, policy: Policy | None = None, limits: SequenceLimits = LIMITS
) -> SequenceQueue:
    return SequenceQueue(batch_size, policy or Greedy(), 10, 1000, limits, SequenceHeaders())


def step(
    name: str,
    now: float = 0.0,
    rows: int = 1,
    *,
    starts: bool = False,
    ends: bool = False,
    key: object = None,
    deadline: float | None = None,
    body: bytes = b"x",
) -> SequencedRequest:
    mark = SequenceMark(name, starts, ends)
    return SequencedRequest(
        name, [Row(name, 1)] * rows, [body] * rows, now, mark=mark, key=key, deadline=deadline
    )


def test_request_of_a_sequence_has_its_times() -> None:
    """They are those of any request: that it is the first of its sequence is noted apart."""
    first = step("a", now=1.0)
    queue().put(first)

    assert (first.is_first, first.began) == (True, None)

    first.handled(3.5, 2.0)

    assert (first.is_first, first.began, first.queued) == (True, 3.5, 2.5)


def put(target: SequenceQueue, *requests: Request) -> None:
    for request in requests:
        target.put(request)


def ids(batch: Batch | None) -> list[str]:
    assert batch is not None
    return [parcel.request.id for parcel in batch.parcels]


def names(requests: Iterable[Request]) -> list[str]:
    return [request.id for request in requests]


def run_first_steps(target: SequenceQueue, *names: str, worker: str = "w", now: float = 0.0) -> None:
    """Lets one step of each sequence run at the worker."""
    put(target, *(step(name, now) for name in names))
    target.place([worker], 1)
    batch = target.take_for(worker, now)
    assert ids(batch) == list(names)
    assert batch is not None
    assert target.finish(batch, now) == []


# Order, and who shares a batch


def test_explanations_wait_for_nobody_and_teach_the_policy_nothing() -> None:
    """They go as soon as their worker is idle, and neither their arrivals nor their cost are predictions'."""
    seen: list[int] = []
    policy = Window(5.0)
    policy.arrived = lambda count, now: seen.append(count)  # type: ignore[method-assign]
    sut = queue(policy=policy)
    put(sut, step("a", rows=2), step("b", key=ImmediateKey(None)), step("c", key=ImmediateKey(None)))
    sut.place(["w"], 1)

    explanations = sut.take_for("w", 0.0)
    assert ids(explanations) == ["b", "c"]
    assert sut.take_for("w", 0.0) is None
    predictions = sut.take_for("w", 5.0)
    assert ids(predictions) == ["a"]
    assert explanations is not None
    assert predictions is not None
    assert (explanations.at_once, predictions.at_once) == (True, False)
    assert seen == [2]


def test_batch_waits_for_its_window() -> None:
    """A batch that could still grow waits for its window, but not past a deadline in it."""
    sut = queue(policy=Window(5.0))
    put(sut, step("a", 1.0))
    sut.place(["w"], 1)

    assert sut.take_for("w", 2.0) is None
    assert sut.due_at("w", 2.0) == 6.0
    put(sut, step("b", 2.0, deadline=3.0))
    sut.place(["w"], 1)
    assert ids(sut.take_for("w", 2.0)) == ["a", "b"]


def test_nobody_else_can_come() -> None:
    """A batch with all the sequences that its worker may have does not wait for others."""
    sut = queue(batch_size=8, policy=Window(5.0), limits=SequenceLimits(10.0, max_sequences=4))
    put(sut, step("a"), step("b"), step("c"))
    sut.place(["v", "w"], 2)

    assert sut.take_for("w", 0.0) is None
    batch = sut.take_for("v", 0.0)
    assert ids(batch) == ["a", "c"]
    assert batch is not None
    assert batch.reason == "size"


def test_flushing_waits_for_nothing() -> None:
    """A server that is about to stop waits for nothing more."""
    sut = queue(policy=Window(5.0))
    put(sut, step("a"))
    sut.place(["w"], 1)
    sut.flushing = True

    assert sut.due_at("w", 0.0) == 0.0
    batch = sut.take_for("w", 0.0)
    assert batch is not None
    assert batch.reason == "flush"


# Workers


def test_new_sequences_are_spread() -> None:
    """Each goes to the worker that has fewest, and stays there."""
    sut = queue()
    put(sut, *(step(name) for name in "abcd"))
    sut.place(["v", "w"], 2)

    assert ids(sut.take_for("v", 0.0)) == ["a", "c"]
    assert ids(sut.take_for("w", 0.0)) == ["b", "d"]


def test_worker_gets_its_share_of_sequences() -> None:
    """A worker gets no more than its share, rounded up; the rest waits for the other workers."""
    sut = queue(limits=SequenceLimits(10.0, max_sequences=3))
    put(sut, *(step(name) for name in "abc"))
    sut.place(["w"], 2)

    assert sut.living("w") == 2
    sut.place(["w", "v"], 2)
    assert sut.living("v") == 1


def test_sequence_is_lost_with_its_worker() -> None:
    """With its worker a sequence ends: waiting requests are given back, and later ones are refused (F39)."""
    sut = queue()
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
    assert batch is not None
    assert sut.finish(batch, 7.0) == []


def test_what_had_not_begun_is_not_lost() -> None:
    """A sequence of which the worker had got nothing goes elsewhere, before those that came later."""
    sut = queue()
    put(sut, step("a"))
    sut.place(["w"], 1)
    put(sut, step("b"))

    assert sut.lose("w", 1.0) == []
    sut.place(["v"], 2)
    assert ids(sut.take_for("v", 1.0)) == ["a", "b"]


def test_lost_ids_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number is limited, so clients cannot fill the memory."""
    monkeypatch.setattr(sequences, "MAX_LOST", 1)
    sut = queue(limits=SequenceLimits(10.0, max_sequences=2))
    for first, second in ("ab", "cd"):
        run_first_steps(sut, first, second)
        sut.lose("w", 0.0)

    put(sut, step("a"))
    with pytest.raises(SequenceLost):
        sut.put(step("d"))


# Bounds


def test_too_many_requests_of_a_sequence_are_refused() -> None:
    """Beyond ``max_waiting`` they are refused; the one that runs does not count."""
    sut = queue()
    put(sut, step("a"))
    sut.place(["w"], 1)
    sut.take_for("w", 0.0)
    put(sut, step("a"), step("a"))

    with pytest.raises(QueueFull) as refused:
        sut.put(step("a"))
    assert refused.value.reason == "sequence_queue"


def test_too_many_bytes_are_refused() -> None:
    """The bodies of all sequences share one bound, and a refused request begins no sequence."""
    sut = queue()
    put(sut, step("a", body=b"x" * 900))

    with pytest.raises(QueueFull) as refused:
        sut.put(step("b", body=b"x" * 101))
    assert refused.value.reason == "bytes"
    assert len(sut.lines) == 1


# Ends


def test_idle_sequence_ends() -> None:
    """A sequence of which nothing waits or runs for ``max_idle`` ends, and its place is free."""
    sut = queue()
    run_first_steps(sut, *"abcd", now=1.0)
    put(sut, step("b", 2.0))

    assert sut.next_end() == 11.0
    assert sut.expire(10.9) == []
    assert len(sut.lines) == 4
    assert sut.expire(11.0) == []
    assert len(sut.lines) == 1
    put(sut, again := step("a", 12.0))
    assert again.is_first


def test_idle_counts_from_the_answer() -> None:
    """A step that runs for long does not make its sequence idle."""
    sut = queue()
    put(sut, step("a"))
    sut.place(["w"], 1)
    batch = sut.take_for("w", 0.0)
    sut.expire(50.0)
    assert batch is not None
    sut.finish(batch, 50.0)

    assert sut.next_end() == 60.0
    sut.expire(59.0)
    put(sut, later := step("a", 59.0))
    assert not later.is_first


def test_sequence_ends_after_its_lifetime() -> None:
    """A sequence older than ``max_age`` ends: its running step may end, waiting requests are given back."""
    sut = queue()
    put(sut, step("a"))
    sut.place(["w"], 1)
    batch = sut.take_for("w", 99.0)
    put(sut, waiting := step("a", 99.0))

    assert sut.expire(101.0) == []
    assert sut.next_end() == math.inf
    assert batch is not None
    sut.finish(batch, 102.0)
    assert sut.next_end() == 100.0
    assert sut.expire(102.0) == [waiting]
    assert len(sut.lines) == 0


def test_sequence_without_a_lifetime_goes_on() -> None:
    """Without a ``max_age`` the life of a busy sequence is unlimited."""
    sut = queue(limits=SequenceLimits(10.0))
    put(sut, step("a"))

    assert sut.next_end() == math.inf
    assert sut.expire(1e9) == []


def test_handler_ends_a_running_one() -> None:
    """One of which a step runs ends after it, and takes no more requests meanwhile."""
    sut = queue()
    put(sut, step("a"), waiting := step("a"))
    sut.place(["w"], 1)
    batch = sut.take_for("w", 0.0)

    assert sut.end("w", ["a"]) == []
    with pytest.raises(QueueFull):
        sut.put(step("a"))
    assert batch is not None
    assert sut.finish(batch, 0.0) == [waiting]
    assert len(sut.lines) == 0


def test_client_ends() -> None:
    """After its last request a sequence accepts no other, and ends."""
    sut = queue()
    run_first_steps(sut, "a")
    put(sut, step("a", ends=True))

    with pytest.raises(QueueFull) as refused_while_it_waits:
        sut.put(step("a"))
    batch = sut.take_for("w", 0.0)
    with pytest.raises(QueueFull) as refused_while_it_runs:
        sut.put(step("a"))
    assert batch is not None
    sut.finish(batch, 0.0)
    put(sut, again := step("a"))

    assert refused_while_it_waits.value.reason == "sequence_closed"
    assert refused_while_it_runs.value.reason == "sequence_closed"
    assert again.is_first


def test_what_is_past_its_deadline_is_in_no_batch() -> None:
    """Its failure may be reported a moment later; the next request of its sequence has its turn, and
    no counter includes it.
    """
    sut = queue()
    run_first_steps(sut, "a")
    put(sut, late := step("a", rows=2, deadline=1.0), step("a"), lone := step("b", deadline=0.5), step("c"))
    sut.place(["w"], 1)

    assert ids(sut.take_for("w", 1.0)) == ["a", "c"]
    assert (sut.requests, sut.instances, sut.nbytes) == (0, 0, 0)
    assert (late.waiting, lone.waiting) == (0, 0)
    assert lone.mark.id not in sut.lines
    assert sut.take_for("w", 1.0) is None


def test_removed_from_a_sequence_that_rests() -> None:
    """A request that was taken back was a sign of life, and the sequences end in the order of theirs."""
    sut = queue()
    run_first_steps(sut, "a", "b")
    put(sut, gone := step("a", 5.0))
    sut.remove(gone)

    assert sut.next_end() == 10.0
    sut.expire(10.0)
    assert [name for name in "ab" if name in sut.lines] == ["a"]
    assert sut.next_end() == 15.0


def test_drained_queue_is_empty() -> None:
    """Everything that waits comes out, once each, and no sequence is left."""
    sut = queue()
    run_first_steps(sut, "a")
    put(sut, step("a", rows=2), step("b"), Request("q", [Row("q", 0)], [b""], 0.0, key=UnsharedKey()))

    assert sorted(names(sut.drain())) == ["a", "b", "q"]
    assert (sut.requests, sut.instances, sut.nbytes) == (0, 0, 0)
    assert len(sut.lines) == 0


def test_only_what_has_no_worker_is_drained() -> None:
    """Only requests that would need a worker to begin with are drained."""
    sut = queue()
    run_first_steps(sut, "a")
    put(sut, step("a"), step("b"))

    assert names(sut.drain_unplaced()) == ["b"]
    assert ids(sut.take_for("w", 0.0)) == ["a"]


def test_ticket_needs_room_at_an_idle_worker() -> None:
    """A ticket is for a sequence that rests at an idle worker with room, or a new one for such a worker."""
    sut = queue(batch_size=1)
    run_first_steps(sut, "a")

    assert sut.would_run(step("a"), ["w"])
    assert not sut.would_run(step("a"), ["v"])
    assert sut.would_run(step("new"), ["v"])
    assert not sut.would_run(step("new"), [])
    put(sut, step("a"))
    assert not sut.would_run(step("a"), ["w"])
    assert not sut.would_run(step("new"), ["w"])


def many(count: int) -> SequenceQueue:
    """With sequences at a worker, each with a key of its own."""
    sut = queue(limits=SequenceLimits(max_idle=10.0, max_age=100.0, max_sequences=count))
    put(sut, *(step(str(number), key=number, body=b"") for number in range(count)))
    sut.place(["w"], 1)
    return sut


def test_many_keys_cost_as_much_as_few() -> None:
    """However many sequences wait with keys of their own, the next batch is found with the same work."""

    def serve(waiting: int) -> int:
        sut = many(waiting)

        def some() -> None:
            for number in range(10):
                batch = sut.take_for("w", 0.0)
                assert ids(batch) == [str(number)]
                assert batch is not None
                sut.finish(batch, 0.0)

        return opcodes_of(some)

    # Ids are made in blocks: one of two runs may have made a block.
    assert min(serve(2000), serve(2000)) <= min(serve(20), serve(20))


def test_many_end_without_being_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences that become too old, and are idle for too long, at once: each is looked at, not each pair."""
    sut = many(100)
    while (batch := sut.take_for("w", 0.0)) is not None:
        sut.finish(batch, 0.0)
    compared: list[object] = []

    def is_same(one: object, other: object) -> bool:
        compared.append(other)
        return one is other

    monkeypatch.setattr(sequences.Line, "__eq__", is_same)
    sut.expire(1000.0)

    assert len(sut.lines) == 0
    assert len(compared) <= 100


def test_next_step_joins_those_with_its_key() -> None:
    """If the next step of a sequence has another key, it joins those with that key, in its old place."""
    sut = queue(2)
    put(sut, first := step("a", key=1), step("a", key=2), step("b", key=2), step("c", key=2))
    sut.place(["w"], 1)
    sut.remove(first)

    assert [ids(sut.take_for("w", 0.0)) for _ in range(2)] == [["a", "b"], ["c"]]
    assert sut.take_for("w", 0.0) is None
