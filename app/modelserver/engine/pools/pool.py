"""What serves one model version.

A pool has a queue and three parts: the *crew* are its workers, *admission* decides which requests get into
the queue and how those end that are not answered, *dispatch* sends batches to workers and delivers answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from modelserver.engine.batching.queue import BatchQueue, TicketQueue
from modelserver.engine.batching.request import Request
from modelserver.engine.pools.admission import Admission
from modelserver.engine.pools.crew import Crew
from modelserver.engine.pools.devices import DeviceList
from modelserver.engine.pools.dispatch import Dispatch
from modelserver.engine.pools.spec import (
    Affinity,
    PoolLimits,
    PoolStatistics,
    WorkerSpec,
    WorkerState,
    WorkerTimes,
)
from modelserver.engine.pools.worker import Worker
from modelserver.errors import InvalidModel, ServiceUnavailable

if TYPE_CHECKING:
    from modelserver.engine.telemetry.model_metrics import ModelMetrics

FAILING = 10  # batches in a row without a good row, from which on a version counts as failing


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
        affinity: which worker gets which request, and the queue; without one, all workers are alike.
        clock: more precise than the loop's, which may count in milliseconds.
    """

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
        affinity: Affinity | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self.limits = limits
        self.metrics = metrics
        self.affinity = affinity
        self.crew = Crew(label, spec, times, limits, next_id=next_id, devices=devices, metrics=metrics)
        self.workers = self.crew.workers
        self.warnings = self.crew.warnings
        self.queue = _queue_for(limits, self.workers) if affinity is None else affinity.queue
        self.admission = Admission(
            name,
            self.queue,
            self.crew,
            metrics=metrics,
            clock=clock,
            affinity=affinity,
            tickets=limits.tickets,
        )
        self.dispatch = Dispatch(
            self.queue,
            self.crew,
            self.admission,
            limits=limits,
            metrics=metrics,
            clock=clock,
            affinity=affinity,
        )
        self.crew.owner = self.dispatch

    def reconfigure(
        self, limits: PoolLimits, times: WorkerTimes, *, batch_size: int, frame_limit: int
    ) -> None:
        """Applies new limits and timeouts; running batches are not affected.

        ``batch_size`` is the one handlers see, ``frame_limit`` the bytes that a worker may send at once.
        """
        spec = self.crew.spec
        load = msgspec.structs.replace(spec.load, batch_size=batch_size)
        self.crew.reconfigure(limits, replace(spec, load=load, frame_limit=frame_limit), times)
        self.limits = self.dispatch.limits = limits
        self.dispatch.size_queue()
        self.dispatch.pump()

    # -- requests

    def submit(self, request: Request, version: str | None = None) -> None:
        """Queues a request; ``on_done`` is called at its end. ``version`` is what the client named.

        Raises ServiceUnavailable if there are no workers, or the queue is full.
        """
        if self.admission.accept(request, version):
            self.dispatch.arrived()

    def cancel(self, request: Request) -> None:
        """The client disconnected."""
        self.admission.cancel(request)

    # -- life

    def scale(self, min_workers: int, max_workers: int) -> list[Worker]:
        """Starts or retires workers without waiting; returns those started."""
        return self.crew.scale(min_workers, max_workers)

    async def drain(self, grace: float) -> bool:
        """Refuses new requests and serves waiting ones; True if all were served within ``grace`` s."""
        self.admission.closing = True
        self.crew.stop_recycling()
        self.queue.flushing = True
        self.dispatch.pump()
        return await self.admission.wait_drained(grace)

    async def retire(self, successor: Pool, grace: float) -> None:
        """Ends this pool, replaced by ``successor``, without losing a request.

        Waiting requests are served here for ``grace`` seconds; the rest, and late ones, go to the successor.
        """
        self.admission.successor = successor
        try:
            await self.drain(grace)
        except BaseException:
            await self.close(0.0)
            raise
        workers = self.crew.all()
        await self.close(self.crew.times.response)
        for worker in workers:
            self.metrics.workers.gone(worker.label)

    async def close(self, grace: float) -> None:
        """Refuses waiting requests, gives running batches ``grace`` seconds to finish, ends all workers."""
        self.admission.close()
        await self.crew.close(grace)
        self.dispatch.workers_changed()
        self.dispatch.close()

    # -- reports

    @property
    def min_workers(self) -> int:
        """How many workers there should be at least."""
        return self.crew.min_workers

    @property
    def max_workers(self) -> int:
        """How many workers there may be; on demand at least one, for requests."""
        return max(self.crew.max_workers, int(self.crew.on_demand is not None))

    @property
    def healthy(self) -> bool:
        """Whether at least ``min_workers`` are healthy (reference 6.2)."""
        return sum(worker.healthy for worker in self.workers) >= self.min_workers

    @property
    def ready(self) -> bool:
        """Whether any worker is loaded, or is or would be loaded for a request."""
        demand = self.crew.on_demand
        loads = demand is not None and demand.refusal is None and not self.admission.closing
        return loads or any(worker.is_ready for worker in self.workers)

    @property
    def failing(self) -> bool:
        """Whether all rows of the last batches failed, by exceptions or lost workers."""
        return self.dispatch.failed_in_row >= FAILING

    @property
    def splits(self) -> bool:
        """Whether the loaded handler takes instances."""
        return self.crew.model is not None and self.crew.model.splits

    @property
    def failure(self) -> str:
        """Why workers fail, or an empty string."""
        return self.crew.failure

    def statistics(self) -> PoolStatistics:
        states = [worker.state for worker in self.workers]
        return PoolStatistics(
            pending=self.queue.requests,
            capacity=self.limits.max_requests,
            instances=self.queue.instances,
            batches_in_flight=sum(len(worker.flights.in_flight) for worker in self.workers),
            ready=states.count(WorkerState.READY),
            loading=states.count(WorkerState.LOADING),
            failed=states.count(WorkerState.FAILED),
        )


def _queue_for(limits: PoolLimits, workers: list[Worker]) -> BatchQueue:
    """A queue for workers that are alike."""
    bounds = limits.batch_size, limits.make_policy(), limits.max_requests, limits.max_bytes
    if limits.tickets:
        # Without workers, one is to be started for requests.
        return TicketQueue(*bounds, lambda: sum(worker.idle for worker in workers) or not workers)
    return BatchQueue(*bounds)


# The pool of a version that could not be restored: listed with the reason, but not serving (F55).


class FailedPool(Pool):
    """A pool without workers that keeps their configured numbers, for ``healthy`` and for snapshots."""

    reason = ""

    def submit(self, request: Request, version: str | None = None) -> None:
        """Raises ServiceUnavailable with the reason."""
        self.metrics.requests.rejected("no_worker")
        raise ServiceUnavailable(f"{self.label} could not be restored: {self.reason}")

    def expect(self, min_workers: int, max_workers: int) -> None:
        """Sets how many workers there should be."""
        self.crew.min_workers, self.crew.max_workers = min_workers, max_workers

    def scale(self, min_workers: int, max_workers: int) -> list[Worker]:
        """Raises InvalidModel with the reason, as there is nothing to load."""
        raise InvalidModel(
            f"{self.label} could not be restored: {self.reason} Register it again, or unregister it."
        )

    def statistics(self) -> PoolStatistics:
        """Counts the expected workers as failed."""
        return replace(super().statistics(), failed=self.min_workers)

    @property
    def failure(self) -> str:
        return self.reason
