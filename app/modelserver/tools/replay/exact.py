"""``modelserver replay --exact``: the recorded batches again, each model in a worker of its own.

Requests go to the routes and services of inference without sockets, in the order in which they were queued,
and the queue holds them until all of a batch are there. The answers tell which batches that made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from modelserver.engine.batching.request import Request
from modelserver.errors import ConfigError, ModelServerError
from modelserver.ext.grpc.framing import GRPC, message_framed
from modelserver.ext.grpc.heads import CallHead
from modelserver.ext.grpc.inference import InferenceService
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.open_inference import OpenInferenceService
from modelserver.ext.grpc.statuses import StatusCode
from modelserver.ext.grpc.watching import header_lines
from modelserver.ext.recording.entries import Call, batch_of
from modelserver.ext.stores.extension import Stores
from modelserver.models.archives.store import ModelStore
from modelserver.models.loading import default_name, initial
from modelserver.models.options.resolve import Registration
from modelserver.models.settings.load import LoadedSettings
from modelserver.models.settings.settings import Settings
from modelserver.surface.api.services import Services
from modelserver.surface.watching import Watcher
from modelserver.testing.answer import Answer
from modelserver.testing.engine import Engine, engine
from modelserver.testing.loopback import Loopback
from modelserver.tools.commands import termination_is_interruption
from modelserver.tools.http_client import CUT_OFF, LINES, TimedResponse

# Milliseconds for which the queue holds a batch until its last request is read.
_HOLD: Final = 10_000
_MOST_LINES: Final = 20
_Predict = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
_Infer = message("inference.ModelInferRequest")


@dataclass(slots=True)
class RecordedBatch:
    """A recorded batch of ``size`` instances: its calls in the order of their rows, and the answers now."""

    size: int
    calls: list[Call] = field(default_factory=list)
    answers: list[TimedResponse] = field(default_factory=list)

    @property
    def difference(self) -> str:
        """What it became instead; empty if it is the recorded one."""
        batches = {batch_of(answer.lines) for answer in self.answers}
        if len(batches) != 1:
            return f"{len(batches)} batches, of {' and '.join(sorted(str(size) for _, size in batches))}"
        ((batch, size),) = batches
        if not batch:
            return "none"
        return "" if size == self.size else f"one of {size}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The batches of a recording, sent again; ``left_out`` counts the requests that were in none."""

    batches: Sequence[RecordedBatch]
    left_out: int

    @property
    def exact(self) -> bool:
        """Whether all batches are the recorded ones."""
        return not any(batch.difference for batch in self.batches)

    def lines(self) -> list[str]:
        """How many batches are the recorded ones, and what became of the others."""
        count = len(self.batches)
        other = [(batch, difference) for batch in self.batches if (difference := batch.difference)]
        lines = [f"{count - len(other)} of {count} batches are the recorded ones."]
        lines += [
            f"  {batch.calls[0].at / 1e9:.3f} s {batch.calls[0].model or ''}: "
            f"a batch of {batch.size} became {difference}"
            for batch, difference in other[:_MOST_LINES]
        ]
        if len(other) > _MOST_LINES:
            lines.append(f"  … and {len(other) - _MOST_LINES} more")
        if other:
            lines.append(
                "  Missing are requests whose clients left, rests of requests larger than a batch, and what "
                "the sample left out."
            )
        if self.left_out:
            lines.append(f"Requests that were in no batch, and are not sent: {self.left_out}.")
        return lines


def batches_of(calls: Iterable[Call]) -> list[RecordedBatch]:
    """Groups recorded calls by the batch that they name, in the order in which they were queued."""
    batches: dict[tuple[str | None, str], RecordedBatch] = {}
    for call in sorted(calls, key=lambda call: call.number):
        if call.batch:
            batches.setdefault((call.model, call.batch), RecordedBatch(call.batch_size)).calls.append(call)
    return list(batches.values())


def replay_exactly(calls: Sequence[Call], loaded: LoadedSettings) -> Replayed:
    """Sends the batches again, one model after the other. Raises ConfigError if one cannot be loaded."""
    batches = batches_of(calls)
    if not batches:
        raise ConfigError("no request in the recording was in a batch")
    models = dict.fromkeys(batch.calls[0].model for batch in batches)

    async def replay() -> None:
        archives = {model: await archive_of(model, loaded.settings) for model in models}
        began = time.perf_counter()
        for model, registration in archives.items():
            own = [batch for batch in batches if batch.calls[0].model == model]
            largest = max(batch.size for batch in own)
            held = replace(registration, batch_size=largest, batch_policy="window", max_batch_delay=_HOLD)
            try:
                async with engine(loaded, held) as opened:
                    for batch in own:
                        batch.answers = await _ask(opened, batch.calls, began)
            except ModelServerError as error:
                raise ConfigError(f"{registration.url} cannot be loaded: {error.message}") from error

    with termination_is_interruption():
        asyncio.run(replay())
    return Replayed(batches, len(calls) - sum(len(batch.calls) for batch in batches))


async def archive_of(model: str | None, settings: Settings) -> Registration:
    """How to register the model: as the settings load it at start, otherwise from the model store.

    None is the only model of a server. Raises ConfigError if there is no archive of that name.
    """
    store = ModelStore(settings.model_store, Stores.by_scheme())
    try:
        first = await initial(settings, store)
    except ModelServerError as error:
        raise ConfigError(f"The model store cannot be listed: {error.message}") from error
    listed = {item.model_name or default_name(item.url or ""): item for item in first}
    if model is None and len(listed) == 1:
        (model,) = listed
    if model is None:
        raise ConfigError("requests name no model: --models needs the only one of their server")
    registration = listed.get(model)
    if registration is None and (file := (await store.by_name()).get(model)):
        registration = Registration(url=file)
    if registration is None:
        raise ConfigError(f"{model}: no archive is found; --models {model}=ARCHIVE or --model-store names it")
    return replace(registration, model_name=model, min_workers=1, max_workers=1)


async def _ask(opened: Engine, calls: Sequence[Call], began: float) -> list[TimedResponse]:
    """The answers to requests that are queued in this order, and sent when all are."""
    sent_calls = []
    for call in calls:
        sent, queued = time.perf_counter(), _Queued()
        ended: asyncio.Future[Any]
        if call.method == GRPC:
            ended = grpc_request(opened.services, call, queued.now)
        else:
            ended = _rest_request(opened, call, queued)
        # A large body is read outside of the event loop, so that either may be done first.
        either: set[asyncio.Future[Any]] = {ended, queued.done}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        sent_calls.append((sent, ended))
    pool = opened.model.pool
    pool.queue.flushing = True
    pool.dispatch.pump()
    answers = await asyncio.gather(*(_answered(began, sent, ended) for sent, ended in sent_calls))
    pool.queue.flushing = False
    return answers


def _rest_request(opened: Engine, call: Call, queued: _Queued) -> asyncio.Future[Answer]:
    ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    target = opened.api.find(call.target.encode())
    assert target is not None  # noqa: S101 - it was one when it was recorded
    # A reader without a socket waits for the body that an answer to HEAD does not have.
    method = b"GET" if call.method == b"HEAD" else call.method
    exchange = Loopback(ended).exchange(target, call.body, call.headers, method)
    exchange.watcher = queued
    # Recorded deadlines do not apply to a replay.
    exchange.deadline_ms = 0
    opened.api.serve(exchange)
    return ended


async def _answered(began: float, sent: float, ended: asyncio.Future[Any]) -> TimedResponse:
    answer: Answer | CallOutcome = await ended
    seconds = time.perf_counter() - sent
    if isinstance(answer, CallOutcome):
        lines, body = answer.lines, answer.answer
    else:
        named = (f"{name}: {answer.headers[name]}\r\n" for name in LINES if name in answer.headers)
        lines, body = "".join(named).encode("latin-1"), answer.body
    fault = "" if answer.complete else CUT_OFF
    status = answer.status if answer.complete else 0
    return TimedResponse(sent - began, seconds, status, lines, body, fault)


class _Queued(Watcher):
    """``done`` once the request is queued."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def queued(self, request: Any, model: Any) -> None:
        """See :class:`Watcher`."""
        self.now()

    def now(self) -> None:
        """Marks the request as queued."""
        self.done.set_result(None)


class CallOutcome(NamedTuple):
    """What a client got, as :class:`modelserver.ext.recording.entries.Call` has it."""

    status: int
    lines: bytes
    answer: bytes = b""
    complete: bool = True


def grpc_request(services: Services, call: Call, queued: Callable[[], None]) -> asyncio.Future[CallOutcome]:
    """The outcome of a call; ``queued`` is called when it has come to its model's queue."""
    watcher = _OutcomeWatcher(queued)
    serving = asyncio.get_running_loop().create_task(_serve(services, call, watcher))
    serving.add_done_callback(watcher.over)
    return watcher.outcome


async def _serve(services: Services, call: Call, watcher: _OutcomeWatcher) -> None:
    def watch(_: object) -> Watcher:
        return watcher

    again: Any = _ReplayedCall(call)
    method = call.target.rpartition("/")[2]
    if method == "ModelInfer":
        tensors = OpenInferenceService(services, asyncio.Event(), watch)
        await tensors.infer_one(_Infer.FromString(call.body), again)
        return
    predictions, request = InferenceService(services.registry, watch), _Predict.FromString(call.body)
    if method == "Predictions":
        await predictions.predict(request, again)
        return
    async for _ in predictions.parts(request, again, method):
        pass


class _ReplayedCall:
    """A recorded call for the services, without its deadline: a replay takes another time."""

    traceparent = b""
    on_queued = None
    arrived = 0.0

    def __init__(self, call: Call) -> None:
        metadata = tuple((name.decode(), value.decode("latin-1")) for name, value in call.headers)
        self.head = CallHead(call.target, metadata, None, "identity", 0)

    def time_remaining(self) -> None:
        return None

    def check_room(self) -> None:
        """No answer waits for a client."""

    def hold(self, _: int) -> None:
        """No buffer is counted."""

    def add_metadata(self, _: object) -> None:
        """The messages are received by the watcher."""


class _OutcomeWatcher(Watcher):
    """``outcome`` is there when the call has ended."""

    def __init__(self, queued: Callable[[], None]) -> None:
        self.outcome: asyncio.Future[CallOutcome] = asyncio.get_running_loop().create_future()
        self._queued = queued
        self._parts: list[bytes] | None = None

    def queued(self, request: Request, model: Any) -> None:
        self._queued()

    def replied(self, status: int, body: bytes, content_type: str, lines: bytes) -> None:
        answer = message_framed(body) if status == 200 else body
        self.outcome.set_result(CallOutcome(status, lines, answer, complete=self._parts is None))

    def started(self, status: int, content_type: str, lines: bytes) -> None:
        self._parts = []

    def part(self, part: bytes) -> None:
        assert self._parts is not None  # noqa: S101 - the answer has started
        self._parts.append(message_framed(part))

    def ended(self, complete: bool, lines: bytes = b"") -> None:
        self.outcome.set_result(CallOutcome(200, lines, b"".join(self._parts or ()), complete))

    def left(self) -> None:
        self.outcome.set_result(CallOutcome(0, b"", complete=False))

    def over(self, serving: asyncio.Task[None]) -> None:
        """A failure is the outcome, also that of a message that cannot be read."""
        error = serving.exception()
        if not self.outcome.done():
            lines = header_lines(StatusCode.INTERNAL, None)
            self.outcome.set_result(CallOutcome(500, lines, str(error).encode()))
