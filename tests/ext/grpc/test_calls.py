"""Calls: their messages, and those that nobody awaits any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.ext.grpc.calling import GREETING, FakeCall, around_calls, asking, connected, listening

from modelserver.errors import BadRequest, ServiceUnavailable
from modelserver.ext.grpc.calls import method_handlers
from modelserver.ext.grpc.http2 import frames
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.statuses import FAILED, StatusCode, prediction_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.ext.grpc.calls import MethodHandler

METHODS = ("Ping", "Predictions", "StreamPredictions", "StreamPredictions2")
NAME = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
_Request = message("org.pytorch.serve.grpc.inference.PredictionsRequest")


def served(method: Any, codes: list[int], name: str = "Predictions") -> MethodHandler:
    """What serves a method's calls; ``codes`` gets those with which they end."""
    methods = dict.fromkeys(METHODS, method)
    return method_handlers(NAME, methods, prediction_status, around_calls(codes))[f"{NAME}/{name}"]


@pytest.mark.parametrize("cancelled", [True, False])
async def test_call_cancelled_before_it_began_asks_no_model(cancelled: bool) -> None:
    """No request is sent to a model, and the call is counted as cancelled."""
    requests: list[Any] = []
    codes: list[int] = []

    async def predict(message: Any, _: Any) -> Any:
        requests.append(message)
        return message

    running = served(predict, codes).begin(FakeCall(cancelled=cancelled), b"")

    if cancelled:
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        await running
    assert (len(requests), codes) == ((0, [1]) if cancelled else (1, [0]))


async def test_call_cancelled_as_it_comes_asks_no_model() -> None:
    """No request is sent to a model for a call that is cancelled at once, and it is counted too."""
    requests: list[Any] = []
    codes: list[int] = []

    async def predict(message: Any, _: Any) -> Any:
        requests.append(message)
        return message

    path = f"{NAME}/Predictions"
    async with listening({path: served(predict, codes)}) as server:
        abandoned = asking(path, b"") + frames.reset(1, frames.Code.CANCEL)
        async with connected(server) as (reader, writer):
            writer.write(GREETING + abandoned + asking(path, b"", 3))
            while 0 not in codes:
                await asyncio.wait_for(reader.read(1 << 16), 10)

    assert (len(requests), sorted(codes)) == (1, [0, 1])


@pytest.mark.parametrize("size", [10, 1_000_000])
async def test_messages_know_their_bytes(size: int) -> None:
    """A large message is not serialized anew for whoever needs its bytes; its fields are as in any other."""
    body = _Request(model_name="m", input={"data": bytes(size)}).SerializeToString()
    requests: list[Any] = []

    async def predict(message: Any, _: Any) -> Any:
        requests.append(message)
        return message

    await served(predict, []).begin(FakeCall(), body)

    (result,) = requests
    assert result.SerializeToString() == body
    assert size < 100 or result.SerializeToString() is body
    assert (result.model_name, dict(result.input), result.HasField("sequence_id")) == (
        "m",
        {"data": bytes(size)},
        False,
    )


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
async def test_failure_has_status_and_request_id(
    fail: Callable[[], None], code: StatusCode, text: str
) -> None:
    """The end has the error's status, and the id of the request; what is unexpected is not told."""
    codes: list[int] = []

    async def predict(_: Any, __: Any) -> Any:
        fail()

    call = FakeCall((("x-request-id", "mine"),))
    await served(predict, codes).begin(call, b"")

    assert (call.sent, call.ending, codes) == ([], (code, text, (("x-request-id", "mine"),)), [code])


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (FakeCall(), 1),
        (FakeCall(timeout=3600.0), 1),
        (FakeCall(timeout=0.0), 4),
        (FakeCall(timeout=0.0, unread=True), 8),
    ],
)
async def test_ended_call_has_the_code_of_who_gave_up(call: FakeCall, code: int) -> None:
    """A call that ends at its deadline was too late; one whose client does not read took too much; any other
    that is cancelled was given up.
    """
    codes: list[int] = []

    async def predict(_: Any, __: Any) -> Any:
        await asyncio.Event().wait()

    running = asyncio.ensure_future(served(predict, codes).begin(call, b""))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert codes == [code]


def test_service_needs_all_methods_of_its_proto() -> None:
    """A service has the methods that its proto has, no more and no fewer."""
    with pytest.raises(KeyError, match="Ping"):
        method_handlers(NAME, {}, prediction_status, around_calls([]))


async def test_calls_are_counted_with_their_method() -> None:
    """So that health checks over gRPC count apart; the count is by the HTTP status of the same meaning."""
    counted: list[Any] = []
    context: Any = around_calls([])
    context.metrics.response = lambda *labels: counted.append(labels)
    handlers = method_handlers(NAME, dict.fromkeys(METHODS, refuse_call), prediction_status, context)
    await handlers[f"{NAME}/Predictions"].begin(FakeCall(), b"")

    assert counted == [(503, f"{NAME}/Predictions")]


async def refuse_call(*_: Any) -> Any:
    raise ServiceUnavailable("later")
