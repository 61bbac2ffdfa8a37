"""Two batches at once: while one is computed, the next is decoded and preprocessed in another thread.

Only for handlers that support it (``pipelined``, set on the class itself): decoding pictures releases the
interpreter lock, and with an accelerator the CPU would otherwise be idle. All others are called for one batch
at a time in the main thread.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from modelserver.engine.wire.messages import Cancelled, Ping, Pong, Predict, Stop, ToWorker
from modelserver.engine.worker import tracing
from modelserver.engine.worker.channel import ServerChannel
from modelserver.engine.worker.service import Service, leave_if_broken, timed
from modelserver.engine.worker.work import Work
from modelserver_handlers.context import BatchState
from modelserver_handlers.current_device import enter_thread
from modelserver_handlers.loader import LoadedHandler


def can_prefetch(handler: LoadedHandler) -> bool:
    """Whether the handler's own class, not a parent, is ``pipelined``, and it does not run on a CPU.

    There both halves would compete for the same cores, which costs numeric libraries more than the overlap
    gains.
    """
    cls = type(handler.instance)
    promised = cls.__dict__.get("pipelined", False) and hasattr(cls, "_ms_complete")
    return bool(promised) and handler.device != "cpu"


@dataclass(slots=True)
class Part:
    """Rows of a batch for one call. ``value`` is what preprocess returned, ``error`` what it raised."""

    indices: list[int]
    data: list[Any]
    state: BatchState
    value: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class Prepared:
    """A preprocessed batch, mostly one part; ``seconds`` is the duration of that."""

    work: Work
    parts: list[Part]
    seconds: float


class Pipeline:
    """Receives and prepares in one thread, computes and answers in the caller's."""

    def __init__(self, handler: Any, service: Service, channel: ServerChannel) -> None:
        self._handler = handler
        self._service = service
        self._channel = channel
        self._slot: queue.Queue[Prepared | Ping | Stop] = queue.Queue(maxsize=1)
        self._received = self._answered = 0

    def serve(self, messages: Iterator[tuple[ToWorker, memoryview]]) -> None:
        """Returns when the server sends stop or closes the connection."""
        threading.Thread(target=self._receive, args=(messages,), name="prepare", daemon=True).start()
        while not isinstance(item := self._slot.get(), Stop):
            if isinstance(item, Ping):
                self._channel.send(Pong())
            else:
                if self._channel.begin(item.work.sequence):
                    seconds = item.seconds + timed(lambda: self._finish(item))
                    self._channel.send(*self._service.finish(item.work, seconds))
                    leave_if_broken(self._service)
                else:
                    self._service.forget(item.work)
                self._answered += 1

    def _receive(self, messages: Iterator[tuple[ToWorker, memoryview]]) -> None:
        try:
            enter_thread()
            for message, tail in messages:
                if isinstance(message, Predict):
                    # What is prepared while another batch is computed has not begun.
                    if self._received == self._answered and not self._channel.begin(message.sequence):
                        continue
                    self._received += 1
                    self._slot.put(self._prepare(self._service.take(message, tail)))
                elif isinstance(message, Cancelled):
                    self._service.cancel(message)
                elif isinstance(message, (Ping, Stop)):
                    self._slot.put(message)
            self._slot.put(Stop())
        except BaseException:  # noqa: BLE001 - without this thread the process is of no use
            traceback.print_exc()
            os._exit(1)

    def _prepare(self, work: Work) -> Prepared:
        started = time.perf_counter()
        parts = [self._prepare_part(work, indices) for indices in self._service.limit.portions(work.open)]
        return Prepared(work, parts, time.perf_counter() - started)

    def _prepare_part(self, work: Work, indices: list[int]) -> Part:
        part = Part(indices, work.select(indices), self._service.state(work, indices))
        self._service.begin(part.state)
        token = tracing.enter(work.trace) if work.trace else None
        try:
            part.value = self._handler._ms_prepare(part.data, self._service.context)
        except Exception as raised:  # noqa: BLE001 - user code may raise anything
            part.error = raised
        finally:
            tracing.leave(token)
        return part

    def _finish(self, item: Prepared) -> None:
        for part in item.parts:
            if self._service.broken is None:
                self._service.settle(item.work, part.indices, part.state, partial(self._complete, part))
            else:
                item.work.answer_all(part.indices, self._service.broken)

    def _complete(self, part: Part) -> Any:
        # Not kept for further calls, which need the GPU's memory.
        value, error = part.value, part.error
        part.value = part.error = None
        if error is not None:
            raise error
        self._service.begin(part.state)
        return self._handler._ms_complete(value, part.data, self._service.context)
