import asyncio
from unittest.mock import AsyncMock

import pytest
from tests.ext.grpc.calling import GREETING, FakeCall, around_calls, asking, connected, listening

from modelserver.errors import BadRequest, ServiceUnavailable
from modelserver.ext.grpc.calls import method_handlers
from modelserver.ext.grpc.http2 import frames
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.statuses import FAILED, StatusCode, prediction_status

METHODS = ("Ping", "Predictions", "StreamPredictions", "StreamPredictions2")
NAME = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
_Request = message("org.pytorch.serve.grpc.inference.PredictionsRequest")


def served(method, codes, name="Predictions"):
    """What serves a method's calls; ``codes`` gets those with which they end."""
    methods = dict.fromkeys(METHODS, method)
    return method_handlers(NAME, methods, prediction_status, around_calls(codes))[f"{NAME}/{name}"]


@pytest.fixture
def predict():
    """A method that answers with the request."""
    return AsyncMock(side_effect=lambda message, _: message)


async def test_call_cancelled_as_it_comes_asks_no_model(predict):
    codes = []
    path = f"{NAME}/Predictions"
    async with listening({path: served(predict, codes)}) as server:
        abandoned = asking(path, b"") + frames.reset(1, frames.Code.CANCEL)
        async with connected(server) as (reader, writer):
            writer.write(GREETING + abandoned + asking(path, b"", 3))
            while 0 not in codes:
                await asyncio.wait_for(reader.read(1 << 16), 10)

    assert (predict.call_count, sorted(codes)) == (1, [0, 1])


@pytest.mark.parametrize("size", [10, 1_000_000])
async def test_messages_know_their_bytes(predict, size):
    body = _Request(model_name="m", input={"data": bytes(size)}).SerializeToString()
    await served(predict, []).begin(FakeCall(), body)

    result, _ = predict.call_args.args
    assert result.SerializeToString() == body
    assert size < 100 or result.SerializeToString() is body
    assert (result.model_name, dict(result.input)) == ("m", {"data": bytes(size)})
    assert result.HasField("sequence_id") is False


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            ServiceUnavailable("later"),
            StatusCode.UNAVAILABLE,
            "later\norg.pytorch.serve.http.ServiceUnavailableException",
        ),
        (ValueError("no word of this"), StatusCode.INTERNAL, FAILED),
        (
            BadRequest("what?"),
            StatusCode.INVALID_ARGUMENT,
            "what?\norg.pytorch.serve.http.BadRequestException",
        ),
    ],
)
async def test_failure_has_status_and_request_id(error, code, text):
    codes = []
    call = FakeCall((("x-request-id", "mine"),))
    await served(AsyncMock(side_effect=error), codes).begin(call, b"")

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
async def test_ended_call_has_the_code_of_who_gave_up(call, code):
    codes = []

    async def predict(_, __):
        await asyncio.Event().wait()

    running = asyncio.ensure_future(served(predict, codes).begin(call, b""))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert codes == [code]


async def test_calls_are_counted_with_their_method():
    counted = []
    context = around_calls([])
    context.metrics.response = lambda *labels: counted.append(labels)
    refuse = AsyncMock(side_effect=ServiceUnavailable("later"))
    handlers = method_handlers(NAME, dict.fromkeys(METHODS, refuse), prediction_status, context)
    await handlers[f"{NAME}/Predictions"].begin(FakeCall(), b"")

    assert counted == [(503, f"{NAME}/Predictions")]

    with pytest.raises(KeyError, match="Ping"):
        method_handlers(NAME, {}, prediction_status, around_calls([]))
