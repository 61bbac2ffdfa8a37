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
from modelserver.http.exchange import with_header
from modelserver.payloads.call import LoggedCall

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator

    from modelserver.api.services import Services
    from modelserver.grpc.call import Call
    from modelserver.grpc.messages import AnyMessage
    from modelserver.models.registry import Registry
    from modelserver.payloads.log import PayloadLog


class LoggedInferenceService(InferenceService):
    """TorchServe's inference service; only successful answers are logged."""

    def __init__(self, registry: Registry, log: PayloadLog) -> None:
        super().__init__(registry)
        self._payloads = log

    async def predict(self, asked: AnyMessage, call: Call) -> AnyMessage:
        logged = self._call(asked, call, "Predictions")
        answer = await super().predict(asked, call)
        logged.answered(_type(answer), answer.SerializeToString())
        return answer

    async def parts(self, asked: AnyMessage, call: Call, method: str) -> AsyncGenerator[AnyMessage, None]:
        logged, last = self._call(asked, call, method), None
        async with contextlib.aclosing(super().parts(asked, call, method)) as parts:
            async for last in parts:
                logged.part(last.prediction)
                yield last
        prediction = logged.whole()
        if last is not None and prediction is not None:
            # The last part is sent already; its other fields apply to the whole answer.
            last.prediction = prediction
            logged.answered(_type(last), last.SerializeToString())

    def _call(self, asked: AnyMessage, call: Call, method: str) -> LoggedCall:
        path = f"/{INFERENCE}/{method}"
        return _begin(self._payloads, asked, call, path, asked.model_name, asked.model_version)


class LoggedOpenInferenceService(OpenInferenceService):
    """The Open Inference Protocol; each request of a stream is logged like a single one."""

    def __init__(self, services: Services, stopping: asyncio.Event, log: PayloadLog) -> None:
        super().__init__(services, stopping)
        self._payloads = log

    async def infer_one(self, asked: AnyMessage, call: Call) -> tuple[AnyMessage, str | None]:
        path = f"/{OPEN_INFERENCE}/ModelInfer"
        logged = _begin(self._payloads, asked, call, path, asked.model_name, asked.model_version)
        answer, batch_id = await super().infer_one(asked, call)
        logged.answered(_type(answer), answer.SerializeToString(), batch_id or "")
        return answer, batch_id


def _begin(  # noqa: PLR0917 - all that there is to know of a call
    log: PayloadLog, asked: AnyMessage, call: Call, path: str, model: str, version: str
) -> LoggedCall:
    headers = call.head.headers
    if call.trace is not None:
        headers = with_header(headers, b"traceparent", call.trace.traceparent.encode())
    logged = LoggedCall(log, headers, (("modelname", model), ("modelversion", version), ("path", path)))
    if log.requests:
        logged.asked(asked.SerializeToString(), _type(asked))
    return logged


def _type(said: AnyMessage) -> str:
    return f"application/protobuf; proto={said.DESCRIPTOR.full_name}"
