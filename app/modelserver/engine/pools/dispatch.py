"""How the batches of one model version get to workers, and their answers to requests.

Whatever may allow a batch to be sent (an arrival, a free worker, time) calls :meth:`Dispatch.pump`, which
sends all that may go now and sets a timer for the next.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from modelserver.engine.batching.queue import BatchQueue
from modelserver.engine.batching.request import Batch
from modelserver.engine.pools.admission import Admission
from modelserver.engine.pools.crew import Crew
from modelserver.engine.pools.reserve import Reserve, has_idle, idled
from modelserver.engine.pools.spec import Affinity, PoolLimits, WorkerState
from modelserver.engine.pools.worker import Worker
from modelserver.engine.wire.arena import ProtocolError
from modelserver.engine.wire.messages import ANY_PATH, Answer, Parts, Result
from modelserver.errors import GpuFailed, HandlerError, InternalError, ModelServerError, ResponseTimeout

if TYPE_CHECKING:
    from modelserver.engine.telemetry.model_metrics import ModelMetrics

# Bytes of parts that a client may have unread, and how many seconds a worker waits for it to catch up.
BACKLOG, PATIENCE = 1 << 20, 5.0


class Dispatch:
    """Sends batches of ``queue`` to the crew's workers, whose events it receives.

    ``affinity`` decides which worker gets which request; without one, all are alike. ``failed_in_row`` counts
    batches in a row without a good row; the times are of the last batch. ``takes_scopes``: the handler
    answers any request, see :data:`ANY_PATH`.
    """

    def __init__(
        self,
        queue: BatchQueue,
        crew: Crew,
        admission: Admission,
        *,
        limits: PoolLimits,
        metrics: ModelMetrics,
        clock: Callable[[], float],
        affinity: Affinity | None,
    ) -> None:
        self.queue = queue
        self.workers = crew.workers
        self.limits = limits
        self.clock = clock
        self.last_handler_time = self.last_overhead = 0.0
        self.last_phases = (0.0, 0.0, 0.0)
        self.failed_in_row = 0
        self.takes_scopes = False
        self._crew = crew
        self._admission = admission
        self._metrics = metrics
        self._affinity = affinity
        self._concurrent = crew.spec.concurrency > 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        # No worker has room; whatever frees room calls pump.
        self._crowded = False
        self._reserve = Reserve()

    def size_queue(self) -> None:
        """Sets the size of batches: handlers with a call for each request get no larger ones than 1."""
        size = 1 if self._concurrent else self.limits.batch_size
        self.queue.reconfigure(size, replace(self.limits, batch_size=size).make_policy(self.queue.policy))

    # -- batches

    def arrived(self) -> None:
        """A request has been queued."""
        queue = self.queue
        if queue.instances >= queue.batch_size:
            if not self._crowded:
                self.pump()
        elif self._soon is None:
            # At the end of this turn of the loop, so that requests from other sockets join the batch.
            self._soon = self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Sends every batch that may go now and sets the timer for the next one."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._affinity is not None:
            self._pump_by_affinity(self._affinity)
            return
        self._crowded = False
        queue, now = self.queue, self.clock()
        if not queue.requests and not self._reserve.used:
            return
        ready = WorkerState.READY
        idle = [worker for worker in self.workers if not worker.flights.in_flight and worker.state is ready]
        due = math.inf
        if far := self._reserve.far:
            idle = self._reserve.add_soon_free(self, idle, now)
        while idle:
            batch = queue.take(now, len(idle))
            if batch is None:
                break
            self.send(idle.pop(0), batch, now)
        if not idle:
            self._crowded = not self._reserve.fill(self, now)
            if far and queue.requests:
                due = self._reserve.next_look(now)
        elif self._reserve.used and self._reserve.take_back(self, now, others_idle=has_idle(idle)):
            self.pump()
            return
        elif queue.requests:
            due = queue.due(now, len(idle))
        if due < math.inf:
            self._timer = self._loop.call_later(max(0.0, due - now), self.pump)

    def _pump_by_affinity(self, affinity: Affinity) -> None:
        """A worker gets its next batch when it has answered the last one, never in advance."""
        now, ready = self.clock(), WorkerState.READY
        self._admission.refuse(affinity.expire(now))
        # Idle workers first.
        open_to_new = sorted(
            (worker for worker in self.workers if worker.state is ready),
            key=lambda w: len(w.flights.in_flight),
        )
        affinity.place(open_to_new, sum(w.state is not WorkerState.FAILED for w in self.workers))
        self._crowded = True
        due = affinity.next_end()
        for worker in (*self.workers, *affinity.leaving):
            while worker.has_room if self._concurrent else worker.idle:
                batch = affinity.take(worker, now)
                if batch is None:
                    self._crowded = False
                    due = min(due, affinity.due(worker, now))
                    break
                self.send(worker, batch, now)
        if due < math.inf:
            self._timer = self._loop.call_later(max(0.0, due - now), self.pump)
        self._admission.check_drained()

    def send(self, worker: Worker, batch: Batch, now: float) -> None:
        """Sends a batch to the worker; if that is impossible, the batch fails."""
        batch.sent(worker, now)
        try:
            worker.flights.send(batch)
        except ProtocolError as error:
            self._fail_batch(batch, InternalError(f"The batch cannot be sent to a worker: {error}"))
        if worker.flights.round_trip:
            self._reserve.note(self, worker)

    def put_back(self, batch: Batch) -> None:
        """Queues a batch again that no worker has begun, as if it had not been sent."""
        batch.returned()
        self.queue.put_back(batch)
        # Requests that have ended are not queued.
        self._admission.check_drained()

    def close(self) -> None:
        """Sends nothing any more."""
        self._reserve.close()
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()

    # -- events of workers

    def worker_ready(self, worker: Worker, seconds: float) -> None:
        if worker.flights.concurrency and not self._concurrent:
            self._concurrent = True
            self.size_queue()
        self.takes_scopes = ANY_PATH in worker.model.endpoints
        # The only worker so far may hold a batch in reserve.
        self._reserve.watch(self)
        self._crew.loaded(worker, seconds)
        self.pump()

    def worker_answered(self, worker: Worker, batch: Batch, result: Result, tail: memoryview) -> None:
        now, seconds, sent, way = self.clock(), result.handler_time, batch.sent_at, worker.flights.round_trip
        answers = result.answers
        if self._affinity is not None:
            self._admission.refuse(self._affinity.finished(batch, now, worker, answers))
        if not batch.at_once:
            self.queue.policy.finished(batch.size, seconds + idled(worker, batch) if way else seconds, now)
        # The handler began when it was free, unless it had prepared the batch before.
        began = now - seconds
        if not self._concurrent:
            began = worker.flights.freed_at if worker.flights.freed_at < began else began
            worker.flights.freed_at = now
        if way:
            self._reserve.note(self, worker)
        began = began if sent < began else sent
        self.last_handler_time, self.last_phases = seconds, result.phases
        self.last_overhead = now - began - seconds
        if len(answers) != batch.size:
            # Our workers always send one per instance: this one cannot be trusted.
            error = HandlerError(f"{len(answers)} answers came for {batch.size} instances", 500)
            self._fail_batch(batch, error)
            worker.kill(error.message)
            return
        if batch.trace is not None:
            batch.trace.answered(batch, result, began, now)
        if answers[0].failed and all(answer.failed and answer.status >= 500 for answer in answers):
            self.failed_in_row += 1
        else:
            self.failed_in_row = 0
        # Refill the worker first, before delivering answers.
        self.pump()
        self._deliver(batch, result, tail, began)
        limits, metrics = self.limits, self._metrics
        metrics.batches.finished(
            batch.size, len(batch.parcels), limits.batch_size, batch.reason, seconds, result.phases
        )
        if result.calls > 1:
            metrics.batches.isolated(sum(answer.failed for answer in answers))
        for m in result.metrics or ():
            metrics.handler_metric(m.name, m.value, m.unit, m.kind, m.dimensions, m.request_id)
        if 0 < limits.max_worker_requests <= worker.flights.served:
            self._crew.recycle_served(worker)
        if self._admission.closing:
            self._admission.check_drained()

    def _deliver(self, batch: Batch, result: Result, tail: memoryview, began: float) -> None:
        answers, handler_time, waited = result.answers, result.handler_time, self._metrics.batches.waited
        position, remaining = 0, iter(answers)
        for parcel in batch.parcels:
            pieces: list[tuple[Answer, bytes]] = []
            for answer in islice(remaining, parcel.count):
                end = position + answer.size
                pieces.append((answer, bytes(tail[position:end])))
                position = end
            request = parcel.request
            queued = began - request.arrived
            if request.began is None:
                request.began, request.handler_time, request.queued = began, handler_time, queued
            else:
                request.handled(began, handler_time)
            if request.deadline is not None and request.missing == parcel.count:
                self._admission.forget_deadline(request)
            waited(queued)
            request.deliver(parcel.start, pieces)

    def worker_streamed(self, worker: Worker, message: Parts, tail: memoryview) -> None:
        """Passes each part to its request; one that does not support parts fails.

        Those of a batch that has timed out are dropped.
        """
        position, batch = 0, None
        for sequence, row, answer in zip(message.sequences, message.rows, message.answers, strict=False):
            part = tail[position : position + answer.size]
            position += answer.size
            batch = worker.flights.streamed(sequence)
            request = None if batch is None else batch.request_of(row)
            if batch is None or request is None or request.done:
                continue
            request.began = request.began or max(batch.sent_at, worker.flights.freed_at)
            if request.on_part is not None:
                request.on_part(request, answer, bytes(part))
                continue
            self._admission.abort(request, HandlerError(_STREAM_REFUSED, 500))
        if message.wait and batch is not None:
            # A call that waits alone holds no others up, and has the response timeout.
            patience = math.inf if self._concurrent else min(PATIENCE, self._crew.times.response / 2)
            self._let_proceed(worker, batch, self.clock() + patience)

    def _let_proceed(self, worker: Worker, batch: Batch, until: float) -> None:
        """Pauses the worker while clients have a large backlog; one that is too slow delays it only once."""
        requests = [parcel.request for parcel in batch.parcels if not parcel.request.done]
        behind = [r for r in requests if r.backlog is not None and r.backlog() > BACKLOG]
        if behind and self.clock() < until:
            self._loop.call_later(0.01, self._let_proceed, worker, batch, until)
            return
        for request in behind:
            request.backlog = None
        worker.flights.proceed(batch)

    def worker_returned(self, worker: Worker, batch: Batch) -> None:
        self.put_back(batch)
        self._admission.refuse_if_hopeless()
        self.pump()

    def worker_failed(self, worker: Worker, error: ModelServerError) -> None:
        self._metrics.workers.count("worker_failures_total", type(error).__name__)
        if isinstance(error, GpuFailed):
            self._metrics.workers.count("gpu_failures_total")

    def worker_lost(
        self, worker: Worker, running: Batch | None, unbegun: list[Batch], error: ModelServerError
    ) -> None:
        if self._affinity is not None:
            # Unless only one request timed out and the process lives.
            if worker.state is not WorkerState.READY or not isinstance(error, ResponseTimeout):
                self._lose_state(self._affinity, worker)
            for batch in unbegun:
                self._fail_batch(batch, error)
            unbegun = []
        for batch in reversed(unbegun):
            if worker.state is WorkerState.UNLOADING or not any(p.request.requeued for p in batch.parcels):
                for request in batch.try_again():
                    self._admission.end(request, error)
                self.put_back(batch)
            else:
                self._fail_batch(batch, error)
        if running is not None:
            self._fail_batch(running, error)
        self._admission.refuse_if_hopeless()
        self.pump()
        self._admission.check_drained()

    def _fail_batch(self, batch: Batch, error: Exception) -> None:
        if self._affinity is not None:
            self._admission.refuse(self._affinity.finished(batch, self.clock()))
        self.failed_in_row += 1
        for request in batch.failed(error):
            self._admission.end(request, error)

    # -- events of the crew

    def workers_changed(self) -> None:
        self._admission.refuse_if_hopeless()
        self._admission.check_drained()
        if self._crew.on_demand is not None:
            self._crew.on_demand.changed()

    async def release(self, worker: Worker) -> None:
        """Lets the sequences of a leaving worker end; what remains of them is lost as if it had died."""
        if self._affinity is not None:
            if not self._admission.closing:
                await self._affinity.leave(worker, self._crew.times.response)
            self._lose_state(self._affinity, worker)

    def _lose_state(self, affinity: Affinity, worker: Worker) -> None:
        for request, error in affinity.lose(worker, self.clock()):
            self._admission.end(request, error)


_STREAM_REFUSED = (
    "The handler streams its answer, which is not possible for one answer to several instances; "
    "send the request to /predictions."
)
