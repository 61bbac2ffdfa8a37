from types import SimpleNamespace
from unittest.mock import Mock

from tests.ext.otel.spans import tracing

from modelserver.engine.batching.request import Batch, Parcel, Request
from modelserver.engine.wire.messages import Answer, Result, Row
from modelserver.ext.otel.requests import TracedRequest

MODEL = SimpleNamespace(name="m", version="1.0")
SECOND = 1_000_000_000


def members(count):
    """Traced requests, each with a row in the queue since second 10."""
    made, store = tracing()
    traced, requests = [], []
    for number in range(count):
        watched = Mock(started=9.0, attributes=dict)
        one = TracedRequest(made, watched, (made.context(number + 1), None))
        request = Request(str(number), [Row("r", 1)], [b"x"], 10.0)
        one.queued(request, MODEL)
        traced.append(one)
        requests.append(request)
    return traced, requests, store


def batch_of(requests, at=11.0):
    batch = Batch([Parcel(request, 0, 1) for request in requests], len(requests), "delay", id="b")
    batch.sent(None, at)
    return batch


def test_spans_have_the_times_of_their_phases():
    """The handler's time ends with the answer, and its phases follow each other from its begin."""
    (traced,), requests, store = members(1)
    batch = batch_of(requests)
    batch.trace.answered(batch, Result(0, [Answer(1)], 2.0, (0.5, 1.0, 0.25), 3), 12.0, 15.0)

    start = traced.clock(0.0)
    times = {
        span.name: ((span.start_time - start) / SECOND, (span.end_time - start) / SECOND)
        for span in store.spans
    }
    assert times == {
        "queue": (10.0, 12.0),
        "batch": (11.0, 15.0),
        "handler": (13.0, 15.0),
        "preprocess": (13.0, 13.5),
        "inference": (13.5, 14.5),
        "postprocess": (14.5, 14.75),
    }
    assert store.named("batch").attributes == {
        "modelserver.model": "m",
        "modelserver.version": "1.0",
        "modelserver.batch.id": "b",
        "modelserver.batch.size": 1,
        "modelserver.batch.requests": 1,
        "modelserver.batch.reason": "delay",
    }
    assert store.named("handler").attributes["modelserver.batch.calls"] == 3


def test_clocks_that_disagree_are_bounded():
    (traced,), requests, store = members(1)
    batch = batch_of(requests)
    batch.trace.answered(batch, Result(0, [Answer(1)], 9.0, (5.0, 5.0, 0.0)), 12.0, 15.0)

    start, end = traced.clock(12.0), traced.clock(15.0)
    for name in ("handler", "preprocess", "inference"):
        assert start <= store.named(name).start_time <= store.named(name).end_time <= end
    assert "postprocess" not in {span.name for span in store.spans}


def test_requests_of_a_batch_share_its_span():
    traced, requests, store = members(3)
    plain = Request("p", [Row("p", 1)], [b"x"], 10.0)
    batch = batch_of([plain, *requests])
    parent = batch.trace.parent
    batch.trace.answered(batch, Result(0, [Answer(1)] * 4, 1.0), 12.0, 15.0)

    span, handler = store.named("batch"), store.named("handler")
    assert span.parent == traced[0].context
    assert [link.context for link in span.links] == [each.context for each in traced]
    assert span.attributes["modelserver.batch.requests"] == 4
    assert parent == f"00-{1:032x}-{handler.context.span_id:016x}-01"
    assert [each.batches for each in traced] == [[], [span.context], [span.context]]
    assert [each.name for each in store.spans].count("queue") == 3

    (traced,), (request,), store = members(1)
    batch = Batch([Parcel(request, 0, 1), Parcel(request, 0, 1)], 2, "size")
    batch.sent(None, 11.0)
    batch.trace.answered(batch, Result(0, [Answer(1)] * 2, 1.0), 12.0, 15.0)

    assert [link.context for link in store.named("batch").links] == [traced.context]


def test_failures_are_on_the_spans():
    _, requests, store = members(2)
    batch = batch_of(requests)
    batch.trace.answered(batch, Result(0, [Answer(1), Answer(1, failed=True)], 1.0), 12.0, 15.0)
    assert store.named("handler").status.description == "1 of 2 instances failed."
    assert store.named("batch").status.is_ok

    _, requests, store = members(1)
    batch = batch_of(requests)
    assert batch.failed(RuntimeError("it died")) == requests
    assert store.named("batch").status.description == "it died"
    assert [span.name for span in store.spans] == ["queue", "batch"]


def test_a_batch_that_is_sent_again():
    (traced,), requests, store = members(1)
    batch_of(requests).returned()
    batch = batch_of(requests, at=20.0)
    batch.trace.answered(batch, Result(0, [Answer(1)], 1.0), 21.0, 23.0)

    assert store.named("queue").end_time == traced.clock(21.0)
    assert store.named("batch").start_time == traced.clock(20.0)
