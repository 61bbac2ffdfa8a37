import json
from types import SimpleNamespace
from typing import Any

import pytest

from modelserver.engine.batching.request import Request
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.wire.messages import BODY, INSTANCE, Answer, Row
from modelserver.errors import DeadlineExceeded
from modelserver.surface.http.exchange import Exchange, Target
from modelserver.surface.inference.replies import Reply
from modelserver.surface.inference.routes import Route
from modelserver.surface.inference.v1 import V1, Instances


class RecordedExchange(Exchange):
    __slots__ = ("parts",)

    def __init__(self) -> None:
        super().__init__(Target("/p", b"", "/p", Route("m", protocol="v1")), b"POST", "1.1")
        self.parts: list[Any] = []

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return []

    def packed_headers(self) -> bytes:
        return b"\x90"

    def reply(
        self, status: int, body: bytes, content_type: str = "", extra: bytes = b"", phrase: str = ""
    ) -> None:
        self.parts.append((status, body, extra))

    def begin(self, status: int, content_type: str = "", extra: bytes = b"", phrase: str = "") -> None:
        self.parts.append((status, extra))

    def send(self, part: bytes) -> None:
        self.parts.append(part)

    def end(self, complete: bool = True) -> None:
        self.parts.append(complete)

    def unsent(self) -> int:
        return 0


@pytest.fixture
def exchange():
    return RecordedExchange()


@pytest.fixture
def metrics():
    return ServerMetrics()


def counted(metrics: ServerMetrics, name: str) -> dict[str, float]:
    """The series of a counter that have counted anything, by their last label."""
    text = b"".join(metrics.pieces([name])).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    series = (line.removesuffix(".0").rpartition(" ") for line in lines)
    return {labels.split('"')[-2]: float(value) for labels, _, value in series if float(value)}


@pytest.fixture
def reply(exchange, metrics, monkeypatch):
    """To a request of V1, which is answered two seconds after it came."""
    model = SimpleNamespace(metrics=metrics.model("m", "1.0"), exposes_errors=False, batches=False)
    monkeypatch.setattr("modelserver.surface.inference.replies.monotonic", lambda: 2.0)
    off_loop = None
    return Reply(exchange, model, V1(RequestLimits(), off_loop), Instances([]), off_loop)


def ended(*answers: tuple[Answer, bytes], kind: int = BODY) -> Request:
    """A request whose rows have these answers, from one batch."""
    request = Request("id", [Row("id", 0, kind)] * len(answers), [b""] * len(answers), 0.0)
    request.batch_id, request.batch_size = "b", 4
    request.handled(0.5, 1.0)
    request.deliver(0, list(answers))
    return request


def test_one_answer_is_the_body(reply, exchange):
    reply.whole(ended((Answer(2, 201, headers=[("x-own", "1")]), b"ok")))

    ((status, body, extra),) = exchange.parts
    assert (status, body) == (201, b"ok")
    assert extra.decode().splitlines() == [
        "x-batch-id: b",
        "x-batch-size: 4",
        "server-timing: queue;dur=500.000, inference;dur=1000.000",
        "x-own: 1",
    ]


def test_instances_are_joined_until_one_fails(reply, exchange):
    reply.joined(ended((Answer(1), b"1"), (Answer(3), b"[2]"), kind=INSTANCE))
    reply.joined(ended((Answer(1), b"1"), (Answer(3, 500, failed=True), b"bad"), kind=INSTANCE))

    (status, body, _), (failed, error, _) = exchange.parts
    assert (status, json.loads(body)) == (200, {"predictions": [1, [2]]})
    assert (failed, json.loads(error)["error"]) == (500, "instances[1]: bad")


def test_codec_that_fails_costs_no_request_its_answer(reply, exchange, caplog):
    """The log says which request, and why."""

    class Broken(Instances):
        def encode(self, model, request: Request) -> tuple[bytes, str, bytes]:
            raise ZeroDivisionError("no mean of nothing")

    reply.parsed = Broken([])
    reply.joined(ended((Answer(1), b"1"), kind=INSTANCE))

    ((status, error, _),) = exchange.parts
    assert (status, json.loads(error)["error"]) == (500, "The server failed to answer; its log says why.")
    assert "Request id: the answers have no document" in caplog.text
    assert "no mean of nothing" in caplog.text


def test_parts_come_before_the_last(reply, exchange):
    request = ended((Answer(1), b"c"))
    reply.part(request, Answer(1, 202), b"a")
    reply.part(request, Answer(1), b"b")
    reply.whole(request)

    (status, _), *rest = exchange.parts
    assert (status, rest) == (202, [b"a", b"b", b"c", True])


def test_a_late_failure_breaks_off(reply, exchange, metrics, caplog):
    request = ended((Answer(3, 500, failed=True), b"bad"))
    reply.part(request, Answer(1), b"a")
    reply.whole(request)

    assert exchange.parts[-1] is False
    assert "broke off after its first part: bad" in caplog.text
    assert counted(metrics, "modelserver_broken_off_total") == {"1.0": 1}
    assert counted(metrics, "modelserver_requests_total") == {"5xx": 1}


def test_answers_are_counted_by_class_of_status(reply, metrics):
    reply.whole(ended((Answer(2, 201), b"ok")))
    reply.whole(ended((Answer(2, 302), b"ok")))
    reply.joined(ended((Answer(1), b"1"), (Answer(1, 404), b"1"), kind=INSTANCE))
    request = ended((Answer(1), b"c"))
    reply.part(request, Answer(1, 202), b"a")
    reply.whole(request)

    assert counted(metrics, "modelserver_requests_total") == {"2xx": 2, "3xx": 1, "4xx": 1}
    assert counted(metrics, "modelserver_errors_total") == {}


def test_errors_are_counted_by_type(reply, exchange, metrics):
    """So is a status of 500 or more that a handler chooses, with a type of its own."""
    raised = Answer(3, 503, failed=True, cause="KeyError: 'x' (handler.py, line 3, in handle)")
    rejected = Answer(3, 400, failed=True, cause="PredictionException: no")
    for answer in (raised, Answer(3, 507, failed=True), rejected, Answer(2, 599)):
        reply.whole(ended((answer, b"bad")))
    errors = reply.model.metrics.requests.errors
    assert errors.last.message == "The handler answered with status 599."
    lost = Request("lost", [Row("lost", 0)], [b""], 0.0)
    lost.fail(DeadlineExceeded("too late"))
    reply.whole(lost)

    status, body, extra = exchange.parts[-1]
    assert (status, b"too late" in body, extra) == (504, True, b"")
    assert counted(metrics, "modelserver_requests_total") == {"4xx": 1, "5xx": 4}
    types = ("KeyError", "HandlerError", "DeadlineExceeded", "Status")
    assert counted(metrics, "modelserver_errors_total") == dict.fromkeys(types, 1)
    assert (errors.last.status, errors.last.message, errors.last.request_id) == (504, "too late", "lost")


class Eventful(V1):
    """A protocol whose streams of events end with one."""

    def ending(self, error: bytes) -> bytes | None:
        return b"data: " + error


@pytest.mark.parametrize(("content_type", "is_whole"), [("text/event-stream", True), ("text/plain", False)])
def test_only_events_end_with_an_event(reply, exchange, content_type, is_whole):
    """Another stream of the same protocol is broken off: its client would take the error for content."""
    reply.codec = Eventful(RequestLimits(), reply.off_loop)  # type: ignore[arg-type]
    reply.part(ended(), Answer(1, content_type=content_type), b"a")
    reply.whole(ended((Answer(3, 500, failed=True), b"bad")))

    assert exchange.parts[-1] is is_whole
    assert (b'"error": "bad"' in exchange.parts[-2]) is is_whole
