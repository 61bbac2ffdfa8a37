"""Replaces workers that use too much memory or have served enough requests, one at a time, without losing
any.

A new worker is started beside the old one and replaces it once loaded; until then the old one serves, then it
finishes its batches and exits. If the new worker cannot be loaded, the old one keeps serving, and replacing
it is retried after a pause. A worker that is too large right after loading is kept: a new one would be no
smaller.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import TYPE_CHECKING, Protocol

from modelserver.engine.pools.spec import WorkerState
from modelserver.engine.resources import resident_bytes

if TYPE_CHECKING:
    from modelserver.engine.pools.spec import Node, PoolLimits
    from modelserver.engine.pools.worker import Worker
    from modelserver.engine.telemetry.model_metrics import ModelMetrics

_log = logging.getLogger("modelserver.workers")

# Seconds between checks of the memory, and until a retry after a new worker failed to load.
LOOKS = 1.0
HOLD = 30.0

MEMORY = "memory"
REQUESTS = "requests"


class Recycled(Protocol):
    """What this module needs of a pool."""

    limits: PoolLimits
    workers: list[Worker]

    @property
    def metrics(self) -> ModelMetrics: ...

    @property
    def closing(self) -> bool: ...
    def make_worker(self, device: int | None) -> Worker: ...
    def exchange(self, worker: Worker, fresh: Worker) -> None: ...
    def end_worker(self, worker: Worker) -> None: ...


class Recycler:
    """Recycles the workers of one pool according to its limits."""

    def __init__(self, pool: Recycled) -> None:
        self.coming: Worker | None = None
        # Weak, to avoid a reference cycle.
        self._pool: Recycled = weakref.proxy(pool)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._held_until = 0.0
        # Processes that were too large right after loading; other machines may use the same numbers.
        self._large: set[tuple[str, int]] = set()
        # Workers on other machines whose size after loading is not known before it was told so often.
        self._untold: dict[str, int] = {}

    def follow(self) -> None:
        """Applies new limits; the memory is checked if it is limited."""
        self._large.clear()
        self.close()
        if self._most_memory():
            self._timer = self._loop.call_later(LOOKS, self._look)

    def _most_memory(self) -> int:
        """Bytes that a worker may use; 0 is unlimited."""
        most: int = self._pool.limits.options.get("max_worker_memory", 0)
        return most

    def close(self) -> None:
        """Stops checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def loaded(self, worker: Worker) -> None:
        """A process of the worker has just loaded its model."""
        node = _node_of(worker)
        if node is None:
            self._weigh(worker)
        elif self._most_memory():
            # The next time it may be from before.
            self._untold[worker.label] = node.told + 2

    def _weigh(self, worker: Worker) -> None:
        """Notes whether it is too large right after loading."""
        limit, size = self._most_memory(), self._size(worker)
        if limit and size > limit:
            self._large.add((worker.label, worker.pid))
            _log.warning(
                "Worker %s has %d bytes right after loading, max_worker_memory=%d: it is not recycled",
                *(worker.label, size, limit),
            )

    def served(self, worker: Worker) -> None:
        """The worker has reached its limit of requests."""
        self._recycle(worker, REQUESTS, f"it has answered {worker.served} requests")

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOKS, self._look)
        limit = self._most_memory()
        ready = [worker for worker in self._pool.workers if worker.state is WorkerState.READY]
        self._hear_of(ready)
        for worker in ready:
            if worker.label not in self._untold and (worker.label, worker.pid) not in self._large:
                size = self._size(worker)
                if size > limit:
                    self._recycle(worker, MEMORY, f"it has grown to {size} bytes")
                    return

    def _hear_of(self, ready: list[Worker]) -> None:
        """Weighs workers on other machines whose size after loading is known by now."""
        untold, self._untold = self._untold, {}
        for worker in ready:
            node, until = _node_of(worker), untold.get(worker.label)
            if node is None or until is None:
                continue
            if node.told < until:
                self._untold[worker.label] = until
            else:
                self._weigh(worker)

    def _size(self, worker: Worker) -> int:
        process = worker.process
        if process is None:
            return 0
        return sum(map(resident_bytes, process.pids)) if process.node is None else process.node.resident

    def _recycle(self, worker: Worker, reason: str, why: str) -> None:
        """Starts a new worker, unless another is being replaced."""
        if self.coming is not None or self._pool.closing or self._loop.time() < self._held_until:
            return
        if worker not in self._pool.workers:
            # It is already leaving.
            return
        fresh = self.coming = self._pool.make_worker(worker.gpu_id)
        _log.info("Worker %s is recycled: %s; starting %s in its place", worker.label, why, fresh.label)
        # After the worker's own handling of its first load.
        fresh.first_load.add_done_callback(
            lambda _: self._loop.call_soon(self._arrived, worker, fresh, reason)
        )

    def _arrived(self, worker: Worker, fresh: Worker, reason: str) -> None:
        if self.coming is not fresh:
            return
        self.coming = None
        failure = fresh.first_load.exception()
        if failure is None and worker in self._pool.workers:
            self._pool.exchange(worker, fresh)
            self._pool.metrics.workers.recycled(reason)
            _log.info("Worker %s has replaced %s", fresh.label, worker.label)
            return
        if failure is not None:
            self._held_until = self._loop.time() + HOLD
            _log.warning("Worker %s is kept, a new one could not be loaded: %s", worker.label, failure)
        self._pool.end_worker(fresh)


def _node_of(worker: Worker) -> Node | None:
    """The other machine that it runs on, if any."""
    return None if worker.process is None else worker.process.node
