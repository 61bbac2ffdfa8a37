"""The payload log of gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.ext.grpc.calling import FakeCall

from modelserver.errors import ServiceUnavailable
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.statuses import tell_prediction
from modelserver.ext.grpc.watched.payloads import PayloadWatch
from modelserver.ext.grpc.watched.watching import Watched, Watches
from modelserver.ext.payloads.log import Bounds

if TYPE_CHECKING:
    from modelserver.ext.payloads.event import Event

_Answer = message("org.pytorch.serve.grpc.inference.PredictionResponse")
CALL = FakeCall((("ce-id", "own"),))
REQUEST: Any = None


class Log:
    """Keeps the events."""

    requests = responses = True
    bounds = Bounds()

    def __init__(self) -> None:
        self.events: list[Event] = []

    def put(self, event: Event) -> None:
        self.events.append(event)

    @property
    def answers(self) -> list[bytes]:
        """The predictions of the answers that were logged."""
        found = [
            _Answer.FromString(bytes(event.body)) for event in self.events if "Response" in event.content_type
        ]
        return [answer.prediction for answer in found]


@pytest.fixture
def log() -> Any:
    """Of requests and answers."""
    return Log()


def begin(log: Any) -> Watched:
    """A request of a service with this log."""
    asked = message("org.pytorch.serve.grpc.inference.PredictionsRequest")(model_name="m")
    return Watches([PayloadWatch(log)], tell_prediction).begin("/service/Predictions", asked, CALL)


def test_request_and_answer_have_one_id(log: Log) -> None:
    """The client's; both say which message they are, and which batch it was."""
    with begin(log) as watched:
        watched.answered(_Answer(prediction=b"ab"), REQUEST, "batch")

    assert {event.id for event in log.events} == {"own"}
    assert [event.content_type.rpartition(".")[2] for event in log.events] == [
        "PredictionsRequest",
        "PredictionResponse",
    ]
    assert [event.about.get("batchid") for event in log.events] == [None, "batch"]
    assert log.answers == [b"ab"]


def test_failures_are_no_answers(log: Log) -> None:
    """The request is logged alone, also if its answer had begun."""
    watched = begin(log)
    watched.sent(_Answer(prediction=b"a"))
    with pytest.raises(ServiceUnavailable), watched:
        raise ServiceUnavailable("later")

    assert (len(log.events), log.answers) == (1, [])


def test_parts_are_logged_as_one_answer(log: Log) -> None:
    """With the other fields of the last one."""
    with begin(log) as watched:
        for part in (b"a", b"b"):
            watched.sent(_Answer(prediction=part, sequence_id="s"))
        watched.answered(None, REQUEST)

    assert (len(log.events), log.answers) == (2, [b"ab"])
    assert _Answer.FromString(bytes(log.events[1].body)).sequence_id == "s"
