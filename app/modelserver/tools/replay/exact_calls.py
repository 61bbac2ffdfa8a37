"""Recorded calls over gRPC, made again without a connection, for ``modelserver replay --exact``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from modelserver.ext.grpc.codes import StatusCode
from modelserver.ext.grpc.heads import Head
from modelserver.ext.grpc.inference import InferenceService
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.open_inference import OpenInferenceService
from modelserver.ext.grpc.watching import lines_of
from modelserver.surface.watching import Watcher, message_framed

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.engine.batching.request import Request
    from modelserver.ext.recording.entries import Call
    from modelserver.surface.api.services import Services

_Asked = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
_Infer = message("inference.ModelInferRequest")


class Outcome(NamedTuple):
    """What a client got, as :class:`modelserver.ext.recording.entries.Call` has it."""

    status: int
    lines: bytes
    answer: bytes = b""
    complete: bool = True


def ask(services: Services, call: Call, queued: Callable[[], None]) -> asyncio.Future[Outcome]:
    """The outcome of a call; ``queued`` is called when it has come to its model's queue."""
    noted = _Noted(queued)
    serving = asyncio.get_running_loop().create_task(_serve(services, call, noted))
    serving.add_done_callback(noted.over)
    return noted.outcome


async def _serve(services: Services, call: Call, noted: _Noted) -> None:
    def watch(_: object) -> Watcher:
        return noted

    again: Any = _Again(call)
    method = call.target.rpartition("/")[2]
    if method == "ModelInfer":
        tensors = OpenInferenceService(services, asyncio.Event(), watch)
        await tensors.infer_one(_Infer.FromString(call.body), again)
        return
    predictions, asked = InferenceService(services.registry, watch), _Asked.FromString(call.body)
    if method == "Predictions":
        await predictions.predict(asked, again)
        return
    async for _ in predictions.parts(asked, again, method):
        pass


class _Again:
    """What the services ask of a call. The time does not run as it did: it has no deadline."""

    traceparent = b""
    on_queued = None
    arrived = 0.0

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


class _Noted(Watcher):
    """``outcome`` is there when the call has ended."""

    def __init__(self, queued: Callable[[], None]) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._queued = queued
        self._parts: list[bytes] | None = None

    def queued(self, request: Request, model: Any) -> None:
        self._queued()

    def replied(self, status: int, body: bytes, content_type: str, lines: bytes) -> None:
        answer = message_framed(body) if status == 200 else body
        self.outcome.set_result(Outcome(status, lines, answer, complete=self._parts is None))

    def started(self, status: int, content_type: str, lines: bytes) -> None:
        self._parts = []

    def part(self, part: bytes) -> None:
        assert self._parts is not None  # noqa: S101 - the answer has started
        self._parts.append(message_framed(part))

    def ended(self, complete: bool, lines: bytes = b"") -> None:
        self.outcome.set_result(Outcome(200, lines, b"".join(self._parts or ()), complete))

    def left(self) -> None:
        self.outcome.set_result(Outcome(0, b"", complete=False))

    def over(self, serving: asyncio.Task[None]) -> None:
        """A failure is the outcome, also that of a message that cannot be read."""
        error = serving.exception()
        if not self.outcome.done():
            lines = lines_of(StatusCode.INTERNAL, None)
            self.outcome.set_result(Outcome(500, lines, str(error).encode()))
