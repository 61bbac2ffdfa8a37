import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from tests.ext.grpc.calling import FakeCall

from modelserver.engine.batching.request import Request
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.wire.messages import TENSORS, Answer
from modelserver.errors import HandlerError, InternalError, PayloadTooLarge, ServiceUnavailable
from modelserver.ext.grpc import pending
from modelserver.ext.grpc.pending import Pending, request_id_of
from modelserver.ext.grpc.statuses import prediction_status
from modelserver.ext.grpc.watching import WatchedRequest
from modelserver.models.options.resolve import ModelOptions
from modelserver.surface.inference.codec import Parsed
from modelserver.surface.inference.v2 import Inference

CALL = FakeCall()
UNWATCHED = WatchedRequest(None, "", None, None, prediction_status)


class Pool:
    """Takes requests and ends none."""

    def __init__(self):
        self.cancelled: list[Request] = []
        self.refusal: Exception | None = None

    def submit(self, request, version):
        assert version is None
        if self.refusal is not None:
            raise self.refusal

    def cancel(self, request):
        if not request.done:
            self.cancelled.append(request)
            request.on_done = None
            request.fail(HandlerError("gone", 499))


@pytest.fixture
def model():
    """A model version that goes nowhere."""
    metrics = ServerMetrics().model("m", "1.0")
    return SimpleNamespace(
        name="m",
        pool=Pool(),
        metrics=metrics,
        options=ModelOptions(),
        sequence_headers=None,
        exposes_errors=False,
        traffic=None,
    )


def outcomes(model):
    """The classes of status of the requests that were answered."""
    model.metrics.requests.count_answers()
    series = dict(zip(("2xx", "3xx", "4xx", "5xx"), model.metrics.requests._by_class[2:], strict=False))
    return [name for name, one in series.items() for _ in range(int(one.value))]


async def fails(model, answer):
    with contextlib.suppress(HandlerError):
        async with Pending(model, parsed(), CALL, None, UNWATCHED) as waiting:
            waiting.request.deliver(0, [answer])
            await waiting.answers()


def parsed(rows=1):
    return Parsed([b""] * rows)


def failed(text, status=503):
    return Answer(len(text), status, failed=True), text.encode()


async def test_leaving_cancels(model):
    """A caller that is cancelled takes its request out of the pool (F37)."""

    async def wait():
        async with Pending(model, parsed(), CALL, None, UNWATCHED) as made:
            waiting.append(made.request)
            await made.answers()

    waiting = []
    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert model.pool.cancelled == waiting
    assert outcomes(model) == []


async def test_outcomes_are_counted(model):
    async with Pending(model, parsed(), CALL, None, UNWATCHED) as waiting:
        waiting.request.deliver(0, [(Answer(1), b"a")])
        await waiting.answers()
    await fails(model, failed("bad"))
    model.pool.refusal = ServiceUnavailable("full")
    with pytest.raises(ServiceUnavailable):
        Pending(model, parsed(), CALL, None, UNWATCHED)

    assert outcomes(model) == ["2xx", "5xx", "5xx"]
    assert model.metrics.requests.errors.by_type == {"HandlerError": 1, "ServiceUnavailable": 1}


async def test_parts_come_before_the_returned_answer_and_count_until_the_caller_leaves(model):
    async with Pending(model, parsed(), CALL, None, UNWATCHED, parts=True) as waiting:
        made = waiting.request
        backlog = made.backlog
        assert backlog is not None
        made.on_part(made, Answer(3), b"one")
        made.on_part(made, Answer(3), b"two")
        assert backlog() == CALL.held == 6
        parts = waiting.parts()
        assert await anext(parts) == b"one"
        made.deliver(0, [(Answer(4), b"last")])

        assert [part async for part in parts] == [b"two", b"last"]
        assert backlog() == 0

    call = FakeCall()
    async with Pending(model, parsed(), call, None, UNWATCHED, parts=True) as waiting:
        waiting.request.on_part(waiting.request, Answer(3), b"one")
        assert call.held == 3

    assert call.held == 0


async def test_slow_client_ends_the_work(model, monkeypatch):
    monkeypatch.setattr(pending, "MAX_UNSENT", 4)
    async with Pending(model, parsed(), CALL, None, UNWATCHED, parts=True) as waiting:
        made = waiting.request
        for _ in range(3):
            made.on_part(made, Answer(3), b"abc")
        with pytest.raises(PayloadTooLarge, match="The client reads too slowly"):
            [part async for part in waiting.parts()]

    assert model.pool.cancelled == [made]


async def test_failures_name_their_row_and_have_the_status_of_their_protocol(model):
    """What is 503 in TorchServe's protocol is 500 in V2 (design 9, "Statuses")."""
    async with Pending(model, Inference([b"", b""], TENSORS), CALL, None, UNWATCHED) as waiting:
        waiting.request.deliver(0, [(Answer(1), b"a"), failed("bad", 400)])
        with pytest.raises(HandlerError, match="row 1: bad") as caught:
            await waiting.answers()
    assert (caught.value.status, caught.value.kserve_status) == (400, None)
    for error, kind in ((ServiceUnavailable("no"), ServiceUnavailable), (KeyError("x"), InternalError)):
        async with Pending(model, parsed(), CALL, None, UNWATCHED) as waiting:
            waiting.request.fail(error)
            with pytest.raises(kind):
                await waiting.answers()

    async with Pending(model, parsed(), CALL, None, UNWATCHED) as waiting:
        waiting.request.deliver(0, [failed("Prediction failed")])
        with pytest.raises(HandlerError) as caught:
            await waiting.answers()

    assert (caught.value.status, caught.value.kserve_status) == (503, 500)


def test_usable_request_id_is_taken():
    """A usable one of the metadata is taken; line breaks never are (F13)."""

    def of(*metadata):
        return request_id_of(FakeCall(metadata))

    assert of(("a", "b"), ("x-request-id", "mine")) == "mine"
    assert len(of(("x-request-id", "a\nb"))) == 36
    assert len(of()) == 36
