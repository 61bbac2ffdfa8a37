"""The workers of one model version: how many there are, and which take the place of others.

A worker that uses too much memory, or has served enough requests, is recycled: a new one is started beside it
and replaces it once loaded; until then the old one serves, then it finishes its batches and exits. That
happens to one at a time, and no request is lost. If the new worker cannot be loaded, the old one keeps
serving, and replacing it is retried after a pause.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from modelserver.engine.pools.devices import DeviceList, Places
from modelserver.engine.pools.recycling import MemoryLimit
from modelserver.engine.pools.spec import (
    OnDemand,
    PoolLimits,
    PoolScaler,
    WorkerOwner,
    WorkerSpec,
    WorkerState,
    WorkerTimes,
)
from modelserver.engine.pools.worker import Worker
from modelserver.engine.wire.messages import Loaded

if TYPE_CHECKING:
    from modelserver.engine.telemetry.model_metrics import ModelMetrics

_log = logging.getLogger("modelserver.workers")

# Seconds between checks of the memory, and until a retry after a new worker failed to load.
LOOKS = 1.0
HOLD = 30.0

MEMORY = "memory"
REQUESTS = "requests"


class Crew:
    """Starts, replaces and ends workers.

    ``workers`` stays the same list. ``leaving`` workers finish their batches. ``owner`` gets the events of
    all; without one, before it is set and once the crew is closed, no workers are started. ``autoscaling``
    belongs to the autoscaler. With ``on_demand`` there may be no workers until requests need them. ``model``
    is what the worker that loaded it last reported.
    """

    def __init__(
        self,
        label: str,
        spec: WorkerSpec,
        times: WorkerTimes,
        limits: PoolLimits,
        *,
        next_id: Callable[[], int],
        devices: DeviceList,
        metrics: ModelMetrics,
    ) -> None:
        self.owner: WorkerOwner[Worker] | None = None
        self.label = label
        self.spec = spec
        self.times = times
        self.workers: list[Worker] = []
        self.leaving: dict[Worker, asyncio.Task[None]] = {}
        self.warnings: list[str] = []
        self.min_workers = self.max_workers = 0
        self.devices = Places(devices)
        self.autoscaling: PoolScaler | None = None
        self.on_demand: OnDemand | None = None
        self.model: Loaded | None = None
        self._next_id = next_id
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._coming: Worker | None = None  # is to replace another
        self._recycling_from = 0.0  # the time before which no worker is recycled
        self._memory = MemoryLimit()
        self._look: asyncio.TimerHandle | None = None
        self._limit_memory(limits)

    def reconfigure(self, limits: PoolLimits, spec: WorkerSpec, times: WorkerTimes) -> None:
        """Applies new limits and timeouts."""
        self.spec, self.times = spec, times
        for worker in self.all():
            worker.reconfigure(spec, times)
        self._limit_memory(limits)

    # -- the number of workers

    def scale(self, min_workers: int, max_workers: int) -> list[Worker]:
        """Starts or retires workers (reference 5.3) without waiting; returns those started.

        The newest are retired first, and finish their running batches.
        """
        may_serve = min_workers or self.on_demand is not None
        self.min_workers, self.max_workers = min_workers, max_workers if may_serve else 0
        # Failed workers make room for new ones.
        for worker in [worker for worker in self.workers if worker.state is WorkerState.FAILED]:
            self.workers.remove(worker)
            self.devices.leave(worker.gpu_id)
        return self.resize(min(max(len(self.workers), min_workers), self.max_workers))

    def resize(self, count: int) -> list[Worker]:
        """Starts or retires workers until there are ``count``; the bounds stay. Returns the new ones."""
        if self.owner is None:
            return []
        started = [self._start(self.devices.assign(), self.owner) for _ in range(count - len(self.workers))]
        self.workers += started
        surplus = self.workers[count:]
        del self.workers[count:]
        for worker in reversed(surplus):
            self._retire(worker)
        self.owner.workers_changed()
        return started

    def dismiss(self, worker: Worker) -> None:
        """Retires one worker."""
        self.workers.remove(worker)
        self._retire(worker)
        worker.owner.workers_changed()

    def _start(self, device: int | None, owner: WorkerOwner[Worker]) -> Worker:
        """Starts a worker that does not serve yet."""
        worker_id = self._next_id()
        load = msgspec.structs.replace(self.spec.load, gpu_id=device)
        # With autoscaling, the cores are shared among the most workers there may be.
        sharers = self.min_workers if self.autoscaling is None else self.max_workers
        threads = max(1, self.spec.threads // max(1, sharers))
        spec = replace(self.spec, load=load, threads=threads)
        worker = Worker(worker_id, f"W-{worker_id}-{self.label}", spec, self.times, owner)
        worker.first_load.add_done_callback(lambda _: self._loop.call_soon(owner.workers_changed))
        return worker

    def _retire(self, worker: Worker) -> None:
        self.devices.leave(worker.gpu_id)
        self._end(worker)

    def _end(self, worker: Worker) -> None:
        """Ends a removed worker once it has finished its running batches."""
        if self.has_hope():
            for batch in worker.flights.take_back():
                worker.owner.worker_returned(worker, batch)
        task = self.leaving[worker] = self._loop.create_task(self._leave(worker))
        task.add_done_callback(lambda _: self._left(worker))
        self._metrics.workers.gone(worker.label)

    async def _leave(self, worker: Worker) -> None:
        try:
            await worker.owner.release(worker)
        finally:
            await worker.stop(self.times.response)

    def _left(self, worker: Worker) -> None:
        del self.leaving[worker]
        worker.owner.workers_changed()

    async def close(self, grace: float) -> None:
        """Gives running batches ``grace`` seconds to finish, and ends all workers."""
        self.stop_recycling()
        workers, self._coming = self.all(), None
        self.workers.clear()
        # From here on no worker starts: nobody would end it. The owner also refers to the crew, and only a
        # collection would free the cycle.
        self.owner = None
        await asyncio.gather(*(worker.stop(grace) for worker in workers))

    def all(self) -> list[Worker]:
        """Current and leaving workers, and one that is about to replace another."""
        return [*self.workers, *self.leaving, *([] if self._coming is None else [self._coming])]

    # -- recycling

    def loaded(self, worker: Worker, seconds: float) -> None:
        """A process of the worker has loaded its model, which took ``seconds``."""
        self._metrics.workers.loaded(worker.label, seconds)
        self._memory.loaded(worker)
        self.model = worker.model
        if self.on_demand is not None:
            self.on_demand.loaded(seconds)
        for warning in worker.model.warnings:
            if warning not in self.warnings:
                self.warnings.append(warning)
                _log.warning("Model %s: %s", self.label, warning)

    def recycle_served(self, worker: Worker) -> None:
        """Recycles a worker that has reached its limit of requests."""
        self._recycle(worker, REQUESTS, f"it has answered {worker.flights.served} requests")

    def stop_recycling(self) -> None:
        """No worker is replaced any more."""
        self._recycling_from = math.inf
        if self._look is not None:
            self._look.cancel()

    def _limit_memory(self, limits: PoolLimits) -> None:
        """Checks the memory regularly, if it is limited."""
        if self._look is not None:
            self._look.cancel()
        is_limited = self._memory.change(limits)
        self._look = self._loop.call_later(LOOKS, self._check_memory) if is_limited else None

    def _check_memory(self) -> None:
        self._look = self._loop.call_later(LOOKS, self._check_memory)
        if (large := self._memory.exceeded(self.workers)) is not None:
            worker, size = large
            self._recycle(worker, MEMORY, f"it has grown to {size} bytes")

    def _recycle(self, worker: Worker, reason: str, why: str) -> None:
        """Recycles a worker, unless a new worker could not load a short time ago."""
        if self._loop.time() >= self._recycling_from:
            self.recycle(worker, reason, why)

    def recycle(self, worker: Worker, reason: str, why: str) -> Worker | None:
        """Starts a worker that takes its place once it has loaded, and returns it.

        None, and nothing happens, while another is being replaced, or if it is already leaving.
        """
        if self._coming is not None or worker not in self.workers or math.isinf(self._recycling_from):
            return None
        fresh = self._coming = self._start(worker.gpu_id, worker.owner)
        _log.info("Worker %s is recycled: %s; starting %s in its place", worker.label, why, fresh.label)
        # After the worker's own handling of its first load.
        fresh.first_load.add_done_callback(
            lambda _: self._loop.call_soon(self._replace, worker, fresh, reason)
        )
        return fresh

    def _replace(self, worker: Worker, fresh: Worker, reason: str) -> None:
        """Replaces a worker by ``fresh``, which is on the same device."""
        if self._coming is not fresh:
            return
        self._coming = None
        failure = fresh.first_load.exception()
        if failure is None and worker in self.workers:
            self.workers[self.workers.index(worker)] = fresh
            self._end(worker)
            worker.owner.pump()
            self._metrics.workers.count("workers_recycled_total", reason)
            _log.info("Worker %s has replaced %s", fresh.label, worker.label)
            return
        if failure is not None:
            self._recycling_from = max(self._recycling_from, self._loop.time() + HOLD)
            _log.warning("Worker %s is kept, a new one could not be loaded: %s", worker.label, failure)
        self._end(fresh)

    # -- reports

    def has_hope(self) -> bool:
        """Whether any worker serves or may come back, or may be started for a request."""
        ready = WorkerState.READY
        for worker in self.workers:
            if worker.state is ready or worker.may_serve:
                return True
        return self.on_demand is not None and self.on_demand.refusal is None

    def free(self) -> list[Worker]:
        """The workers that would begin a batch at once, including leaving ones."""
        workers = (*self.workers, *self.leaving)
        return [each for each in workers if (each.has_room if each.flights.concurrency else each.idle)]

    @property
    def busy(self) -> bool:
        """Whether any worker has a batch."""
        return any(worker.flights.in_flight for worker in (*self.workers, *self.leaving))

    @property
    def failure(self) -> str:
        """Why workers fail, or an empty string."""
        return next((worker.failure for worker in self.workers if worker.failure), "")


async def wait_loaded(workers: list[Worker]) -> None:
    """Waits for the first load of each. Raises StartFailed with the cause of the first failure."""
    await asyncio.gather(*(asyncio.shield(worker.first_load) for worker in workers))
