import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.ext.grpc.calling import FakeCall

from modelserver.errors import ServiceUnavailable
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.statuses import FAILED, StatusCode, prediction_status
from modelserver.ext.grpc.watching import WatchedRequest, WholeCall
from modelserver.surface.watching import Watcher

ANY = None
REQUEST = SimpleNamespace(id="r", batch_id="b", batch_size=2, queued=0.001, handler_time=0.002)
LINES = (
    b"grpc-status: 0\r\nx-batch-id: b\r\nx-batch-size: 2\r\n"
    b"server-timing: queue;dur=1.000, inference;dur=2.000\r\n"
)
_Request = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
_Answer = message("org.pytorch.serve.grpc.inference.PredictionResponse")
TYPE = "application/protobuf; proto=org.pytorch.serve.grpc.inference.PredictionResponse"


class Notes(Watcher):
    """Keeps the events, and the request."""

    def __init__(self):
        self.events: list[Any] = []
        self.watched = None

    def watch(self, watched):
        self.watched = watched
        return self

    def queued(self, request, model):
        self.events.append(("queued", request))

    def replied(self, status, body, content_type, lines):
        self.events.append(("replied", status, body, content_type, lines))

    def started(self, status, content_type, lines):
        self.events.append(("started", status, content_type))

    def part(self, part):
        self.events.append(("part", part))

    def ended(self, complete, lines=b""):
        self.events.append(("ended", complete, lines))

    def left(self):
        self.events.append(("left",))


def begin(notes):
    request = _Request(model_name="m", model_version="2")
    watch = None if notes is None else notes.watch
    return WatchedRequest(watch, "/service/Predictions", request, FakeCall(), prediction_status)


def test_request_and_answer_reach_the_watcher():
    notes = Notes()
    with begin(notes) as watched:
        watched.queued(REQUEST, ANY)
        answer = _Answer(prediction=b"ab")
        watched.answered(answer, REQUEST)

    assert notes.events == [("queued", REQUEST), ("replied", 200, answer.SerializeToString(), TYPE, LINES)]
    seen = notes.watched
    assert (seen.method, seen.target.text, seen.code) == (b"gRPC", "/service/Predictions", 0)
    assert (seen.target.route.model, seen.target.route.version) == ("m", "2")
    assert _Request.FromString(seen.body).model_name == "m"


def test_parts_reach_the_watcher_and_can_be_joined():
    notes = Notes()
    with begin(notes) as watched:
        for part in (b"a", b"b"):
            watched.part(_Answer(prediction=part, sequence_id="s"))
        watched.answered(None, REQUEST)

    started, *parts, ended = notes.events
    assert (started, ended) == (("started", 200, TYPE), ("ended", True, LINES))
    joined = _Answer.FromString(notes.watched.join([part for _, part in parts]))
    assert (joined.prediction, joined.sequence_id) == (b"ab", "s")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ServiceUnavailable("later"), *prediction_status(ServiceUnavailable("later"))),
        (ValueError("secret"), StatusCode.INTERNAL, FAILED),
        (asyncio.CancelledError(), None, ""),
        (GeneratorExit(), None, ""),
    ],
)
def test_error_that_leaves_the_context_is_the_requests(error, code, text):
    notes = Notes()
    with pytest.raises(type(error)), begin(notes):
        raise error

    if code is None:
        assert notes.events == [("left",)]
    else:
        ((_, _, body, _, lines),) = notes.events
        assert (body, lines) == (text.encode(), f"grpc-status: {int(code)}\r\n".encode())
        assert notes.watched.code == code


def test_what_is_not_watched_costs_nothing():
    watched = begin(None)
    watched.part(ANY)
    watched.answered(ANY, ANY)
    with pytest.raises(ServiceUnavailable), watched:
        raise ServiceUnavailable("later")

    call = FakeCall()

    assert WholeCall.of(lambda _: None, "/s/m", call) is None
    assert call.on_queued is None


def test_whole_call_is_watched_once():
    notes, call = Notes(), FakeCall((("traceparent", "old"),))
    whole = WholeCall.of(notes.watch, "/inference.GRPCInferenceService/ModelInfer", call)
    assert whole.request_id == ""
    notes.watched.replace_header(b"traceparent", b"new")
    for name in ("first", "second"):
        call.on_queued(SimpleNamespace(id=name), ANY)
    assert whole.request_id == "first"
    whole.finish(StatusCode.NOT_FOUND, "first")

    assert str(notes.watched) == "inference.GRPCInferenceService/ModelInfer"
    assert notes.watched.attributes()["rpc.method"] == "ModelInfer"
    assert notes.watched.headers == [(b"traceparent", b"new")]
    assert [event for event, *_ in notes.events] == ["queued", "queued", "replied"]
    assert (notes.watched.code, notes.watched.request_id) == (5, "first")
    assert call.on_queued is None
