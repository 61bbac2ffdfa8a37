import pytest

from modelserver.engine.batching.policies import Window
from modelserver.engine.batching.queue import QueueFull, TicketQueue
from modelserver.engine.batching.request import Request
from modelserver.engine.wire.messages import Row


def queue(idle: list[int], batch_size: int = 4) -> TicketQueue:
    return TicketQueue(batch_size, Window(1.0), 10, 1000, lambda: idle[0])


def request(rows: int = 1, key: object = None) -> Request:
    return Request("id", [Row("id", 1)] * rows, [b"x"] * rows, 0.0, key=key)


def is_refused(sut: TicketQueue, sent: Request) -> bool:
    """Whether there is no ticket for it; nothing of it may be kept then."""
    before = sut.requests
    try:
        sut.put(sent)
    except QueueFull as full:
        return full.reason == "no_ticket" and sut.requests == before
    return False


def test_request_without_an_idle_worker_is_refused():
    """While all workers are busy every request is refused at once (reference 8.8)."""
    idle = [0]
    sut = queue(idle)

    assert is_refused(sut, request())
    assert is_refused(sut, request(9))
    idle[0] = 1
    assert not is_refused(sut, request())


def test_requests_fill_the_batches_that_would_be_made():
    sut = queue([2], batch_size=2)

    assert [is_refused(sut, request()) for _ in range(5)] == [False] * 4 + [True]

    sut = queue([2])

    assert not is_refused(sut, request(3))
    assert not is_refused(sut, request(key="other"))
    assert is_refused(sut, request(2))
    assert not is_refused(sut, request(1))


def test_larger_request_is_accepted_alone_within_the_bounds():
    """A request of several batches is taken in where nothing else waits: it would never be otherwise."""
    sut = queue([1])

    assert not is_refused(sut, request(9))
    assert is_refused(sut, request(9))

    sut = queue([20], batch_size=1)
    for _ in range(10):
        sut.put(request())

    with pytest.raises(QueueFull) as refused:
        sut.put(request())
    assert refused.value.reason == "requests"
