"""The requests of one model version: who is let in, until when each may wait, and how it ends.

A request enters by :meth:`Admission.accept` and ends by exactly one of: its answers, :meth:`Admission.end`,
:meth:`Admission.cancel`. Once another pool has replaced this one, it gets late and waiting requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from modelserver.engine.batching.queue import BatchQueue, QueueFull
from modelserver.engine.batching.request import Request
from modelserver.engine.offload.gradual import GradualCalls
from modelserver.engine.pools.crew import Crew
from modelserver.engine.pools.spec import Affinity, no_worker
from modelserver.errors import DeadlineExceeded, ModelServerError, ServiceUnavailable

if TYPE_CHECKING:
    from modelserver.engine.telemetry.model_metrics import ModelMetrics

_EARLY = 0.002  # seconds: timers count in milliseconds


class Successor(Protocol):
    """The pool that replaces another one."""

    def submit(self, request: Request, version: str | None = None) -> None: ...
    def cancel(self, request: Request) -> None: ...


class Admission:
    """Accepts requests for ``queue`` while the crew may serve them, and ends those that are not answered.

    ``name`` is the model's, for messages. ``tickets``: requests of sequences need a free worker. ``closing``:
    new requests are refused. ``successor`` is the pool that replaces this one.
    """

    def __init__(
        self,
        name: str,
        queue: BatchQueue,
        crew: Crew,
        *,
        metrics: ModelMetrics,
        clock: Callable[[], float],
        affinity: Affinity | None,
        tickets: bool,
    ) -> None:
        self.closing = False
        self.successor: Successor | None = None
        self._name = name
        self._queue = queue
        self._crew = crew
        self._metrics = metrics
        self._clock = clock
        self._affinity = affinity
        self._tickets = tickets
        self._loop = asyncio.get_running_loop()
        self._deadlines: dict[Request, asyncio.TimerHandle] = {}
        self._late = GradualCalls()
        self._passed_on: set[Request] = set()
        self._drained: asyncio.Future[None] | None = None

    # -- requests

    def accept(self, request: Request, version: str | None = None) -> bool:
        """Queues a request; False if the successor has it. ``version`` is what the client named.

        Raises ServiceUnavailable if there are no workers, or the queue is full.
        """
        affinity = self._affinity
        if affinity is not None:
            self.refuse(affinity.expire(self._clock()))
        if self.closing or not (self._crew.has_hope() or (affinity is not None and affinity.lives(request))):
            if self.successor is not None:
                # The sender looked up this pool before it was replaced.
                self.successor.submit(request, version)
                self._passed_on.add(request)
                return False
            self._metrics.requests.rejected("no_worker")
            raise self._no_worker(version)
        try:
            if affinity is not None and not self._has_ticket(request, affinity):
                raise QueueFull("no_ticket")  # noqa: TRY301 - is counted as the queue's own
            self._queue.put(request)
        except QueueFull as full:
            self._metrics.requests.rejected(full.reason)
            raise self._refusal(full, version) from None
        if not self._crew.workers and self._crew.on_demand is not None:
            self._crew.on_demand.wake()
        if request.waiting > 1 or len(request.rows) > self._queue.batch_size:
            self._metrics.requests.split()
        if request.deadline is not None:
            timer = self._loop.call_at(request.deadline, self._late.add, self._expire, request)
            self._deadlines[request] = timer
        return True

    def _has_ticket(self, request: Request, affinity: Affinity) -> bool:
        """Whether a worker is free, or one is to be started for requests; or none has to be."""
        is_bound = self._tickets and (self._crew.workers or affinity.lives(request))
        return not is_bound or affinity.has_ticket(request, self._crew.free())

    def cancel(self, request: Request) -> None:
        """The client disconnected: removes waiting instances, notifies the worker, drops answers."""
        if request.done:
            return
        if self.successor is not None and request in self._passed_on:
            self.successor.cancel(request)
            return
        request.on_done = None
        if request.deadline is not None and request.deadline <= self._clock() + _EARLY:
            self._expire(request)
        else:
            self.abort(request, ConnectionError("The client disconnected."))
            self._metrics.requests.cancelled(self._clock() - request.arrived)

    def end(self, request: Request, error: Exception) -> None:
        """Ends a request with an error."""
        self._queue.remove(request)
        self.forget_deadline(request)
        request.fail(error)

    def abort(self, request: Request, error: Exception) -> None:
        """Ends a request that a worker may have, which is notified."""
        self.end(request, error)
        if request.worker is not None:
            request.worker.flights.cancel(request)
        self.check_drained()

    def forget_deadline(self, request: Request) -> None:
        """The request has its answers in time."""
        if request.deadline is not None and (timer := self._deadlines.pop(request, None)) is not None:
            timer.cancel()

    def _expire(self, request: Request) -> None:
        self._deadlines.pop(request, None)
        if request.done:
            return
        self._metrics.requests.expired()
        text = f"The deadline of the request passed after {(self._clock() - request.arrived) * 1000:.0f} ms."
        self.abort(request, self._crew.spec.shortage() or DeadlineExceeded(text))

    def refuse(self, requests: Iterable[Request]) -> None:
        """Refuses requests that have left the queue, as their sequences have ended."""
        for request in requests:
            self.end(request, no_worker(self._name))

    def refuse_if_hopeless(self) -> None:
        """Refuses waiting requests if no worker may come back; a worker's sequences wait for that one."""
        if self._crew.has_hope():
            return
        if self._affinity is None:
            self._clear_queue()
            return
        for request in self._affinity.remove_unplaced():
            self.end(request, self._no_worker())

    def _no_worker(self, version: str | None = None) -> ModelServerError:
        refusal = None if (demand := self._crew.on_demand) is None else demand.refusal
        return refusal or no_worker(self._name, version, self._crew.failure)

    def _refusal(self, full: QueueFull, version: str | None) -> ModelServerError:
        """The error to raise; no frame and no exception refers to it, for a cycle would hold the request."""
        error, full.error = full.error or no_worker(self._name, version), None
        error.openai_status = 429
        error.openai_message = f"Too many requests wait for model {self._name}; try again later."
        return error

    def _clear_queue(self) -> None:
        """Passes waiting requests to the successor, if any; refuses the others and those already begun."""
        for request in self._queue.drain():
            error = self._no_worker()
            if self.successor is not None and request.worker is None:
                self.forget_deadline(request)
                try:
                    self.successor.submit(request)
                except ServiceUnavailable as refusal:
                    error = refusal
                else:
                    self._passed_on.add(request)
                    continue
            self.end(request, error)

    def close(self) -> None:
        """Refuses all requests, those that wait included."""
        self.closing = True
        self._clear_queue()

    # -- draining

    async def wait_drained(self, grace: float) -> bool:
        """Waits until no request is left; False if some are after ``grace`` seconds."""
        drained = self._drained = self._loop.create_future()
        self._end_drain(drained)
        done, _ = await asyncio.wait({drained}, timeout=grace)
        return bool(done)

    def check_drained(self) -> None:
        """Ends a drain if nothing is left after this turn of the loop, in which batches may come back."""
        if self._drained is not None:
            self._loop.call_soon(self._end_drain, self._drained)

    def _end_drain(self, drained: asyncio.Future[None]) -> None:
        if not (self._crew.busy or self._queue.requests or drained.done()):
            drained.set_result(None)
