"""What calls leave in memory, until the garbage collector runs: nothing, however they end."""

import asyncio
import contextlib
import gc
import logging
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace

import grpc
import pytest
from tests.ext.grpc.calling import around_calls, listening
from tests.waiting import until

from modelserver.engine.batching.request import Request
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.wire.messages import Answer
from modelserver.errors import ServiceUnavailable, WorkerDied
from modelserver.ext.grpc import inference, open_inference
from modelserver.ext.grpc.calls import method_handlers
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.statuses import open_inference_status, prediction_status
from modelserver.ext.repository.rpcs import repository_rpcs
from modelserver.ext.triton.rpcs import triton_rpcs
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.settings.settings import Settings
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.off_loop import OffLoop

SIZE = 1 << 20  # bytes of a request
CALLS = 3

_Predict = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
_Infer = message("inference.ModelInferRequest")


def handler_fails(request):
    answer = Answer(3, 503, failed=True), b"bad"
    request.deliver(0, [answer] * len(request.rows))


def worker_dies(request):
    request.fail(WorkerDied())


def breaks_off(request):
    if request.on_part is not None:
        request.on_part(request, Answer(4), b"part")
    handler_fails(request)


def strange(request):
    raise ValueError(request.id)


def full(_):
    raise ServiceUnavailable("The queue is full.")


def silent(_):
    """Never answers."""


class Pool:
    ready = True

    def __init__(self):
        self.does: Callable[[Request], None] = silent

    def submit(self, request, version):
        assert version is None
        if self.does in (full, strange):
            self.does(request)
        asyncio.get_running_loop().call_soon(self.does, request)

    def cancel(self, request):
        request.on_done = None
        request.fail(ConnectionError("gone"))


@pytest.fixture
def pool():
    return Pool()


@pytest.fixture
async def client(pool):
    """Connected with a server of both services."""
    metrics = ServerMetrics().model("m", "1.0")
    options = ModelOptions()
    model = SimpleNamespace(
        name="m",
        version="1.0",
        pool=pool,
        metrics=metrics,
        options=options,
        sequence_headers=None,
        batches=False,
        splits_tensors=True,
        exposes_errors=True,
        traffic=None,
    )
    off_loop = OffLoop(SIZE)
    registry = SimpleNamespace(get=lambda *_: model, version_for=lambda *_: model)
    settings = Settings(max_request_instances=4)
    services = SimpleNamespace(
        registry=registry,
        settings=settings,
        limits=RequestLimits(4),
        off_loop=off_loop,
        intake=Intake(1 << 30),
        shared=None,
    )
    around = around_calls([])
    predictions = inference.InferenceService(registry).methods
    tensors = open_inference.OpenInferenceService(
        services, asyncio.Event(), None, {**triton_rpcs(services), **repository_rpcs(services)}
    ).methods
    served = method_handlers(inference.NAME, predictions, prediction_status, around)
    served |= method_handlers(open_inference.NAME, tensors, open_inference_status, around)
    async with listening(served) as server, grpc.aio.insecure_channel(server.address) as channel:
        yield channel
    off_loop.close()


@pytest.fixture
def traced():
    """Memory is counted, the collector of circles is off, and no record keeps what was logged."""
    logging.disable()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()
    logging.disable(logging.NOTSET)


def prediction():
    return _Predict(model_name="m", input={"data": bytes(SIZE)}).SerializeToString()


def tensor(rows=1, *, name="m"):
    form = {"name": "i", "datatype": "UINT8", "shape": [rows, SIZE // rows]}
    made = _Infer(model_name=name, inputs=[form], raw_input_contents=[bytes(SIZE // rows * rows)])
    return made.SerializeToString()


async def one(client, body, timeout=20.0):
    tensors = body.startswith(tensor()[:3]) and b"UINT8" in body[:50]
    path = f"{open_inference.NAME}/ModelInfer" if tensors else f"{inference.NAME}/Predictions"
    call = client.unary_unary(f"/{path}")
    await call(body, timeout=timeout)


async def many(client, path, *bodies):
    call = client.stream_stream(f"/{path}")
    async for _ in call(iter(bodies), timeout=20.0):
        pass


async def cancelled(client):
    task = asyncio.ensure_future(one(client, prediction()))
    await asyncio.sleep(0.1)
    task.cancel()
    await task


async def stream(client):
    call = client.unary_stream(f"/{inference.NAME}/StreamPredictions")
    async for _ in call(prediction(), timeout=20.0):
        pass


async def broken_off(client, path, body):
    """A stream that its client gives up after the first answer."""
    call = client.stream_stream(f"/{path}")(timeout=20.0)
    await call.write(body)
    await call.read()
    call.cancel()


CONVERSATION, TENSORS = f"{inference.NAME}/StreamPredictions2", f"{open_inference.NAME}/ModelStreamInfer"
CALLS_OF = {
    "prediction": lambda client: one(client, prediction()),
    "tensors": lambda client: one(client, tensor(2)),
    "too many rows": lambda client: one(client, tensor(8)),
    "too late": lambda client: one(client, prediction(), timeout=0.1),
    "cancelled": cancelled,
    "stream": stream,
    "conversation": lambda client: many(client, CONVERSATION, prediction(), prediction()),
    "stream of tensors": lambda client: many(client, TENSORS, tensor(), tensor()),
    "garbage in a stream": lambda client: many(client, TENSORS, tensor(), b"\xff"),
    "conversation cancelled": lambda client: broken_off(client, CONVERSATION, prediction()),
    "tensors cancelled": lambda client: broken_off(client, TENSORS, tensor()),
}


@pytest.mark.parametrize(
    ("does", "calls"),
    [
        (handler_fails, "prediction, tensors, stream of tensors, garbage in a stream"),
        (handler_fails, "conversation cancelled, tensors cancelled"),
        (worker_dies, "prediction, tensors, stream"),
        (full, "prediction, tensors"),
        (strange, "prediction, stream of tensors"),
        (silent, "too many rows, too late, cancelled"),
        (breaks_off, "stream, conversation"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
@pytest.mark.usefixtures("traced")
async def test_nothing_outlives_a_call_that_failed(client, pool, does, calls):
    pool.does = does
    for name in calls.split(", "):
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(CALLS):
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                await CALLS_OF[name](client)

        await until(lambda before=before: tracemalloc.get_traced_memory()[0] - before < SIZE // 2)
