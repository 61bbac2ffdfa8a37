"""The payload log of gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.grpc.calling import FakeCall

from modelserver.errors import ServiceUnavailable
from modelserver.grpc.inference import InferenceService
from modelserver.grpc.messages import message
from modelserver.grpc.payloads import LoggedInferenceService
from modelserver.payloads.log import Bounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from modelserver.payloads.event import Event

_Answer = message("org.pytorch.serve.grpc.inference.PredictionResponse")
CALL = FakeCall((("ce-id", "own"),))


class Log:
    """Keeps the events."""

    requests = responses = True
    bounds = Bounds()

    def __init__(self) -> None:
        self.events: list[Event] = []

    def put(self, event: Event) -> None:
        self.events.append(event)


@pytest.fixture
def log() -> Any:
    """Of requests and answers."""
    return Log()


@pytest.fixture
def service(log: Any, monkeypatch: pytest.MonkeyPatch) -> LoggedInferenceService:
    """One whose model answers in two parts, of which the second may be a failure."""

    async def predict(_self: Any, asked: Any, _call: Any) -> Any:
        if asked.model_name == "none":
            raise ServiceUnavailable("later")
        return _Answer(prediction=b"ab")

    async def parts(_self: Any, asked: Any, _call: Any, _method: str) -> AsyncIterator[Any]:
        yield _Answer(prediction=b"a")
        if asked.model_name == "none":
            raise ServiceUnavailable("later")
        yield _Answer(prediction=b"b")

    monkeypatch.setattr(InferenceService, "predict", predict)
    monkeypatch.setattr(InferenceService, "parts", parts)
    registry: Any = None
    return LoggedInferenceService(registry, log)


def asked(name: str = "m") -> Any:
    """A request."""
    return message("org.pytorch.serve.grpc.inference.PredictionsRequest")(model_name=name)


def answers(log: Log) -> list[bytes]:
    """The predictions of the answers that were logged."""
    found = [
        _Answer.FromString(bytes(event.body)) for event in log.events if "Response" in event.content_type
    ]
    return [answer.prediction for answer in found]


async def test_request_and_answer_have_one_id(service: LoggedInferenceService, log: Log) -> None:
    """The client's; both say which message they are."""
    await service.predict(asked(), CALL)

    assert {event.id for event in log.events} == {"own"}
    assert [event.content_type.rpartition(".")[2] for event in log.events] == [
        "PredictionsRequest",
        "PredictionResponse",
    ]
    assert answers(log) == [b"ab"]


async def test_failures_are_no_answers(service: LoggedInferenceService, log: Log) -> None:
    """The request is logged alone."""
    with pytest.raises(ServiceUnavailable):
        await service.predict(asked("none"), CALL)

    assert (len(log.events), answers(log)) == (1, [])


async def test_parts_are_logged_as_one_answer(service: LoggedInferenceService, log: Log) -> None:
    """Each request of a stream for itself; one that failed after its first part has none."""

    async def requests() -> AsyncIterator[Any]:
        for name in ("m", "none", "m"):
            yield asked(name)

    parts = [part async for part in service.converse(requests(), CALL)]
    assert (len(parts), len(log.events), answers(log)) == (6, 5, [b"ab", b"ab"])
