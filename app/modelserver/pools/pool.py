"""The workers of one model version, and the queue they pull from.

The pool is the one place where the queue, the clock and the workers meet. A request comes in by
:meth:`Pool.submit` and ends by exactly one of: its answers, an error, :meth:`Pool.cancel`. Whoever changes
what could make a batch go (an arrival, a free worker, the passing of time) calls :meth:`Pool.pump`, which
sends all that may go and arms one timer for what may go later.
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

from modelserver.batching.queue import BatchQueue, QueueFull
from modelserver.batching.tickets import TicketQueue
from modelserver.errors import (
    DeadlineExceeded,
    HandlerError,
    InternalError,
    ModelServerError,
    ServiceUnavailable,
)
from modelserver.pools.devices import Places
from modelserver.pools.recycling import Recycler
from modelserver.pools.reserve import Reserve
from modelserver.pools.spec import PoolLimits, PoolStatistics, WorkerState, WorkerTimes, no_worker, policy_for
from modelserver.pools.worker import Worker
from modelserver.wire.frames import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.batching.request import Batch, Request
    from modelserver.batching.sequences import SequenceStatistics
    from modelserver.pools.devices import DeviceList
    from modelserver.pools.scaling import PoolScaling
    from modelserver.pools.spec import WorkerSpec
    from modelserver.telemetry.metrics import ModelMetrics
    from modelserver.wire.messages import Answer, Parts, Result


_log = logging.getLogger("modelserver.workers")

# Bytes of its parts that a client may have before it, and how many seconds a worker waits for less.
BACKLOG = 1 << 20
PATIENCE = 5.0


class Pool:
    """Serves one model version.

    Args:
        name: of the model, for messages.
        label: ``<model>_<version>``, for worker names.
        spec: what each worker is started with; its GPU is filled in per worker.
        times: the clocks of each worker.
        limits: of batches and of the queue.
        next_id: gives each worker its number.
        devices: gives each worker its GPU.
        metrics: counts.
        queue: what requests wait in; without one, what the limits describe.
    """

    # Slots, for attributes of instances with more than thirty cost more at each access.
    __slots__ = (
        "__weakref__", "_crowded", "_deadlines", "_leaving", "_loop", "_next_id", "_passed_on", "_quiet",
        "_recycler", "_reserve", "_soon", "_successor", "_timer", "_times", "autoscaling", "clock",
        "closing", "devices", "label", "last_handler_time", "last_overhead", "last_phases", "limits",
        "max_workers", "metrics", "min_workers", "name", "queue", "spec", "warnings", "workers",
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
        # Finer than the loop's own clock, which may count in milliseconds.
        self.clock = time.monotonic
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        # No worker has room; whatever makes room pumps.
        self._crowded = False
        self._reserve = Reserve()
        self._deadlines: dict[Request, asyncio.TimerHandle] = {}
        self.last_handler_time = 0.0
        self.last_phases = (0.0, 0.0, 0.0)
        self.last_overhead = 0.0
        self.closing = False
        self._quiet: asyncio.Future[None] | None = None
        self._leaving: dict[Worker, asyncio.Task[None]] = {}
        self.autoscaling: PoolScaling | None = None
        self._recycler = Recycler(self)
        self._recycler.follow()
        # The pool that has taken this one's place, and what it got from here.
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
        """Batches and clocks follow these from now on; what waits stays, what runs ends as it was begun.

        ``batch_size`` is what handlers are told, ``frame_limit`` the bytes that a worker may send at once.
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
        """Takes a request in; its ``on_done`` tells its end. ``asked_version``: what the client named.

        Raises:
            ServiceUnavailable: no worker could ever take it, or the queue is full.
        """
        if self.closing or not self._has_hope():
            if self._successor is not None:
                # Its sender looked this pool up before the successor had its place.
                self._successor.submit(request, asked_version)
                self._passed_on.add(request)
                return
            self.metrics.rejected("no_worker")
            raise no_worker(self.name, asked_version, self.failure)
        queue = self.queue
        try:
            queue.put(request)
        except QueueFull as full:
            self.metrics.rejected(full.reason)
            raise no_worker(self.name, asked_version) from full
        if request.waiting > 1:
            self.metrics.split()
        if request.deadline is not None:
            left = max(0.0, request.deadline - self.clock())
            self._deadlines[request] = self._loop.call_later(left, self._expire, request)
        if queue.instances >= queue.batch_size:
            if not self._crowded:
                self.pump()
        elif self._soon is None:
            # At the end of this turn of the loop: what other sockets brought in it joins the batch.
            self._soon = self._loop.call_soon(self.pump)

    def cancel(self, request: Request) -> None:
        """The client is gone: what waits is taken out, what runs is told the worker; answers are dropped."""
        if request.done:
            return
        if self._successor is not None and request in self._passed_on:
            self._successor.cancel(request)
            return
        self.queue.remove(request)
        request.on_done = None
        request.fail(ConnectionError("The client is gone."))
        self._forget_deadline(request)
        _tell_worker(request)
        self.metrics.cancelled()
        self._check_quiet()

    def pump(self) -> None:
        """Sends every batch that may go now and arms the timer for the next one."""
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
        while idle:
            batch = queue.take(now, len(idle))
            if batch is None:
                break
            self.send(idle.pop(0), batch, now)
        if not idle:
            self._crowded = not self._reserve.fill(self, now)
        elif self._reserve.used and not queue.requests:
            if self._reserve.take_back(self, now, others_idle=True):
                self.pump()
        elif queue.requests:
            due = queue.due(now, len(idle))
            if due < math.inf:
                self._timer = self._loop.call_later(max(0.0, due - now), self.pump)

    def worker_returned(self, worker: Worker, batch: Batch) -> None:
        self.queue.put_back(batch)
        self.pump()

    def send(self, worker: Worker, batch: Batch, now: float) -> None:
        """Hands the worker a batch; one that cannot be sent fails."""
        batch.sent_at = now
        for parcel in batch.parcels:
            request = parcel.request
            request.worker = worker
            if not request.batch_id:
                request.batch_id = batch.id
                request.batch_size = batch.size
        try:
            worker.send(batch)
        except ProtocolError as error:
            self._fail_batch(batch, InternalError(f"The batch cannot be sent to a worker: {error}"))

    def _expire(self, request: Request) -> None:
        self._deadlines.pop(request, None)
        if request.done:
            return
        self.queue.remove(request)
        self.metrics.expired()
        waited = self.clock() - request.arrived
        request.fail(DeadlineExceeded(f"The deadline of the request passed after {waited * 1000:.0f} ms."))
        _tell_worker(request)
        self._check_quiet()

    def _forget_deadline(self, request: Request) -> None:
        if request.deadline is not None and (timer := self._deadlines.pop(request, None)) is not None:
            timer.cancel()

    # -- what workers tell

    def worker_ready(self, worker: Worker, seconds: float) -> None:
        # A worker that was alone may hold a batch in reserve.
        self._reserve.watch(self)
        self.metrics.worker_loaded(worker.label, seconds)
        self._recycler.loaded(worker)
        for warning in worker.warnings:
            if warning not in self.warnings:
                self.warnings.append(warning)
                _log.warning("Model %s: %s", self.label, warning)
        self.pump()

    def worker_answered(self, worker: Worker, batch: Batch, result: Result, tail: memoryview) -> None:
        now, seconds = self.clock(), result.handler_time
        if not batch.at_once:
            self.queue.policy.finished(batch.size, seconds, now)
        # The handler began when it was free, unless it had prepared the batch before.
        began = now - seconds
        if not self.spec.concurrency:
            began = worker.freed_at if worker.freed_at < began else began
            worker.freed_at = now
        began = began if batch.sent_at < began else batch.sent_at
        self.last_handler_time = seconds
        self.last_phases = result.phases
        self.last_overhead = now - began - seconds
        answers = result.answers
        if len(answers) != batch.size:
            # A worker of ours always sends one each: this one cannot be trusted with another batch.
            error = HandlerError(f"{len(answers)} answers came for {batch.size} instances", 500)
            self._fail_batch(batch, error)
            worker.kill(error.message)
            return
        # Free the worker's place first: what the answers below trigger may already fill it.
        self.pump()
        self._deliver(batch, result, tail, began)
        self.metrics.batch(
            batch.size, len(batch.parcels), self.limits.batch_size, batch.reason, seconds, result.phases
        )
        if result.calls > 1:
            self.metrics.isolated(sum(answer.failed for answer in answers))
        if result.metrics:
            for m in result.metrics:
                self.metrics.model_metric(m.name, m.value, m.unit, m.kind, m.dimensions, m.request_id)
        if 0 < self.limits.max_worker_requests <= worker.served:
            self._recycler.served(worker)
        if self._quiet is not None:
            self._check_quiet()

    def worker_streamed(self, worker: Worker, batch: Batch, message: Parts, tail: memoryview) -> None:
        """Hands each part to its request; one that cannot take parts fails, and the worker is told."""
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
            self._end(request, HandlerError(_STREAM_REFUSED, 500))
            _tell_worker(request)
        if message.wait:
            patience = min(PATIENCE, self._times.response / 2)
            self._let_proceed(worker, batch, self.clock() + patience)

    def _let_proceed(self, worker: Worker, batch: Batch, until: float) -> None:
        """Holds the worker back while clients have much to take; those that are too slow, once only."""
        requests = [parcel.request for parcel in batch.parcels if not parcel.request.done]
        behind = [r for r in requests if r.backlog is not None and r.backlog() > BACKLOG]
        if behind and self.clock() < until:
            self._loop.call_later(0.01, self._let_proceed, worker, batch, until)
            return
        for request in behind:
            request.backlog = None
        worker.proceed(batch)

    def _deliver(self, batch: Batch, result: Result, tail: memoryview, began: float) -> None:
        answers, handler_time, waited = result.answers, result.handler_time, self.metrics.queue_wait
        position = 0
        remaining = iter(answers)
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

    def worker_lost(
        self, worker: Worker, running: Batch | None, unbegun: list[Batch], error: ModelServerError
    ) -> None:
        for batch in reversed(unbegun):
            if worker.state is WorkerState.UNLOADING or not any(p.request.requeued for p in batch.parcels):
                for parcel in batch.parcels:
                    parcel.request.requeued = True
                self.queue.put_back(batch)
            else:
                self._fail_batch(batch, error)
        if running is not None:
            self._fail_batch(running, error)
        self._refuse_if_hopeless()
        self.pump()
        self._check_quiet()

    def _fail_batch(self, batch: Batch, error: Exception) -> None:
        for parcel in batch.parcels:
            self._end(parcel.request, error)

    def _end(self, request: Request, error: Exception) -> None:
        self.queue.remove(request)
        self._forget_deadline(request)
        request.fail(error)

    def _has_hope(self) -> bool:
        """Whether there is a worker that serves or may come back."""
        ready = WorkerState.READY
        for worker in self.workers:  # noqa: SIM110 - asked for every request, and a generator costs more
            if worker.state is ready or worker.may_serve:
                return True
        return False

    def _refuse_if_hopeless(self) -> None:
        """Without any worker that may come back, nothing that waits will ever be served."""
        if not self._has_hope():
            self._clear_queue()

    def _clear_queue(self) -> None:
        """What waits goes to the successor if there is one; what was begun, and the rest, is refused."""
        for request in self.queue.drain():
            error = no_worker(self.name, failure=self.failure)
            if self._successor is not None and request.began is None:
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
        """Starts or retires workers (reference 5.3); returns those started. Nothing is waited for.

        Retired ones, the newest first, finish what they run; what waits is left to the others.
        """
        self.min_workers, self.max_workers = min_workers, max_workers if min_workers else 0
        # Workers that were given up make place for new tries.
        for worker in [worker for worker in self.workers if worker.state is WorkerState.FAILED]:
            self.workers.remove(worker)
            self.devices.leave(worker.gpu_id)
        return self.resize(min(max(len(self.workers), min_workers), self.max_workers))

    def resize(self, count: int) -> list[Worker]:
        """As :meth:`scale`, to exactly so many; the bounds stay as they are."""
        started = [self._start() for _ in range(count - len(self.workers))]
        surplus = self.workers[count:]
        del self.workers[count:]
        for worker in reversed(surplus):
            self._retire(worker)
        self._refuse_if_hopeless()
        return started

    def dismiss(self, worker: Worker) -> None:
        """Retires this one."""
        self.workers.remove(worker)
        self._retire(worker)
        self._refuse_if_hopeless()

    def _start(self) -> Worker:
        worker = self.make_worker(self.devices.assign())
        self.workers.append(worker)
        return worker

    def make_worker(self, device: int | None) -> Worker:
        """Starts a worker that has no place yet."""
        worker_id = self._next_id()
        load = msgspec.structs.replace(self.spec.load, gpu_id=device)
        # The cores are shared out to all workers that there may be, where they come and go.
        sharers = self.min_workers if self.autoscaling is None else self.max_workers
        threads = max(1, self.spec.threads // max(1, sharers))
        spec = replace(self.spec, load=load, threads=threads)
        worker = Worker(worker_id, f"W-{worker_id}-{self.label}", spec, self._times, self)
        worker.first_load.add_done_callback(lambda _: self._loop.call_soon(self._refuse_if_hopeless))
        return worker

    def exchange(self, worker: Worker, fresh: Worker) -> None:
        """``fresh``, which is on the same device, takes the worker's place, and the worker leaves."""
        self.workers[self.workers.index(worker)] = fresh
        self.end_worker(worker)
        self.pump()

    def _retire(self, worker: Worker) -> None:
        self.devices.leave(worker.gpu_id)
        self.end_worker(worker)

    def end_worker(self, worker: Worker) -> None:
        """Ends one that has no place any more, when it has finished what it has begun."""
        if self._has_hope():
            for batch in worker.take_back():
                self.worker_returned(worker, batch)
        self._leaving[worker] = self._loop.create_task(self._leave(worker))
        self.metrics.worker_gone(worker.label)

    async def _leave(self, worker: Worker) -> None:
        try:
            await worker.stop(self._times.response)
        finally:
            self._leaving.pop(worker, None)
            self._check_quiet()

    async def wait_loaded(self, workers: list[Worker]) -> None:
        """Waits for the first load of each.

        Raises:
            StartFailed: the first failure, whose message is the cause.
        """
        await asyncio.gather(*(asyncio.shield(worker.first_load) for worker in workers))

    async def drain(self, grace: float) -> bool:
        """Takes no more requests in and serves what waits; True if that was done within ``grace`` s."""
        self.closing = True
        self.queue.flushing = True
        self.pump()
        self._quiet = self._loop.create_future()
        self._check_quiet()
        done, _ = await asyncio.wait({self._quiet}, timeout=grace)
        return bool(done)

    async def retire(self, successor: Pool, grace: float) -> None:
        """Ends this pool, whose place ``successor`` has taken, without losing a request.

        What waits is served here for ``grace`` seconds, what then still waits by the successor, which also
        gets what comes late.
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
            self.metrics.worker_gone(worker.label)

    async def close(self, grace: float) -> None:
        """Refuses what still waits, lets what runs finish within ``grace`` seconds, ends all workers."""
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
        """Those that serve, those on their way out, and one that is to take another's place."""
        coming = self._recycler.coming
        return [*self.workers, *self._leaving, *([] if coming is None else [coming])]

    def _check_quiet(self) -> None:
        if self._quiet is None or self._quiet.done() or self.queue.requests:
            return
        if not any(worker.in_flight for worker in (*self.workers, *self._leaving)):
            self._quiet.set_result(None)

    # -- reports

    @property
    def healthy(self) -> bool:
        """Whether at least ``min_workers`` are well (reference 6.2)."""
        return sum(worker.healthy for worker in self.workers) >= self.min_workers

    @property
    def ready(self) -> bool:
        """Whether a request sent now would find a loaded worker."""
        return any(worker.state is WorkerState.READY for worker in self.workers)

    @property
    def splits(self) -> bool:
        """Whether the loaded handler takes instances."""
        return any(worker.splits for worker in self.workers)

    @property
    def failure(self) -> str:
        """Why workers fail, or nothing."""
        return next((worker.failure for worker in self.workers if worker.failure), "")

    @property
    def sequences(self) -> SequenceStatistics | None:
        """How many sequences live and wait, where requests belong to any."""
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
    "The handler answers in parts, which one answer for several instances cannot carry; "
    "send the request to /predictions."
)


def _tell_worker(request: Request) -> None:
    worker: Worker | None = request.worker
    if worker is not None:
        worker.cancel(request)
