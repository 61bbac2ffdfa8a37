"""Calls: their messages, and those that nobody awaits any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.ext.grpc.calling import GREETING, FakeCall, around_calls, asking, connected, listening

from modelserver.errors import BadRequest, ServiceUnavailable
from modelserver.ext.grpc.calls import handlers
from modelserver.ext.grpc.codes import StatusCode
from modelserver.ext.grpc.http2 import frames
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.statuses import FAILED, tell_prediction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from modelserver.ext.grpc.calls import Served

NAME = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
_Asked = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
_Answer = message("org.pytorch.serve.grpc.inference.PredictionResponse")


def served(method: Any, told: list[int], name: str = "Predictions") -> Served:
    """What serves a method's calls; ``told`` gets the codes with which they end."""
    methods = dict.fromkeys(("Ping", "Predictions", "StreamPredictions", "StreamPredictions2"), method)
    return handlers(NAME, methods, tell_prediction, around_calls(told))[f"{NAME}/{name}"]


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_call_that_was_cancelled_before_it_began(cancelled: bool) -> None:
    """Nothing is asked of a model for it, and it is counted as cancelled."""
    asked: list[Any] = []
    told: list[int] = []

    async def predict(message: Any, _: Any) -> Any:
        asked.append(message)
        return message

    running = served(predict, told).begin(FakeCall(cancelled=cancelled), b"")

    if cancelled:
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        await running
    assert (len(asked), told) == ((0, [1]) if cancelled else (1, [0]))


async def test_a_call_that_is_cancelled_as_it_comes() -> None:
    """What asks and gives up at once asks nothing of a model, and is counted too."""
    asked: list[Any] = []
    told: list[int] = []

    async def predict(message: Any, _: Any) -> Any:
        asked.append(message)
        return message

    path = f"{NAME}/Predictions"
    async with listening({path: served(predict, told)}) as server:
        given_up = asking(path, b"") + frames.reset(1, frames.Code.CANCEL)
        async with connected(server) as (reader, writer):
            writer.write(GREETING + given_up + asking(path, b"", 3))
            while 0 not in told:
                await asyncio.wait_for(reader.read(1 << 16), 10)

    assert (len(asked), sorted(told)) == (1, [0, 1])


@pytest.mark.parametrize("size", [10, 1_000_000])
async def test_messages_know_their_bytes(size: int) -> None:
    """A large message is not serialized anew for whoever needs its bytes; its fields are as in any other."""
    body = _Asked(model_name="m", input={"data": bytes(size)}).SerializeToString()
    asked: list[Any] = []

    async def predict(message: Any, _: Any) -> Any:
        asked.append(message)
        return message

    await served(predict, []).begin(FakeCall(), body)

    (found,) = asked
    assert found.SerializeToString() == body
    assert size < 100 or found.SerializeToString() is body
    assert (found.model_name, dict(found.input), found.HasField("sequence_id")) == (
        "m",
        {"data": bytes(size)},
        False,
    )


async def test_one_answer() -> None:
    """It is sent, and the call ends well."""
    told: list[int] = []

    async def predict(asked: Any, _: Any) -> Any:
        return _Answer(prediction=asked.model_name.encode())

    call = FakeCall()
    await served(predict, told).begin(call, _Asked(model_name="m").SerializeToString())

    assert ([_Answer.FromString(sent).prediction for sent in call.sent], told) == ([b"m"], [0])
    assert call.ending == (StatusCode.OK, "", ())


@pytest.mark.parametrize("name", ["StreamPredictions", "StreamPredictions2"])
async def test_answers_in_parts(name: str) -> None:
    """Each is a message; a stream of requests is read until the client has no more."""

    async def talk(asked: Any, _: Any) -> AsyncIterator[Any]:
        names = [each.model_name async for each in asked] if name[-1] == "2" else [asked.model_name] * 2
        for each in names:
            yield _Answer(prediction=each.encode())

    bodies = [_Asked(model_name=each).SerializeToString() for each in "mm"]
    call, told = FakeCall(requests=bodies), list[int]()
    await served(talk, told, name).begin(call, b"" if name[-1] == "2" else bodies[0])

    assert ([_Answer.FromString(sent).prediction for sent in call.sent], told) == ([b"m"] * 2, [0])
    assert call.ending == (StatusCode.OK, "", ())


def refuse() -> None:
    raise ServiceUnavailable("later")


def break_down() -> None:
    raise ValueError("no word of this")


def misread() -> None:
    raise BadRequest("what?")


@pytest.mark.parametrize(
    ("fail", "code", "text"),
    [
        (refuse, StatusCode.UNAVAILABLE, "later\norg.pytorch.serve.http.ServiceUnavailableException"),
        (break_down, StatusCode.INTERNAL, FAILED),
        (misread, StatusCode.INVALID_ARGUMENT, "what?\norg.pytorch.serve.http.BadRequestException"),
    ],
)
async def test_failures(fail: Callable[[], None], code: StatusCode, text: str) -> None:
    """The end has the error's status, and the id of the request; what is unexpected is not told."""
    told: list[int] = []

    async def predict(_: Any, __: Any) -> Any:
        fail()

    call = FakeCall((("x-request-id", "mine"),))
    await served(predict, told).begin(call, b"")

    assert (call.sent, call.ending, told) == ([], (code, text, (("x-request-id", "mine"),)), [code])


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (FakeCall(), 1),
        (FakeCall(timeout=3600.0), 1),
        (FakeCall(timeout=0.0), 4),
        (FakeCall(timeout=0.0, unread=True), 8),
    ],
)
async def test_who_gives_up(call: FakeCall, code: int) -> None:
    """A call that ends at its deadline was too late; one whose client does not read took too much; any other
    that is cancelled was given up.
    """
    told: list[int] = []

    async def predict(_: Any, __: Any) -> Any:
        await asyncio.Event().wait()

    running = asyncio.ensure_future(served(predict, told).begin(call, b""))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert told == [code]


def test_other_methods() -> None:
    """A service has the methods that its proto has, no more and no fewer."""
    with pytest.raises(KeyError, match="Ping"):
        handlers(NAME, {}, tell_prediction, around_calls([]))
