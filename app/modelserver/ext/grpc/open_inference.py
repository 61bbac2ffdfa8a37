"""The Open Inference Protocol over gRPC, with Triton's stream and extensions (kserve reference 6, 8).

Requests are cut into rows, batched and joined as over REST. Unlike in KServe, model versions are respected,
readiness has its status, loading and unloading have responses, and wrong sizes are errors of the client.
Metadata, the models of the store and Triton's extensions are methods that other extensions add.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.json_format import ParseDict

from modelserver.errors import MethodNotAllowed, ModelServerError
from modelserver.ext.grpc.encoded import EncodedMessage
from modelserver.ext.grpc.management import Uninterrupted
from modelserver.ext.grpc.messages import AnyMessage, message
from modelserver.ext.grpc.pending import BATCH_ID, Pending, request_id_of
from modelserver.ext.grpc.statuses import open_inference_status
from modelserver.ext.grpc.tensors import ModelInfer
from modelserver.ext.grpc.watching import WatchedRequest
from modelserver.extension import Rpc
from modelserver.models.settings.address import HostPort
from modelserver.surface.api.services import Services
from modelserver.surface.watching import Watch

if TYPE_CHECKING:
    from modelserver.ext.grpc.call import GrpcCall
    from modelserver.ext.grpc.calls import Method

NAME = "inference.GRPCInferenceService"
TORCHSERVE_NAME = "org.pytorch.serve.grpc.openinference.GRPCInferenceService"

# Requests of one stream that are in progress, or whose answers the client has not taken.
WINDOW = 64

# The methods of extensions that TorchServe's service has, too.
_METADATA = ("ServerMetadata", "ModelMetadata")

_NOT_LOCAL = "Only clients on the server's machine may load and unload models, and change settings, here."


def _message(name: str) -> type[AnyMessage]:
    return message(f"inference.{name}Response")


_Live, _Ready, _ModelReady = _message("ServerLive"), _message("ServerReady"), _message("ModelReady")
_Part = _message("ModelStreamInfer")


class OpenInferenceService:
    """Health and inference, and the methods of extensions.

    Args:
        services: registry and helpers.
        stopping: set when the server accepts no more calls; it is not ready then.
        watch: called with each request, if anybody watches them.
        rpcs: the methods of extensions.
    """

    def __init__(
        self,
        services: Services,
        stopping: asyncio.Event,
        watch: Watch | None = None,
        rpcs: Mapping[str, Rpc] = MappingProxyType({}),
    ) -> None:
        self._registry = services.registry
        self._stopping = stopping
        self._watch = watch
        self._rpcs = {name: method_of(name, respond) for name, respond in rpcs.items()}
        self._codec = ModelInfer(services)

    @property
    def torchserve_methods(self) -> Mapping[str, Method]:
        """The methods that TorchServe's service of the protocol has."""
        return {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ModelInfer": self.infer,
            **{name: method for name, method in self._rpcs.items() if name in _METADATA},
        }

    @property
    def methods(self) -> Mapping[str, Method]:
        return {
            **self.torchserve_methods,
            "ModelStreamInfer": self.stream_infer,
            **self._rpcs,
        }

    async def server_live(self, _: AnyMessage, __: GrpcCall) -> AnyMessage:
        return _Live(live=True)

    async def server_ready(self, _: AnyMessage, __: GrpcCall) -> AnyMessage:
        """Whether every model that should have workers has a loaded one (TorchServe always says yes)."""
        return _Ready(ready=all(self._registry.readiness()) and not self._stopping.is_set())

    async def model_ready(self, request: AnyMessage, _: GrpcCall) -> AnyMessage:
        """Whether the model has a loaded worker. Raises ModelNotFound, ModelVersionNotFound."""
        return _ModelReady(ready=self._registry.is_ready(request.name, request.version or None))

    async def infer(self, request: AnyMessage, call: GrpcCall) -> AnyMessage:
        answer, batch_id, _ = await self.infer_one(request, call)
        if batch_id is not None:
            call.add_metadata([(BATCH_ID, batch_id)])
        return answer

    async def infer_one(self, request: AnyMessage, call: GrpcCall) -> tuple[AnyMessage, str | None, int]:
        """The answer to one request, alone or in a stream, the batch id if clients are told one, and how many
        bytes the model answered.
        """
        version = request.model_version or None
        with WatchedRequest(
            self._watch, f"/{NAME}/ModelInfer", request, call, open_inference_status
        ) as watched:
            model = self._registry.version_for(request.model_name, version, call.head)
            try:
                read = await self._codec.read(request, model)
            except ModelServerError as error:
                error.logged_id = request_id_of(call)
                model.metrics.requests.failed(error, error.logged_id)
                raise
            async with Pending(model, read, call, version, watched) as pending:
                size = sum(map(len, await pending.answers()))
                answer = await self._codec.encode(read, pending.model, pending.request)
            batch_id = pending.request.batch_id if model.batches else None
            watched.answered(answer, pending.request)
        return answer, batch_id, size

    async def stream_infer(
        self, requests: AsyncIterator[AnyMessage], call: GrpcCall
    ) -> AsyncIterator[AnyMessage]:
        """Processes requests concurrently; answers, and failures, are in order."""

        async def answer(request: AnyMessage) -> tuple[AnyMessage, int]:
            try:
                answer, _, size = await self.infer_one(request, call)
            except ModelServerError as error:
                part = _Part(error_message=open_inference_status(error)[1])
                part.infer_response.id = request.id
                return part, 0
            call.hold(size)
            if isinstance(answer, EncodedMessage):
                return answer.within(_Part.DESCRIPTOR, "infer_response"), size
            return _Part(infer_response=answer), size

        async with contextlib.aclosing(in_order(requests, answer, WINDOW)) as parts:
            async for part, size in parts:
                yield part
                call.hold(-size)


def method_of(name: str, respond: Rpc) -> Method:
    """The method that an extension adds under this name; what it changes is finished in any case."""
    response_class, finishing = _message(name), Uninterrupted()

    async def response_to(request: AnyMessage, call: GrpcCall) -> AnyMessage:
        response = response_class()
        async for fields in respond(request, lambda: _check_local(call)):
            response.MergeFrom(ParseDict(fields, response_class()))
        return response

    async def method(request: AnyMessage, call: GrpcCall) -> AnyMessage:
        return await finishing.run(response_to(request, call))

    return method


def _check_local(call: GrpcCall) -> None:
    """Raises MethodNotAllowed for clients on other machines."""
    host = call.client.rpartition(":")[0].strip("[]")
    if not HostPort(host, 0).is_loopback:
        raise MethodNotAllowed(message=_NOT_LOCAL)


_In = TypeVar("_In")
_Out = TypeVar("_Out")


async def in_order(
    items: AsyncIterator[_In], work: Callable[[_In], Awaitable[_Out]], window: int
) -> AsyncGenerator[_Out, None]:
    """The results in order; reads no further item while ``window`` of them wait to be taken.

    Raises:
        Exception: what ``items`` or ``work`` raises, in its turn.
    """
    started: asyncio.Queue[asyncio.Future[_Out] | None] = asyncio.Queue()
    room = asyncio.Semaphore(window)

    async def read() -> None:
        try:
            async for item in items:
                started.put_nowait(asyncio.ensure_future(work(item)))
                await room.acquire()
        finally:
            started.put_nowait(None)

    reading = asyncio.ensure_future(read())
    current: asyncio.Future[_Out] | None = None
    try:
        while (current := await started.get()) is not None:
            yield await current
            room.release()
        await reading
    finally:
        reading.cancel()
        for left in (current, *(started.get_nowait() for _ in range(started.qsize()))):
            if left is not None:
                left.cancel()
        # Until then, the items are in use: whoever made them could not close them.
        await asyncio.gather(reading, return_exceptions=True)
        # An error that one of them holds refers to this frame, and thereby to the items.
        del reading, current, left
