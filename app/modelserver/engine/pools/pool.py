"""The workers of one model version, and the queue they pull from.

The pool connects the queue, the clock and the workers. A request enters by :meth:`Pool.submit` and ends by
exactly one of: its answers, an error, :meth:`Pool.cancel`. Whatever may allow a batch to be sent (an arrival,
a free worker, time) calls :meth:`Pool.pump`, which sends all that may go now and sets a timer for the next.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from modelserver.engine.batching.queue import BatchQueue, QueueFull
from modelserver.engine.batching.tickets import TicketQueue
from modelserver.engine.offload.turns import InTurns
from modelserver.engine.pools.devices import Places
from modelserver.engine.pools.recycling import Recycler
from modelserver.engine.pools.reserve import Reserve, has_idle, idled
from modelserver.engine.pools.spec import (
    PoolLimits,
    PoolStatistics,
    WorkerState,
    WorkerTimes,
    no_worker,
    policy_for,
)
from modelserver.engine.pools.worker import Worker
from modelserver.engine.wire.frames import ProtocolError
from modelserver.errors import (
    DeadlineExceeded,
    HandlerError,
    InternalError,
    ModelServerError,
    ServiceUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.engine.batching.request import Batch, Request
    from modelserver.engine.pools.devices import DeviceList
    from modelserver.engine.pools.scaling import PoolScaling
    from modelserver.engine.pools.spec import WorkerSpec
    from modelserver.engine.telemetry.model_metrics import ModelMetrics
    from modelserver.engine.wire.messages import Answer, Parts, Result
    from modelserver.ext.sequences.queue import SequenceStatistics

_log = logging.getLogger("modelserver.workers")
# Bytes of parts that a client may have unread, and how many seconds a worker waits for it to catch up.
BACKLOG, PATIENCE = 1 << 20, 5.0
FAILING = 10  # batches in a row without a good row, from which on a version counts as failing
_EARLY = 0.002  # seconds: timers count in milliseconds


class Pool:
    """Serves one model version.

    Args:
        name: of the model, for messages.
        label: ``<model>_<version>``, for worker names.
        spec: for starting workers; the GPU is set per worker.
        times: the timeouts of each worker.
        limits: of batches and the queue.
        next_id: numbers workers.
        devices: assigns GPUs to workers.
        metrics: of the version.
        queue: for requests; by default as the limits describe.
    """

    # Slots, as attribute access is slower on instances with more than thirty.
    __slots__ = (
        "__weakref__", "_crowded", "_deadlines", "_late", "_leaving", "_loop", "_next_id", "_passed_on",
        "_quiet", "_recycler", "_reserve", "_soon", "_successor", "_timer", "_times", "autoscaling", "clock",
        "closing", "devices", "failed_in_row", "label", "last_handler_time", "last_overhead", "last_phases",
        "limits", "max_workers", "metrics", "min_workers", "name", "queue", "spec", "warnings", "workers",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        label: str,
        spec: WorkerSpec,
        times: WorkerTimes,
        limits: PoolLimits,
        *,
        next_id: Callable[[], int],
        devices: DeviceList,
        metrics: ModelMetrics,
        queue: BatchQueue | None = None,
    ) -> None:
        self.name = name
        self.workers: list[Worker] = []
        self.warnings: list[str] = []
        self.min_workers = 0
        self.max_workers = 0
        self.limits = limits
        self.queue = self._plain_queue() if queue is None else queue
        self.label = label
        self.spec = spec
        self._times = times
        self._next_id = next_id
        self.devices = Places(devices)
        self.metrics = metrics
        self._loop = asyncio.get_running_loop()
        # More precise than the loop's clock, which may count in milliseconds.
        self.clock = time.monotonic
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        # No worker has room; whatever frees room calls pump.
        self._crowded = False
        self._reserve = Reserve()
        self._deadlines: dict[Request, asyncio.TimerHandle] = {}
        self._late = InTurns(self._expire)
        self.last_handler_time = self.last_overhead = 0.0
        self.last_phases = (0.0, 0.0, 0.0)
        self.failed_in_row = 0
        self.closing = False
        self._quiet: asyncio.Future[None] | None = None
        self._leaving: dict[Worker, asyncio.Task[None]] = {}
        self.autoscaling: PoolScaling | None = None
        self._recycler = Recycler(self)
        self._recycler.follow()
        # The pool that replaces this one, and the requests passed on to it.
        self._successor: Pool | None = None
        self._passed_on: set[Request] = set()

    def _plain_queue(self) -> BatchQueue:
        limits = self.limits
        bounds = limits.batch_size, policy_for(limits), limits.max_requests, limits.max_bytes
        if limits.tickets:
            return TicketQueue(*bounds, lambda: sum(worker.idle for worker in self.workers))
        return BatchQueue(*bounds)

    def reconfigure(
        self, limits: PoolLimits, times: WorkerTimes, *, batch_size: int, frame_limit: int
    ) -> None:
        """Applies new limits and timeouts; running batches are not affected.

        ``batch_size`` is the one handlers see, ``frame_limit`` the bytes that a worker may send at once.
        """
        self.spec = replace(
            self.spec,
            load=msgspec.structs.replace(self.spec.load, batch_size=batch_size),
            frame_limit=frame_limit,
        )
        self._times = times
        for worker in self._all_workers():
            worker.reconfigure(self.spec, times)
        self.limits = limits
        self._recycler.follow()
        self.queue.reconfigure(limits.batch_size, policy_for(limits, self.queue.policy))
        self.pump()

    # -- requests

    def submit(self, request: Request, asked_version: str | None = None) -> None:
        """Queues a request; ``on_done`` is called at its end. ``asked_version`` is what the client named.

        Raises ServiceUnavailable if there are no workers, or the queue is full.
        """
        if self.closing or not self._has_hope():
            if self._successor is not None:
                # The sender looked up this pool before it was replaced.
                self._successor.submit(request, asked_version)
                self._passed_on.add(request)
                return
            self.metrics.requests.rejected("no_worker")
            raise no_worker(self.name, asked_version, self.failure)
        queue = self.queue
        try:
            queue.put(request)
        except QueueFull as full:
            self.metrics.requests.rejected(full.reason)
            raise no_worker(self.name, asked_version) from full
        if request.waiting > 1 or len(request.rows) > queue.batch_size:
            self.metrics.requests.split()
        if request.deadline is not None:
            self._deadlines[request] = self._loop.call_at(request.deadline, self._late.add, request)
        if queue.instances >= queue.batch_size:
            if not self._crowded:
                self.pump()
        elif self._soon is None:
            # At the end of this turn of the loop, so that requests from other sockets join the batch.
            self._soon = self._loop.call_soon(self.pump)

    def cancel(self, request: Request) -> None:
        """The client disconnected: removes waiting instances, notifies the worker, drops answers."""
        if request.done:
            return
        if self._successor is not None and request in self._passed_on:
            self._successor.cancel(request)
            return
        request.on_done = None
        if request.deadline is not None and request.deadline <= self.clock() + _EARLY:
            self._expire(request)
        else:
            self._abort(request, ConnectionError("The client disconnected."))
            self.metrics.requests.cancelled(self.clock() - request.arrived)

    def pump(self) -> None:
        """Sends every batch that may go now and sets the timer for the next one."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._crowded = False
        queue, now = self.queue, self.clock()
        if not queue.requests and not self._reserve.used:
            return
        ready = WorkerState.READY
        idle = [worker for worker in self.workers if not worker.in_flight and worker.state is ready]
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

    def worker_returned(self, worker: Worker, batch: Batch) -> None:
        self.put_back(batch)
        self._refuse_if_hopeless()
        self.pump()

    def put_back(self, batch: Batch) -> None:
        """Queues a batch again that no worker has begun, as if it had not been sent."""
        batch.returned()
        self.queue.put_back(batch)
        # Requests that have ended are not queued.
        self._check_quiet()

    def send(self, worker: Worker, batch: Batch, now: float) -> None:
        """Sends a batch to the worker; if that is impossible, the batch fails."""
        batch.sent(worker, now)
        try:
            worker.send(batch)
        except ProtocolError as error:
            self._fail_batch(batch, InternalError(f"The batch cannot be sent to a worker: {error}"))
        if worker.round_trip:
            self._reserve.note(self, worker)

    def _expire(self, request: Request) -> None:
        self._deadlines.pop(request, None)
        if request.done:
            return
        self.metrics.requests.expired()
        ms = (self.clock() - request.arrived) * 1000
        self._abort(request, DeadlineExceeded(f"The deadline of the request passed after {ms:.0f} ms."))

    def _forget_deadline(self, request: Request) -> None:
        if request.deadline is not None and (timer := self._deadlines.pop(request, None)) is not None:
            timer.cancel()

    # -- events of workers

    def worker_ready(self, worker: Worker, seconds: float) -> None:
        # The only worker so far may hold a batch in reserve.
        self._reserve.watch(self)
        self.metrics.workers.loaded(worker.label, seconds)
        self._recycler.loaded(worker)
        for warning in worker.warnings:
            if warning not in self.warnings:
                self.warnings.append(warning)
                _log.warning("Model %s: %s", self.label, warning)
        self.pump()

    def worker_answered(self, worker: Worker, batch: Batch, result: Result, tail: memoryview) -> None:
        now, seconds, sent, way = self.clock(), result.handler_time, batch.sent_at, worker.round_trip
        if not batch.at_once:
            self.queue.policy.finished(batch.size, seconds + idled(worker, batch) if way else seconds, now)
        # The handler began when it was free, unless it had prepared the batch before.
        began = now - seconds
        if not self.spec.concurrency:
            began = worker.freed_at if worker.freed_at < began else began
            worker.freed_at = now
        if way:
            self._reserve.note(self, worker)
        began = began if sent < began else sent
        self.last_handler_time, self.last_phases = seconds, result.phases
        self.last_overhead = now - began - seconds
        answers = result.answers
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
        self.metrics.batches.finished(
            batch.size, len(batch.parcels), self.limits.batch_size, batch.reason, seconds, result.phases
        )
        if result.calls > 1:
            self.metrics.batches.isolated(sum(answer.failed for answer in answers))
        if result.metrics:
            for m in result.metrics:
                self.metrics.handler_metric(m.name, m.value, m.unit, m.kind, m.dimensions, m.request_id)
        if 0 < self.limits.max_worker_requests <= worker.served:
            self._recycler.served(worker)
        if self._quiet is not None:
            self._check_quiet()

    def worker_streamed(self, worker: Worker, batch: Batch, message: Parts, tail: memoryview) -> None:
        """Passes each part to its request; one that does not support parts fails."""
        position = 0
        for row, answer in zip(message.rows, message.answers, strict=False):
            part = tail[position : position + answer.size]
            position += answer.size
            request = batch.request_of(row)
            if request is None or request.done:
                continue
            request.began = request.began or max(batch.sent_at, worker.freed_at)
            if request.on_part is not None:
                request.on_part(request, answer, bytes(part))
                continue
            self._abort(request, HandlerError(_STREAM_REFUSED, 500))
        if message.wait:
            patience = min(PATIENCE, self._times.response / 2)
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
        worker.proceed(batch)

    def _deliver(self, batch: Batch, result: Result, tail: memoryview, began: float) -> None:
        answers, handler_time, waited = result.answers, result.handler_time, self.metrics.batches.waited
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
                self._forget_deadline(request)
            waited(queued)
            request.deliver(parcel.start, pieces)

    def worker_broken(self, worker: Worker) -> None:
        self.metrics.workers.gpu_failed()

    def worker_lost(
        self, worker: Worker, running: Batch | None, unbegun: list[Batch], error: ModelServerError
    ) -> None:
        for batch in reversed(unbegun):
            if worker.state is WorkerState.UNLOADING or not any(p.request.requeued for p in batch.parcels):
                for request in batch.try_again():
                    self._end(request, error)
                self.put_back(batch)
            else:
                self._fail_batch(batch, error)
        if running is not None:
            self._fail_batch(running, error)
        self._refuse_if_hopeless()
        self.pump()
        self._check_quiet()

    def _fail_batch(self, batch: Batch, error: Exception) -> None:
        self.failed_in_row += 1
        for request in batch.failed(error):
            self._end(request, error)

    def _end(self, request: Request, error: Exception) -> None:
        self.queue.remove(request)
        self._forget_deadline(request)
        request.fail(error)

    def _abort(self, request: Request, error: Exception) -> None:
        """Ends a request that a worker may have, which is told."""
        self._end(request, error)
        if request.worker is not None:
            request.worker.cancel(request)
        self._check_quiet()

    def _has_hope(self) -> bool:
        """Whether any worker serves or may come back."""
        ready = WorkerState.READY
        for worker in self.workers:  # noqa: SIM110 - asked for every request, and a generator costs more
            if worker.state is ready or worker.may_serve:
                return True
        return False

    def _refuse_if_hopeless(self) -> None:
        """Refuses waiting requests if no worker may come back."""
        if not self._has_hope():
            self._clear_queue()

    def _clear_queue(self) -> None:
        """Passes waiting requests to the successor, if any; refuses the others and those already begun."""
        for request in self.queue.drain():
            error = no_worker(self.name, failure=self.failure)
            if self._successor is not None and request.worker is None:
                self._forget_deadline(request)
                try:
                    self._successor.submit(request)
                except ServiceUnavailable as refusal:
                    error = refusal
                else:
                    self._passed_on.add(request)
                    continue
            self._end(request, error)

    # -- workers

    def scale(self, min_workers: int, max_workers: int) -> list[Worker]:
        """Starts or retires workers (reference 5.3) without waiting; returns those started.

        The newest are retired first, and finish their running batches.
        """
        self.min_workers, self.max_workers = min_workers, max_workers if min_workers else 0
        # Failed workers make room for new ones.
        for worker in [worker for worker in self.workers if worker.state is WorkerState.FAILED]:
            self.workers.remove(worker)
            self.devices.leave(worker.gpu_id)
        return self.resize(min(max(len(self.workers), min_workers), self.max_workers))

    def resize(self, count: int) -> list[Worker]:
        """As :meth:`scale`, to exactly ``count`` workers without changing the bounds."""
        started = [self._start() for _ in range(count - len(self.workers))]
        surplus = self.workers[count:]
        del self.workers[count:]
        for worker in reversed(surplus):
            self._retire(worker)
        self._refuse_if_hopeless()
        return started

    def dismiss(self, worker: Worker) -> None:
        """Retires one worker."""
        self.workers.remove(worker)
        self._retire(worker)
        self._refuse_if_hopeless()

    def _start(self) -> Worker:
        worker = self.make_worker(self.devices.assign())
        self.workers.append(worker)
        return worker

    def make_worker(self, device: int | None) -> Worker:
        """Starts a worker without adding it to the pool."""
        worker_id = self._next_id()
        load = msgspec.structs.replace(self.spec.load, gpu_id=device)
        # With autoscaling, the cores are shared among the most workers there may be.
        sharers = self.min_workers if self.autoscaling is None else self.max_workers
        threads = max(1, self.spec.threads // max(1, sharers))
        spec = replace(self.spec, load=load, threads=threads)
        worker = Worker(worker_id, f"W-{worker_id}-{self.label}", spec, self._times, self)
        worker.first_load.add_done_callback(lambda _: self._loop.call_soon(self._refuse_if_hopeless))
        return worker

    def exchange(self, worker: Worker, fresh: Worker) -> None:
        """Replaces a worker by ``fresh``, which is on the same device."""
        self.workers[self.workers.index(worker)] = fresh
        self.end_worker(worker)
        self.pump()

    def _retire(self, worker: Worker) -> None:
        self.devices.leave(worker.gpu_id)
        self.end_worker(worker)

    def end_worker(self, worker: Worker) -> None:
        """Ends a removed worker once it has finished its running batches."""
        if self._has_hope():
            for batch in worker.take_back():
                self.worker_returned(worker, batch)
        task = self._leaving[worker] = self._loop.create_task(self._leave(worker))
        task.add_done_callback(lambda _: self._left(worker))
        self.metrics.workers.gone(worker.label)

    async def _leave(self, worker: Worker) -> None:
        await worker.stop(self._times.response)

    def _left(self, worker: Worker) -> None:
        del self._leaving[worker]
        self._check_quiet()

    async def wait_loaded(self, workers: list[Worker]) -> None:
        """Waits for the first load of each. Raises StartFailed with the cause of the first failure."""
        await asyncio.gather(*(asyncio.shield(worker.first_load) for worker in workers))

    async def drain(self, grace: float) -> bool:
        """Refuses new requests and serves waiting ones; True if all were served within ``grace`` s."""
        self.closing = True
        self.queue.flushing = True
        self.pump()
        quiet = self._quiet = self._loop.create_future()
        self._end_drain(quiet)
        done, _ = await asyncio.wait({quiet}, timeout=grace)
        return bool(done)

    async def retire(self, successor: Pool, grace: float) -> None:
        """Ends this pool, replaced by ``successor``, without losing a request.

        Waiting requests are served here for ``grace`` seconds; the rest, and late ones, go to the successor.
        """
        self._successor = successor
        try:
            await self.drain(grace)
        except BaseException:
            await self.close(0.0)
            raise
        workers = self._all_workers()
        await self.close(self._times.response)
        for worker in workers:
            self.metrics.workers.gone(worker.label)

    async def close(self, grace: float) -> None:
        """Refuses waiting requests, gives running batches ``grace`` seconds to finish, ends all workers."""
        self.closing = True
        self._recycler.close()
        self._clear_queue()
        workers, self.workers = self._all_workers(), []
        await asyncio.gather(*(worker.stop(grace) for worker in workers))
        self._reserve.close()
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()

    def _all_workers(self) -> list[Worker]:
        """Current and leaving workers, and one that is about to replace another."""
        coming = self._recycler.coming
        return [*self.workers, *self._leaving, *([] if coming is None else [coming])]

    def _check_quiet(self) -> None:
        """Ends a drain if nothing is left after this turn of the loop, in which batches may come back."""
        if self._quiet is not None:
            self._loop.call_soon(self._end_drain, self._quiet)

    def _end_drain(self, quiet: asyncio.Future[None]) -> None:
        running = any(worker.in_flight for worker in (*self.workers, *self._leaving))
        if not (running or self.queue.requests or quiet.done()):
            quiet.set_result(None)

    # -- reports

    @property
    def healthy(self) -> bool:
        """Whether at least ``min_workers`` are healthy (reference 6.2)."""
        return sum(worker.healthy for worker in self.workers) >= self.min_workers

    @property
    def ready(self) -> bool:
        """Whether any worker is loaded."""
        return any(worker.state is WorkerState.READY for worker in self.workers)

    @property
    def failing(self) -> bool:
        """Whether all rows of the last batches failed, by exceptions or lost workers."""
        return self.failed_in_row >= FAILING

    @property
    def splits(self) -> bool:
        """Whether the loaded handler takes instances."""
        return any(worker.splits for worker in self.workers)

    @property
    def failure(self) -> str:
        """Why workers fail, or an empty string."""
        return next((worker.failure for worker in self.workers if worker.failure), "")

    @property
    def sequences(self) -> SequenceStatistics | None:
        """How many sequences live and wait, if requests belong to sequences."""
        return None

    def statistics(self) -> PoolStatistics:
        states = [worker.state for worker in self.workers]
        return PoolStatistics(
            pending=self.queue.requests,
            capacity=self.limits.max_requests,
            instances=self.queue.instances,
            batches_in_flight=sum(len(worker.in_flight) for worker in self.workers),
            ready=states.count(WorkerState.READY),
            loading=states.count(WorkerState.LOADING),
            failed=states.count(WorkerState.FAILED),
        )


_STREAM_REFUSED = (
    "The handler streams its answer, which is not possible for one answer to several instances; "
    "send the request to /predictions."
)
