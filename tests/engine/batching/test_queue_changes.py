"""A queue whose batch size and policy change while requests wait in it."""

from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.batching.policies import Greedy, Window
from modelserver.engine.batching.queue import BatchQueue
from modelserver.engine.batching.request import Batch, Request
from modelserver.engine.wire.messages import Answer, Row


def request(name: str, count: int, arrived: float = 0.0) -> Request:
    return Request(name, [Row(f"{name}{place}", 0) for place in range(count)], [b""] * count, arrived)


def answer(batch: Batch) -> None:
    """Each instance is answered with the name of its request and its place there."""
    for parcel in batch.parcels:
        places = range(parcel.start, parcel.start + parcel.count)
        answers = [(Answer(0), f"{parcel.request.id}-{place}".encode()) for place in places]
        parcel.request.deliver(parcel.start, answers)


def bodies(request: Request) -> list[bytes]:
    return [answer[1] for answer in request.answers if answer is not None]


@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    returned=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_nothing_is_lost(counts, sizes, returned):
    """However the batch size changes, and whatever is put back, every instance is answered once, in a batch
    that is not too large.
    """
    queue = BatchQueue(8, Greedy(), 100, 1 << 20)
    requests = [request(f"r{number}", count) for number, count in enumerate(counts)]
    for item in requests:
        queue.put(item)
    for size, back in zip(sizes, returned, strict=False):
        taken = queue.take(0.0, 1)
        queue.reconfigure(size, Greedy())
        if taken is not None and back:
            queue.put_back(taken)
        elif taken is not None:
            answer(taken)
    while (batch := queue.take(0.0, 1)) is not None:
        assert 1 <= batch.size <= queue.batch_size
        answer(batch)

    assert (queue.requests, queue.instances, queue.nbytes) == (0, 0, 0)
    assert all(item.done for item in requests)
    assert [bodies(r) for r in requests] == [
        [f"{r.id}-{i}".encode() for i in range(len(r.rows))] for r in requests
    ]


def test_policy_follows_the_limits():
    queue = BatchQueue(8, Window(1000.0), 100, 1 << 20)
    queue.put(request("r", 2))
    assert queue.take(1.0, 1) is None
    queue.reconfigure(8, Greedy())

    batch = queue.take(1.0, 1)
    assert batch.size == 2
