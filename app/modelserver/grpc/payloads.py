"""The payload log of gRPC: the same services with logged messages.

An event's body is the message, named by its content type. An answer in parts is logged as one message.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from modelserver.grpc.inference import NAME as INFERENCE
from modelserver.grpc.inference import InferenceService
from modelserver.grpc.open_inference import NAME as OPEN_INFERENCE
from modelserver.grpc.open_inference import OpenInferenceService
from modelserver.payloads.call import LoggedCall

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator

    from modelserver.api.app import Services
    from modelserver.grpc.messages import AnyMessage, Context
    from modelserver.models.registry import Registry
    from modelserver.payloads.log import PayloadLog


class LoggedInferenceService(InferenceService):
    """TorchServe's inference service; only successful answers are logged."""

    def __init__(self, registry: Registry, log: PayloadLog) -> None:
        super().__init__(registry)
        self._payloads = log

    async def predict(self, asked: AnyMessage, context: Context) -> AnyMessage:
        call = self._call(asked, context, "Predictions")
        answer = await super().predict(asked, context)
        call.answered(_type(answer), answer.SerializeToString())
        return answer

    async def parts(
        self, asked: AnyMessage, context: Context, method: str
    ) -> AsyncGenerator[AnyMessage, None]:
        call, last = self._call(asked, context, method), None
        async with contextlib.aclosing(super().parts(asked, context, method)) as parts:
            async for last in parts:
                call.part(last.prediction)
                yield last
        prediction = call.whole()
        if last is not None and prediction is not None:
            # The last part is sent already; its other fields apply to the whole answer.
            last.prediction = prediction
            call.answered(_type(last), last.SerializeToString())

    def _call(self, asked: AnyMessage, context: Context, method: str) -> LoggedCall:
        path = f"/{INFERENCE}/{method}"
        return _begin(self._payloads, asked, context, path, asked.model_name, asked.model_version)


class LoggedOpenInferenceService(OpenInferenceService):
    """The Open Inference Protocol; each request of a stream is logged like a single one."""

    def __init__(self, services: Services, stopping: asyncio.Event, log: PayloadLog) -> None:
        super().__init__(services, stopping)
        self._payloads = log

    async def infer_one(self, asked: AnyMessage, context: Context) -> tuple[AnyMessage, str | None]:
        path = f"/{OPEN_INFERENCE}/ModelInfer"
        call = _begin(self._payloads, asked, context, path, asked.model_name, asked.model_version)
        answer, batch_id = await super().infer_one(asked, context)
        call.answered(_type(answer), answer.SerializeToString(), batch_id or "")
        return answer, batch_id


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
