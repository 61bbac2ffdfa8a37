"""The payload log of gRPC: the same services, whose messages are logged as well.

An event's body is the message; the content type names it. An answer in parts is one event, its message as if
the parts had come at once.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from modelserver.grpc.inference import NAME as INFERENCE
from modelserver.grpc.inference import InferenceService
from modelserver.grpc.messages import message
from modelserver.grpc.open_inference import NAME as OPEN_INFERENCE
from modelserver.grpc.open_inference import OpenInferenceService
from modelserver.payloads.call import LoggedCall

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    from modelserver.api.app import Services
    from modelserver.grpc.messages import AnyMessage, Context
    from modelserver.models.registry import Registry
    from modelserver.payloads.log import PayloadLog

_Answer = message("org.pytorch.serve.grpc.inference.PredictionResponse")


class LoggedInferenceService(InferenceService):
    """TorchServe's inference service; only what ended well is logged as an answer."""

    def __init__(self, registry: Registry, log: PayloadLog) -> None:
        super().__init__(registry)
        self._payloads = log

    async def predict(self, asked: AnyMessage, context: Context) -> AnyMessage:
        call = self._call(asked, context, "Predictions")
        answer = await super().predict(asked, context)
        call.answered(_type(answer), answer.SerializeToString())
        return answer

    async def stream(self, asked: AnyMessage, context: Context) -> AsyncIterator[AnyMessage]:
        whole = _Whole(self._call(asked, context, "StreamPredictions"))
        async with contextlib.aclosing(super().stream(asked, context)) as parts:  # type: ignore[type-var]  # a generator
            async for part in parts:
                whole.add(part)
                yield part
        whole.end()

    async def converse(
        self, requests: AsyncIterator[AnyMessage], context: Context
    ) -> AsyncIterator[AnyMessage]:
        # The next request is read when the answer to the one before is whole.
        current: _Whole | None = None

        async def logged() -> AsyncIterator[AnyMessage]:
            nonlocal current
            async for asked in requests:
                if current is not None:
                    current.end()
                current = _Whole(self._call(asked, context, "StreamPredictions2"))
                yield asked

        async with contextlib.aclosing(super().converse(logged(), context)) as parts:  # type: ignore[type-var]  # a generator
            async for part in parts:
                if current is not None:
                    current.add(part)
                yield part
        if current is not None:
            current.end()

    def _call(self, asked: AnyMessage, context: Context, method: str) -> LoggedCall:
        path = f"/{INFERENCE}/{method}"
        return _begin(self._payloads, asked, context, path, asked.model_name, asked.model_version)


class LoggedOpenInferenceService(OpenInferenceService):
    """The Open Inference Protocol; each request of a stream is logged like one that came alone."""

    def __init__(self, services: Services, stopping: asyncio.Event, log: PayloadLog) -> None:
        super().__init__(services, stopping)
        self._payloads = log

    async def infer_one(self, asked: AnyMessage, context: Context) -> tuple[AnyMessage, str | None]:
        path = f"/{OPEN_INFERENCE}/ModelInfer"
        call = _begin(self._payloads, asked, context, path, asked.model_name, asked.model_version)
        answer, batch_id = await super().infer_one(asked, context)
        call.answered(_type(answer), answer.SerializeToString(), batch_id or "")
        return answer, batch_id


class _Whole:
    """An answer in parts, put together."""

    def __init__(self, call: LoggedCall) -> None:
        self._call = call
        self._last: AnyMessage | None = None
        self._failed = False

    def add(self, part: AnyMessage) -> None:
        self._failed = self._failed or part.HasField("status")
        self._last = part
        self._call.part(part.prediction)

    def end(self) -> None:
        """Logs the answer, unless it is a failure."""
        prediction = None if self._last is None or self._failed else self._call.whole()
        if self._last is None or prediction is None:
            return
        whole = _Answer(prediction=prediction)
        if self._last.HasField("sequence_id"):
            whole.sequence_id = self._last.sequence_id
        self._call.answered(_type(whole), whole.SerializeToString())


def _begin(  # noqa: PLR0917 - all that there is to know of a call
    log: PayloadLog, asked: AnyMessage, context: Context, path: str, model: str, version: str
) -> LoggedCall:
    """A call whose request is logged."""
    headers = [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in context.invocation_metadata() or ()
    ]
    call = LoggedCall(log, headers, (("modelname", model), ("modelversion", version), ("path", path)))
    if log.requests:
        call.asked(asked.SerializeToString(), _type(asked))
    return call


def _type(said: AnyMessage) -> str:
    return f"application/protobuf; proto={said.DESCRIPTOR.full_name}"
