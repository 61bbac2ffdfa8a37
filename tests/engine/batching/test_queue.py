"""The queue by examples; its laws under random events are in test_queue_properties.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.opcodes import opcodes_of

from modelserver.engine.batching.policies import Greedy, Window
from modelserver.engine.batching.queue import BatchQueue, ImmediateKey, QueueFull, TicketQueue, UnsharedKey
from modelserver.engine.batching.request import Request
from modelserver.engine.wire.messages import Answer, Row


def request(name, count=1, at=0.0, *, key="k", deadline=None, size=1):
    rows = [Row(f"{name}{i}", size) for i in range(count)]
    return Request(name, rows, [b"x" * size] * count, at, key=key, deadline=deadline)


def queue(batch_size=4, policy=None, **limits):
    return BatchQueue(
        batch_size, policy or Window(1.0), limits.get("max_requests", 100), limits.get("max_bytes", 1000)
    )


def names(batch):
    rows, bodies = batch.contents()
    assert len(rows) == len(bodies) == batch.size
    return [row.request_id for row in rows]


def counters(line):
    return line.requests, line.instances, line.nbytes


def test_requests_of_thousands_of_instances_are_removed():
    """Also one of which a batch was sent; each waits as one parcel, so that none makes the next one slow."""
    line = queue(batch_size=1, max_bytes=1 << 30)
    waiting = [request(f"r{i}", 10_000) for i in range(50)]
    for each in waiting:
        line.put(each)
    assert names(line.take(0.0, 1)) == ["r00"]
    assert [each.waiting for each in waiting] == [1] * 50
    for each in waiting:
        line.remove(each)

    assert counters(line) == (0, 0, 0)
    assert line.take(0.0, 1) is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_batches_of_several_workers_come_back_in_any_order(order):
    line = queue(batch_size=2)
    line.put(request("big", 3))
    for i in range(3):
        line.put(request(f"r{i}"))
    batches = [line.take(5.0, 1) for _ in range(3)]
    for i in order:
        line.put_back(batches[i])

    assert counters(line) == (4, 6, 6)
    again = [name for _ in range(3) for name in names(line.take(5.0, 1))]
    assert again == ["big0", "big1", "big2", "r00", "r10", "r20"]
    assert counters(line) == (0, 0, 0)


def test_keys_do_not_mix_and_the_oldest_goes_first():
    """Requests of different keys never share a batch; between keys the oldest is served first (F22)."""
    line = queue(policy=Greedy())
    line.put(request("a", key="x"))
    line.put(request("b", key="y"))
    line.put(request("c", key="x"))

    assert names(line.take(0.0, 1)) == ["a0", "c0"]
    assert names(line.take(0.0, 1)) == ["b0"]


def test_older_due_lane_goes_before_a_younger_full_one():
    line = queue()
    line.put(request("old", at=0.0, key="x"))
    for i in range(8):
        line.put(request(f"n{i}", at=0.5, key="y"))

    assert names(line.take(0.5, 1)) == ["n00", "n10", "n20", "n30"]
    assert names(line.take(1.0, 1)) == ["old0"]


def test_only_full_leaves_what_is_merely_due():
    line = queue()
    line.put(request("a", 3, key="x"))
    line.put(request("b", 3, at=1.0, key="y"))
    assert not line.has_full()
    line.put(request("c", at=1.0, key="y"))

    assert line.has_full()
    assert names(line.take(50.0, 0, only_full=True)) == ["b0", "b1", "b2", "c0"]
    assert not line.has_full()
    assert line.take(50.0, 0, only_full=True) is None


def test_who_travels_alone_waits_for_nobody():
    line = queue()
    line.put(request("shared"))
    line.put(request("one", key=UnsharedKey()))
    line.put(request("two", key=UnsharedKey()))

    assert line.due(0.0, 1) == 0.0
    assert [names(line.take(0.0, 1)), names(line.take(0.0, 1))] == [["one0"], ["two0"]]
    assert line.take(0.0, 1) is None
    assert line.due(0.0, 1) == 1.0


def test_body_over_the_byte_bound_is_taken_when_alone():
    """A single request larger than the byte bound is served, for it could never be otherwise."""
    line = queue(max_bytes=5)
    line.put(request("a", size=50))

    assert counters(line) == (1, 1, 50)
    with pytest.raises(QueueFull):
        line.put(request("b"))


@pytest.mark.parametrize(
    ("policy", "flushing", "reason"), [(Window(1.0), True, "flush"), (Greedy(), False, "idle")]
)
def test_batch_that_is_not_full_says_why_it_went(policy, flushing, reason):
    """At shutdown nothing waits; without a window an idle worker is the reason (F26)."""
    line = queue(policy=policy)
    line.put(request("a"))
    line.flushing = flushing
    batch = line.take(0.0, 1)

    assert names(batch) == ["a0"]
    assert batch.reason == reason


def test_drain_gives_each_waiting_request_once():
    line = queue()
    requests = [request("a", 9), request("b", key="z"), request("c")]
    for each in requests:
        line.put(each)

    drained = line.drain()

    assert len(drained) == 3
    assert set(drained) == set(requests)
    assert counters(line) == (0, 0, 0)
    assert line.drain() == []


def test_explanations_wait_for_nobody():
    """They go as soon as a worker is idle, together if several wait; predictions wait for their window."""
    line = queue()
    for name, key in (("p", "k"), ("e1", ImmediateKey("k")), ("e2", ImmediateKey("k"))):
        line.put(request(name, key=key))

    assert line.due(0.0, 1) <= 0.0
    assert names(line.take(0.0, 1)) == ["e10", "e20"]
    assert line.take(0.0, 1) is None
    assert line.due(0.0, 1) == 1.0


def test_explanations_do_not_change_the_policy():
    seen = []
    policy = Window(1.0)
    policy.arrived = lambda count, now: seen.append(count)
    line = queue(policy=policy)
    line.put(request("e", key=ImmediateKey("k")))
    line.put(request("p", 2))

    assert seen == [2]


def test_what_is_past_its_deadline_is_in_no_batch():
    line = queue(policy=Greedy())
    late, large, good = request("l", deadline=1.0), request("m", 6, deadline=0.5), request("g", deadline=9.0)
    for each in (late, large, good):
        line.put(each)

    assert names(line.take(1.0, 1)) == ["g0"]
    assert counters(line) == (0, 0, 0)
    assert (late.waiting, large.waiting) == (0, 0)
    assert line.take(1.0, 1) is None
    line.remove(late)


@pytest.mark.parametrize("policy", [Greedy(), Window(0.0)])
def test_batches_of_many_keys_cost_as_much_as_of_few(policy):
    def serve(waiting):
        sut = queue(4, policy, max_requests=waiting, max_bytes=waiting)
        for number in range(waiting):
            sut.put(request(str(number), key=number))

        def some():
            for number in range(10):
                assert not sut.has_full()
                assert names(sut.take(0.0, 1)) == [f"{number}0"]

        return opcodes_of(some)

    # Ids are made in blocks: one of two runs may have made a block.
    assert min(serve(2000), serve(2000)) <= min(serve(20), serve(20))


@pytest.mark.parametrize("which", [0, -1])
def test_removal_from_a_long_queue_costs_as_much_as_from_a_short_one(which):
    def remove(waiting):
        sut = queue(4, max_requests=waiting, max_bytes=waiting)
        requests = [request(str(number)) for number in range(waiting)]
        for each in requests:
            sut.put(each)
        work = opcodes_of(lambda: sut.remove(requests[which]))
        assert counters(sut) == (waiting - 1, waiting - 1, waiting - 1)
        return work

    assert remove(3000) < 3 * remove(30)


def test_batch_that_comes_back_goes_before_what_came_after_it():
    sut = queue(2, Greedy())
    for number, key in enumerate("abcab"):
        sut.put(request(str(number), key=key))
    first, second = sut.take(0.0, 1), sut.take(0.0, 1)
    assert (names(first), names(second)) == (["00", "30"], ["10", "40"])
    sut.put(request("5", key="a"))
    for batch in (second, first):
        sut.put_back(batch)

    taken = [names(sut.take(0.0, 1)) for _ in range(4)]
    assert taken == [["00", "30"], ["10", "40"], ["20"], ["50"]]


def answer(batch):
    """Each instance is answered with the name of its request and its place there."""
    for parcel in batch.parcels:
        places = range(parcel.start, parcel.start + parcel.count)
        answers = [(Answer(0), f"{parcel.request.id}-{place}") for place in places]
        parcel.request.deliver(parcel.start, answers)


@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    returned=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_nothing_is_lost_when_the_batch_size_changes(counts, sizes, returned):
    """Whatever is put back: every instance is answered once, in a batch that is not too large."""
    sut = queue(8, Greedy())
    requests = [request(f"r{number}", count) for number, count in enumerate(counts)]
    for each in requests:
        sut.put(each)
    for size, back in zip(sizes, returned, strict=False):
        taken = sut.take(0.0, 1)
        sut.reconfigure(size, Greedy())
        if taken is not None and back:
            sut.put_back(taken)
        elif taken is not None:
            answer(taken)
    while (batch := sut.take(0.0, 1)) is not None:
        assert 1 <= batch.size <= sut.batch_size
        answer(batch)

    assert counters(sut) == (0, 0, 0)
    assert all(each.done for each in requests)
    assert [[text for _, text in each.answers] for each in requests] == [
        [f"{each.id}-{place}" for place in range(len(each.rows))] for each in requests
    ]


def test_policy_follows_the_limits():
    sut = queue(8, Window(1000.0))
    sut.put(request("r", 2))
    assert sut.take(1.0, 1) is None
    sut.reconfigure(8, Greedy())

    assert sut.take(1.0, 1).size == 2


def tickets(idle, batch_size=4):
    return TicketQueue(batch_size, Window(1.0), 10, 1000, lambda: idle[0])


def is_refused(sut, count=1, key="k"):
    """Whether there is no ticket for a request; nothing of it may be kept then."""
    before = sut.requests
    try:
        sut.put(request("id", count, key=key))
    except QueueFull as full:
        return full.reason == "no_ticket" and sut.requests == before
    return False


def test_request_without_an_idle_worker_is_refused():
    """While all workers are busy every request is refused at once (reference 8.8)."""
    idle = [0]
    sut = tickets(idle)

    assert is_refused(sut)
    assert is_refused(sut, 9)
    idle[0] = 1
    assert not is_refused(sut)


def test_requests_fill_the_batches_that_would_be_made():
    sut = tickets([2], batch_size=2)

    assert [is_refused(sut) for _ in range(5)] == [False] * 4 + [True]

    sut = tickets([2])

    assert not is_refused(sut, 3)
    assert not is_refused(sut, key="other")
    assert is_refused(sut, 2)
    assert not is_refused(sut, 1)


def test_larger_request_is_accepted_alone_within_the_bounds():
    """A request of several batches is taken in where nothing else waits: it would never be otherwise."""
    sut = tickets([1])

    assert not is_refused(sut, 9)
    assert is_refused(sut, 9)

    sut = tickets([20], batch_size=1)
    for number in range(10):
        sut.put(request(str(number)))

    with pytest.raises(QueueFull) as refused:
        sut.put(request("one more"))
    assert refused.value.reason == "requests"
