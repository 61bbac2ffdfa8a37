"""``modelserver replay --exact``: the recorded batches again, each model in a worker of its own.

Requests go to the routes and services of inference without sockets, in the order in which they were queued,
and the queue holds them until all of a batch are there. The answers tell which batches that made.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from modelserver.errors import ConfigError, ModelServerError
from modelserver.ext.recording.entries import batch_of
from modelserver.ext.stores.extension import Stores
from modelserver.models.archives.store import ModelStore
from modelserver.models.loading import default_name, initial
from modelserver.models.options.resolve import Registration
from modelserver.surface.http.client import CUT_OFF, LINES, TimedResponse
from modelserver.surface.watching import GRPC, Watcher
from modelserver.testing.engine import Engine, engine
from modelserver.testing.loopback import Loopback
from modelserver.tools.commands import termination_is_interruption
from modelserver.tools.replay.exact_calls import Outcome
from modelserver.tools.replay.exact_calls import ask as grpc_asked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from modelserver.ext.recording.entries import Call
    from modelserver.models.settings.load import LoadedSettings
    from modelserver.models.settings.settings import Settings
    from modelserver.testing.answer import Answer

# Milliseconds for which the queue holds a batch until its last request is read.
_HOLD: Final = 10_000
_MOST_SHOWN: Final = 20


@dataclass(slots=True)
class Batch:
    """A recorded batch of ``size`` instances: its calls in the order of their rows, and the answers now."""

    size: int
    calls: list[Call] = field(default_factory=list)
    answers: list[TimedResponse] = field(default_factory=list)

    @property
    def difference(self) -> str:
        """What it became instead; empty if it is the recorded one."""
        found = {batch_of(answer.lines) for answer in self.answers}
        if len(found) != 1:
            return f"{len(found)} batches, of {' and '.join(sorted(str(size) for _, size in found))}"
        ((batch, size),) = found
        if not batch:
            return "none"
        return "" if size == self.size else f"one of {size}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The batches of a recording, sent again; ``left_out`` counts the requests that were in none."""

    batches: Sequence[Batch]
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
            for batch, difference in other[:_MOST_SHOWN]
        ]
        if len(other) > _MOST_SHOWN:
            lines.append(f"  … and {len(other) - _MOST_SHOWN} more")
        if other:
            lines.append(
                "  Missing are requests whose clients left, rests of requests larger than a batch, and what "
                "the sample left out."
            )
        if self.left_out:
            lines.append(f"Requests that were in no batch, and are not sent: {self.left_out}.")
        return lines


def batches_of(calls: Iterable[Call]) -> list[Batch]:
    """The batches that tell their id, in the order in which they were queued."""
    found: dict[tuple[str | None, str], Batch] = {}
    for call in sorted(calls, key=lambda call: call.number):
        if call.batch:
            found.setdefault((call.model, call.batch), Batch(call.batch_size)).calls.append(call)
    return list(found.values())


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
    store = ModelStore(settings.model_store, Stores())
    try:
        first = await initial(settings, store)
    except ModelServerError as error:
        raise ConfigError(f"The model store cannot be listed: {error.message}") from error
    listed = {item.model_name or default_name(item.url or ""): item for item in first}
    if model is None and len(listed) == 1:
        (model,) = listed
    if model is None:
        raise ConfigError("requests name no model: --models needs the only one of their server")
    found = listed.get(model)
    if found is None and (file := (await store.by_name()).get(model)):
        found = Registration(url=file)
    if found is None:
        raise ConfigError(f"{model}: no archive is found; --models {model}=ARCHIVE or --model-store names it")
    return replace(found, model_name=model, min_workers=1, max_workers=1)


async def _ask(opened: Engine, calls: Sequence[Call], began: float) -> list[TimedResponse]:
    """The answers to requests that are queued in this order, and sent when all are."""
    asked = []
    for call in calls:
        sent, queued = time.perf_counter(), _Queued()
        ended: asyncio.Future[Any]
        if call.method == GRPC:
            ended = grpc_asked(opened.services, call, queued.now)
        else:
            ended = _rest_asked(opened, call, queued)
        # A large body is read aside.
        either: set[asyncio.Future[Any]] = {ended, queued.done}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        asked.append((sent, ended))
    pool = opened.model.pool
    pool.queue.flushing = True
    pool.dispatch.pump()
    answers = await asyncio.gather(*(_answered(began, sent, ended) for sent, ended in asked))
    pool.queue.flushing = False
    return answers


def _rest_asked(opened: Engine, call: Call, queued: _Queued) -> asyncio.Future[Answer]:
    ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    target = opened.api.find(call.target.encode())
    assert target is not None  # noqa: S101 - it was one when it was recorded
    # A reader without a socket waits for the body that an answer to HEAD does not have.
    method = b"GET" if call.method == b"HEAD" else call.method
    exchange = Loopback(ended).exchange(target, call.body, call.headers, method)
    exchange.watcher = queued
    # The time does not run as it did.
    exchange.deadline_ms = 0
    opened.api.serve(exchange)
    return ended


async def _answered(began: float, sent: float, ended: asyncio.Future[Any]) -> TimedResponse:
    answer: Answer | Outcome = await ended
    seconds = time.perf_counter() - sent
    if isinstance(answer, Outcome):
        lines, body = answer.lines, answer.answer
    else:
        told = (f"{name}: {answer.headers[name]}\r\n" for name in LINES if name in answer.headers)
        lines, body = "".join(told).encode("latin-1"), answer.body
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
        """It is."""
        self.done.set_result(None)
