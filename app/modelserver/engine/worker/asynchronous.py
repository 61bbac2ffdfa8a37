"""Asynchronous handlers: many concurrent requests in one event loop (reference 8.11).

Each request has its own call and context. The server limits their number and duration; when a client
disconnects, its call is cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from modelserver.engine.wire.messages import Broken, Cancelled, Ping, Pong, Predict, Proceed, Stop, ToWorker
from modelserver.engine.worker import tracing
from modelserver.engine.worker.channel import ServerChannel
from modelserver.engine.worker.service import Service, leave_if_broken
from modelserver.engine.worker.streaming import CLIENT_GONE, CallStream, unique_id
from modelserver.engine.worker.work import Work
from modelserver_handlers.contract import check_contract
from modelserver_handlers.current_device import enter_thread
from modelserver_handlers.errors import WorkerUnusable
from modelserver_handlers.metrics.collected import HandlerMetrics
from modelserver_handlers.streaming import ClientsGone

_log = logging.getLogger(__name__)


class AsyncCalls:
    """Calls the handler for each request as it arrives, and answers when the call ends."""

    def __init__(self, service: Service, channel: ServerChannel) -> None:
        self._service = service
        service.context._ms_leave = self._leave
        self._channel = channel
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._gates: dict[int, asyncio.Event] = {}
        self._ids: set[str] = set()
        self._stopped = asyncio.Event()

    async def serve(self) -> None:
        """Returns when all calls have ended after a stop, or at once if the server is gone."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), self._read)
        # Answers are sent whole; uvloop makes what it reads non-blocking.
        os.set_blocking(self._channel.fileno(), True)
        try:
            self._read()
            await self._stopped.wait()
            if self._channel.is_open and self._calls:
                await asyncio.wait(self._calls.values())
        finally:
            loop.remove_reader(self._channel.fileno())

    def _read(self) -> None:
        try:
            for message, tail in self._channel.take(wait=False):
                self._receive(message, tail)
        except Exception:  # noqa: BLE001 - a worker that cannot read is of no use
            traceback.print_exc()
            os._exit(1)
        if not self._channel.is_open:
            self._stopped.set()

    def _receive(self, message: ToWorker, tail: memoryview) -> None:
        if isinstance(message, Predict):
            self._channel.begin(message.sequence)
            work = self._service.take(message, tail)
            task = asyncio.create_task(self._answer(work), name=f"batch {work.sequence}")
            self._calls[work.sequence] = task
            task.add_done_callback(lambda _: self._calls.pop(work.sequence, None))
        elif isinstance(message, Cancelled):
            # Only once: a call that was cancelled may have to wait while it ends.
            if self._service.cancel(message) and (call := self._calls.get(message.sequence)) is not None:
                # After it has begun: a call that is cancelled before never runs, and would never answer.
                asyncio.get_running_loop().call_soon(call.cancel)
        elif isinstance(message, Proceed) and message.sequence in self._gates:
            self._gates[message.sequence].set()
        elif isinstance(message, Ping):
            self._channel.send(Pong())
        elif isinstance(message, Stop):
            self._stopped.set()

    async def _answer(self, work: Work) -> None:
        started = time.perf_counter()
        try:
            if indices := work.open:
                await self._call(work, indices)
        finally:
            # However the call ended, the server expects an answer.
            work.answer_all(work.open, CLIENT_GONE)
            self._channel.send(*self._service.finish(work, time.perf_counter() - started))
            leave_if_broken(self._service)

    def _leave(self, error: WorkerUnusable) -> None:
        """Ends the process without answering, so that others answer."""
        self._channel.send(Broken(str(error), of_gpu=False))
        self._channel.close()
        print(error, file=sys.stderr, flush=True)
        os._exit(1)

    async def _call(self, work: Work, indices: list[int]) -> None:
        service, state = self._service, self._service.state(work, indices)
        name = unique_id(work.rows[indices[0]].request_id, work.sequence, self._ids)
        self._ids.add(name)
        state.request_ids = {0: name}
        if isinstance(state.stream, CallStream):
            gate = self._gates[work.sequence] = state.stream.gate = asyncio.Event()
            gate.set()
        context = service.context._ms_of_request(state)
        context.metrics = metrics = HandlerMetrics(service.context.model_name, service.metrics)
        metrics.request_ids = state.request_ids or {}
        work.calls = 1
        if work.trace:
            # In the context of this task, which ends with the call.
            tracing.enter(work.trace)
        try:
            outputs = service.entry(work.select(indices), context)
            if inspect.isawaitable(outputs):
                outputs = await outputs
            check_contract(outputs, len(indices))
        except ClientsGone:
            pass
        except asyncio.CancelledError as error:
            if not work.cancelled:
                broken_off = RuntimeError(f"the handler's call was cancelled: {error}")
                service.fail(work, indices, broken_off, state)
        except WorkerUnusable as error:
            self._leave(error)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            service.fail(work, indices, error, state)
        else:
            for position, index in enumerate(indices):
                work.answers[index] = service.encode(work.rows[index], outputs, position, state)
            work.add_phases(state.phases)
        finally:
            self._ids.discard(name)
            self._gates.pop(work.sequence, None)
            if state.stream is not None:
                state.stream.close()
            work.metrics += [*(metrics.collect() or ()), *(service.metrics.collect() or ())]


def use_gpu_in_threads() -> None:
    """Makes the worker's GPU the current device of ``asyncio.to_thread``, where handlers compute."""
    executor = ThreadPoolExecutor(thread_name_prefix="asyncio", initializer=enter_thread)
    asyncio.get_running_loop().set_default_executor(executor)


def check_asynchronous(entry: Any) -> None:
    """Warns about a handler that processes only one request at a time."""
    if not inspect.iscoroutinefunction(entry):
        _log.warning(
            "asyncCommunication: true, but the handler's handle is not an `async def`: "
            "it processes one request at a time."
        )
