import asyncio
import gc
import logging
import weakref
from types import SimpleNamespace

import pytest

from modelserver.engine.batching.queue import UnsharedKey
from modelserver.engine.batching.request import Request
from modelserver.engine.wire.messages import DESCRIBE, Answer
from modelserver.errors import HandlerError, InternalError, ResponseTimeout, ServiceUnavailable, WorkerDied
from modelserver.surface.inference.customized import TOO_LATE, Description, fetch_description

NO_WORKER = 'Model "m" has no worker to serve describe request. Please use scale workers API to add workers.'


class Pool:
    """Responds as a test sets, refuses, or never responds."""

    def __init__(self, outcome) -> None:
        self.outcome = outcome
        self.requests: list[Request] = []
        self.cancelled: list[Request] = []

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        if self.outcome is not None:
            asyncio.get_running_loop().call_soon(self.outcome, request)

    def cancel(self, request: Request) -> None:
        if not request.done:
            self.cancelled.append(request)


def answers(content: bytes, **fields):
    return lambda request: request.deliver(0, [(Answer(len(content), **fields), content)])


def fails(error: Exception):
    return lambda request: request.fail(error)


async def ask(outcome, timeout: float = 5.0) -> Description:
    """``outcome``: of a pool of its own, or a pool."""
    pool = outcome if isinstance(outcome, Pool) else Pool(outcome)
    model = SimpleNamespace(name="m", pool=pool, options=SimpleNamespace(response_timeout=timeout))
    return await fetch_description(model)


async def test_one_row_without_bytes_that_travels_alone():
    pool = Pool(answers(b"{}"))
    await ask(pool)

    (request,) = pool.requests
    assert [(row.kind, row.size) for row in request.rows] == [(DESCRIBE, 0)]
    assert isinstance(request.key, UnsharedKey)
    assert request.key != UnsharedKey()
    assert pool.cancelled == []


async def test_answer_has_metadata_and_what_the_handler_set():
    result = await ask(answers(b'{"data1": "1"}', status=201, headers=[("x-mine", "1")]))

    assert result.metadata == {"data1": "1"}
    assert (await ask(answers(b""))).metadata is None
    assert (result.answer.status, result.answer.headers) == (201, [("x-mine", "1")])


@pytest.mark.parametrize("content", [b"null", b"[1]", b'"text"', b"text", b"\xff", b"[" * 100_000])
async def test_what_is_no_object(content, caplog):
    with caplog.at_level(logging.WARNING):
        result = await ask(answers(content))

    assert result.metadata == {}
    assert "returned metadata that is not a JSON object" in caplog.text


@pytest.mark.parametrize("outcome", [ServiceUnavailable("full"), fails(ServiceUnavailable("no worker left"))])
async def test_description_without_a_worker_gets_503(outcome):
    """No worker, a full queue, and the last worker's end while it waits: TorchServe's 503."""
    with pytest.raises(ServiceUnavailable) as refusal:
        await ask(outcome)
    assert refusal.value.message == NO_WORKER


async def test_description_without_a_reply_gets_500():
    """Past the response timeout it is a 500 in TorchServe's words, and nothing waits any more."""
    pool = Pool(None)
    with pytest.raises(InternalError) as refusal:
        await ask(pool, timeout=0)
    assert (refusal.value.status, refusal.value.message) == (500, TOO_LATE)
    assert pool.cancelled == pool.requests


@pytest.mark.parametrize(
    ("outcome", "status", "message"),
    [
        (fails(ResponseTimeout()), 500, TOO_LATE),
        (fails(WorkerDied()), 500, "Worker died."),
        (fails(OSError("odd")), 500, "odd"),
        (answers(b"Prediction failed", status=503, failed=True), 503, "Prediction failed"),
    ],
)
async def test_failure_keeps_its_status(outcome, status, message):
    with pytest.raises(InternalError) as refusal:
        await ask(outcome)
    assert (refusal.value.status, refusal.value.message) == (status, message)
    assert isinstance(refusal.value, HandlerError) == (status == 503)


@pytest.mark.parametrize(
    "outcome", [answers(b"bad", status=503, failed=True), lambda request: request.fail(WorkerDied())]
)
async def test_failures_are_freed(outcome):
    """The error is freed when it was sent, without the garbage collector."""
    gc.disable()
    try:
        try:
            await ask(outcome)
        except InternalError as failure:
            reference = weakref.ref(failure)

        assert reference() is None
    finally:
        gc.enable()
