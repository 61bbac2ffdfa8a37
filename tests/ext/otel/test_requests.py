import sys
import time
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from tests.ext.otel.spans import tracing

from modelserver.engine.batching.request import Batch, Parcel, Request
from modelserver.engine.wire.messages import Answer, Result, Row
from modelserver.ext.otel.requests import watch_with
from modelserver.surface.http.exchange import Target
from modelserver.surface.inference.routes import Route

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = (b"traceparent", f"00-{TRACE}-00f067aa0ba902b7-01".encode())
MODEL = SimpleNamespace(name="m", version="1.0")
REST = "POST /predictions/{name}"


class TracedExchange:
    """The part of an exchange that a watcher uses."""

    def __init__(self, headers=(PARENT,)):
        self.target = Target("/predictions/m", b"", "/predictions/m", Route("m", None))
        self.method = b"POST"
        self.request_id = "r"
        self.headers = list(headers)
        self.has_traceparent = bool(headers)
        self.watcher = None
        self.code: int | None = None
        self.started = time.monotonic() - 1.0

    def __str__(self):
        return REST

    def attributes(self):
        return {"http.route": self.target.route.template}

    def replace_header(self, name, value):
        self.headers = [pair for pair in self.headers if pair[0] != name] + [(name, value)]

    def note_trace(self, trace_id, note):
        note(self.request_id, trace_id)


def traced(headers=(PARENT,)):
    """A request that has arrived, and the spans."""
    made, store = tracing()
    exchange = TracedExchange(headers)
    exchange.watcher = watch_with(made)(exchange)
    return exchange, store


def calls_of(function, *arguments):
    """The names of all functions that a call runs, in order."""
    calls = []

    def note(frame, event, called):
        if event in {"call", "c_call"}:
            calls.append(called.__name__ if event == "c_call" else frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return calls[:-1]  # that of setprofile


def queued(exchange, rows=1):
    now = time.monotonic()
    request = Request("r", [Row("r", 1)] * rows, [b"x"] * rows, now)
    exchange.watcher.queued(request, MODEL)
    return request


def sent(*requests):
    batch = Batch([Parcel(request, 0, len(request.rows)) for request in requests], len(requests), "size")
    batch.sent(None, time.monotonic())
    return batch


def answered(batch):
    assert batch.trace is not None
    now = time.monotonic()
    result = Result(0, [Answer(1)] * batch.size, 0.001)
    batch.trace.answered(batch, result, now, now + 0.002)


@pytest.mark.parametrize(
    ("headers", "looks"),
    [((), ["getrandbits"]), ([(b"traceparent", PARENT[1][:-1] + b"0")], ["lower", "fullmatch"])],
    ids=["none", "of a caller that does not sample"],
)
def test_a_request_that_is_not_traced(headers, looks):
    made, store = tracing(ParentBased(TraceIdRatioBased(1e-9)))
    exchange = TracedExchange(headers)
    calls = [name for name in calls_of(watch_with(made), exchange) if name not in {"len", "<listcomp>"}]

    assert calls == ["watch", "sample", *looks]
    assert (exchange.watcher, exchange.headers, store.spans) == (None, list(headers), [])


def test_an_answer_ends_the_span():
    exchange, store = traced()
    request = queued(exchange)
    answered(sent(request))
    watcher = exchange.watcher
    watcher.replied(200, b"", "", b"")

    assert [span.name for span in store.spans] == ["queue", "batch", "handler", "answer", REST]
    span = store.named(REST)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert exchange.headers == [(b"traceparent", f"00-{TRACE}-{span.context.span_id:016x}-01".encode())]
    assert span.end_time - span.start_time >= 1_000_000_000
    assert [child.parent for child in store.spans[:2]] == [span.context] * 2
    assert store.noted == [("r", TRACE)]


@pytest.mark.parametrize(("status", "fails"), [(200, False), (404, False), (500, True), (503, True)])
def test_statuses_are_on_the_span(status, fails):
    exchange, store = traced()
    exchange.watcher.replied(status, b"", "", b"")

    span = store.named(REST)
    assert span.status.is_ok is not fails
    assert span.attributes["http.response.status_code"] == status


def test_an_answer_in_parts_has_an_event():
    for complete in (True, False):
        exchange, store = traced()
        watcher = exchange.watcher
        watcher.started(200, "", b"")
        watcher.part(b"a")
        watcher.ended(complete)

        span = store.named(REST)
        assert [event.name for event in span.events] == ["first part"]
        assert store.named("answer").start_time == span.events[0].timestamp
        assert span.status.is_ok is complete


def test_stream_of_tokens_has_the_time_of_its_first():
    """As an event and as an attribute."""
    exchange, store = traced()
    route = Route("m", url_path="v1/chat/completions", protocol="openai")
    exchange.target, exchange.body = Target("/v1/chat/completions", b"", "", route), b'{"model": "m"}'
    queued(exchange)
    exchange.watcher.started(200, "text/event-stream", b"")
    exchange.watcher.ended(True)
    span = store.named(REST)

    assert [event.name for event in span.events] == ["first token"]
    assert span.attributes["gen_ai.response.time_to_first_chunk"] >= 1
    assert span.attributes["gen_ai.request.model"] == "m"


def test_a_client_that_leaves():
    exchange, store = traced()
    request = queued(exchange)
    batch = sent(request)
    watcher = exchange.watcher
    watcher.left()
    names = [span.name for span in store.spans]
    answered(batch)
    watcher.replied(200, b"", "", b"")

    assert names == ["queue", REST]
    assert store.named(REST).attributes["error.type"] == "disconnected"
    assert [span.name for span in store.spans] == [*names, "batch", "handler"]


def test_a_request_that_is_cut():
    exchange, store = traced()
    first, second = queued(exchange), queued(exchange)
    answered(sent(first))
    answered(sent(second))
    exchange.watcher.replied(200, b"", "", b"")

    assert [span.name for span in store.spans].count("queue") == 2
    assert [span.name for span in store.spans].count("batch") == 2


def test_code_of_a_call_says_whether_it_failed():
    for code, fails in ((0, False), (5, False), (13, True)):
        exchange, store = traced()
        exchange.code = code
        exchange.watcher.replied(200, b"", "", b"")

        (span,) = store.spans
        assert span.attributes["rpc.grpc.status_code"] == code
        assert span.status.is_ok is not fails
