"""TorchServe's inference service (reference 20).

Unlike in TorchServe, a call's deadline and cancellation remove its request from the queue; a handler that
does not answer in parts ends ``StreamPredictions`` with its only answer; ``StreamPredictions2`` serves models
without sequences too, needs no id (the answer has a new one), and reports unknown models in band.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING

from modelserver.engine.batching.request import Request, SequencedRequest
from modelserver.errors import BadRequest, ModelServerError
from modelserver.ext.grpc.messages import AnyMessage, message
from modelserver.ext.grpc.pending import BATCH_ID, Pending
from modelserver.ext.grpc.statuses import RefusedRequest, ToStatus, prediction_status
from modelserver.ext.grpc.watching import WatchedRequest
from modelserver.models.registry import Registry
from modelserver.models.version import ModelVersion
from modelserver.surface.http.answers import pretty
from modelserver.surface.inference.codec import Parsed
from modelserver.surface.watching import Watch

if TYPE_CHECKING:
    from modelserver.ext.grpc.call import GrpcCall
    from modelserver.ext.grpc.calls import Method

NAME = "org.pytorch.serve.grpc.inference.InferenceAPIsService"

_Health = message("org.pytorch.serve.grpc.inference.TorchServeHealthResponse")
_Answer = message("org.pytorch.serve.grpc.inference.PredictionResponse")


class InferenceService:
    """Predictions from the models of the registry.

    Args:
        registry: has the models.
        watch: called with each request, if anybody watches them.
        to_status: maps errors to statuses.
    """

    def __init__(
        self, registry: Registry, watch: Watch | None = None, to_status: ToStatus = prediction_status
    ) -> None:
        self._registry = registry
        self._watch = watch
        self._to_status = to_status

    @property
    def methods(self) -> Mapping[str, Method]:
        return {
            "Ping": self.ping,
            "Predictions": self.predict,
            "StreamPredictions": self.stream,
            "StreamPredictions2": self.converse,
        }

    async def ping(self, _: AnyMessage, __: GrpcCall) -> AnyMessage:
        """The text of REST's ``/ping``; the status is OK even if it says Unhealthy."""
        status = "Healthy" if self._registry.healthy else "Unhealthy"
        return _Health(health=pretty({"status": status}).decode().rstrip())

    async def predict(self, request: AnyMessage, call: GrpcCall) -> AnyMessage:
        with WatchedRequest(self._watch, f"/{NAME}/Predictions", request, call, self._to_status) as watched:
            async with self._submit(request, call, watched) as pending:
                (content,) = await pending.answers()
            if pending.model.batches:
                call.add_metadata([(BATCH_ID, pending.request.batch_id)])
            answer = _answer(pending.request, content)
            watched.answered(answer, pending.request)
        return answer

    def stream(self, request: AnyMessage, call: GrpcCall) -> AsyncIterator[AnyMessage]:
        return self.parts(request, call, "StreamPredictions")

    async def parts(
        self, request: AnyMessage, call: GrpcCall, method: str
    ) -> AsyncGenerator[AnyMessage, None]:
        """The parts of the answer to a request of a call of this method."""
        with WatchedRequest(self._watch, f"/{NAME}/{method}", request, call, self._to_status) as watched:
            async with self._submit(request, call, watched, parts=True) as pending:
                async for content in pending.parts():
                    part = _answer(pending.request, content)
                    watched.part(part)
                    yield part
            watched.answered(None, pending.request)

    async def converse(
        self, requests: AsyncIterator[AnyMessage], call: GrpcCall
    ) -> AsyncIterator[AnyMessage]:
        """One request after the other, each with its answer in parts; the next is read after the last part.

        A failure is an answer with a status, and the stream continues.
        """
        async for request in requests:
            try:
                async with contextlib.aclosing(self.parts(request, call, "StreamPredictions2")) as parts:
                    async for part in parts:
                        yield _of_sequence(part, request)
            except ModelServerError as error:
                code, text = self._to_status(error)
                yield _of_sequence(_Answer(status={"code": int(code), "message": text}), request)

    def _submit(
        self, request: AnyMessage, call: GrpcCall, watched: WatchedRequest, *, parts: bool = False
    ) -> Pending:
        version = request.model_version or None
        try:
            if not request.model_name:
                raise BadRequest("Parameter model_name is required.")
            model = self._registry.version_for(request.model_name, version, call.head)
            return Pending(model, _read(request, model), call, version, watched, parts=parts)
        except ModelServerError as error:
            raise RefusedRequest(error) from error


def _read(request: AnyMessage, model: ModelVersion) -> Parsed:
    """Parses a request as REST's predictions are, so that both can share a batch."""
    names, sequence_id = model.sequence_headers, request.sequence_id.encode()
    sequence = [(names.id.encode(), sequence_id)] if sequence_id and names is not None else []
    return Parsed.of_fields(dict(request.input), sequence)


def _answer(request: Request, content: bytes) -> AnyMessage:
    sequence_id = request.mark.id if isinstance(request, SequencedRequest) else None
    return _Answer(prediction=content, sequence_id=sequence_id)


def _of_sequence(answer: AnyMessage, request: AnyMessage) -> AnyMessage:
    """The answer, with the client's sequence if it has none."""
    if request.HasField("sequence_id") and not answer.HasField("sequence_id"):
        answer.sequence_id = request.sequence_id
    return answer
