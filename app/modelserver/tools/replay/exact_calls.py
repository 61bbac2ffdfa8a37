"""Recorded calls over gRPC, made again without a connection, for ``modelserver replay --exact``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from modelserver.ext.grpc.codes import StatusCode
from modelserver.ext.grpc.heads import Head
from modelserver.ext.grpc.inference import InferenceService
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.open_inference import OpenInferenceService
from modelserver.ext.grpc.watched.recordings import Noting

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.engine.batching.request import Request
    from modelserver.ext.grpc.watched.recordings import Outcome
    from modelserver.ext.grpc.watched.watching import Watch
    from modelserver.ext.recording.entries import Call
    from modelserver.surface.api.services import Services

_Asked = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
_Infer = message("inference.ModelInferRequest")


def ask(services: Services, call: Call, queued: Callable[[], None]) -> asyncio.Future[Outcome]:
    """The outcome of a call; ``queued`` is called when it has come to its model's queue."""
    noted = _Noted(queued)
    serving = asyncio.get_running_loop().create_task(_serve(services, call, noted))
    serving.add_done_callback(noted.over)
    return noted.outcome


async def _serve(services: Services, call: Call, noted: _Noted) -> None:
    watches: list[Watch] = [lambda *_: noted]
    again: Any = _Again(call)
    method = call.target.rpartition("/")[2]
    if method == "ModelInfer":
        tensors = OpenInferenceService(services, asyncio.Event(), watches)
        await tensors.infer_one(_Infer.FromString(call.body), again)
        return
    predictions, asked = InferenceService(services.registry, watches), _Asked.FromString(call.body)
    if method == "Predictions":
        await predictions.predict(asked, again)
        return
    async for _ in predictions.parts(asked, again, method):
        pass


class _Again:
    """What the services ask of a call. The time does not run as it did: it has no deadline."""

    trace = None

    def __init__(self, call: Call) -> None:
        metadata = tuple((name.decode(), value.decode("latin-1")) for name, value in call.headers)
        self.head = Head(call.target, metadata, None, "identity", 0)

    def time_remaining(self) -> None:
        return None

    def check_room(self) -> None:
        """No answer waits for a client."""

    def hold(self, _: int) -> None:
        """As above."""

    def tell(self, _: object) -> None:
        """Nobody reads it."""


class _Noted(Noting):
    """``outcome`` is there when the call has ended."""

    def __init__(self, queued: Callable[[], None]) -> None:
        super().__init__()
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._queued = queued

    def queued(self, request: Request) -> None:
        super().queued(request)
        self._queued()

    def ended(self, outcome: Outcome) -> None:
        self.outcome.set_result(outcome)

    def over(self, serving: asyncio.Task[None]) -> None:
        """A failure is the outcome, also that of a message that cannot be read."""
        error = serving.exception()
        if not self.outcome.done():
            self.failed(StatusCode.INTERNAL, str(error))
