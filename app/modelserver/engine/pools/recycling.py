"""Which workers use more memory than they may.

A worker that is too large right after loading is kept: a new one would be no smaller.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from modelserver.engine.pools.spec import PoolLimits, WorkerState
from modelserver.engine.pools.worker import Worker
from modelserver.engine.telemetry.system import worker_memory

_log = logging.getLogger("modelserver.workers")


class MemoryLimit:
    """The bytes that a worker may use; 0 is unlimited."""

    def __init__(self) -> None:
        self._limit = 0
        # Processes that were too large right after loading; other machines may use the same numbers.
        self._large: set[tuple[str, int]] = set()
        # By worker on another machine: the number of the report from which its size after loading is known.
        self._unknown: dict[str, int] = {}

    def change(self, limits: PoolLimits) -> bool:
        """Applies a new limit to all workers; returns whether there is one."""
        self._limit = limits.options.get("max_worker_memory", 0)
        self._large.clear()
        return self._limit > 0

    def loaded(self, worker: Worker) -> None:
        """A process of the worker has just loaded its model."""
        node = worker.node
        if node is None:
            self._weigh(worker)
        elif self._limit:
            # The next report may be from before.
            self._unknown[worker.label] = node.reports + 2

    def exceeded(self, workers: Iterable[Worker]) -> tuple[Worker, int] | None:
        """The first worker that has grown above the limit, with its size."""
        ready = [worker for worker in workers if worker.state is WorkerState.READY]
        self._weigh_distant(ready)
        for worker in ready:
            if worker.label not in self._unknown and (worker.label, worker.pid) not in self._large:
                size = _size(worker)
                if size > self._limit:
                    return worker, size
        return None

    def _weigh(self, worker: Worker) -> None:
        """Notes whether it is too large right after loading."""
        size = _size(worker)
        if self._limit and size > self._limit:
            self._large.add((worker.label, worker.pid))
            _log.warning(
                "Worker %s has %d bytes right after loading, max_worker_memory=%d: it is not recycled",
                worker.label,
                size,
                self._limit,
            )

    def _weigh_distant(self, ready: list[Worker]) -> None:
        """Weighs workers on other machines whose size after loading is known by now."""
        unknown, self._unknown = self._unknown, {}
        for worker in ready:
            node, until = worker.node, unknown.get(worker.label)
            if node is None or until is None:
                continue
            if node.reports < until:
                self._unknown[worker.label] = until
            else:
                self._weigh(worker)


def _size(worker: Worker) -> int:
    process = worker.process
    if process is None:
        return 0
    return sum(map(worker_memory, process.pids)) if process.node is None else process.node.resident
