"""Batches sent in advance to workers that are still busy with another one.

This saves a worker the round trip to the queue, which costs more than the work of very fast handlers, and
lets a pipelined handler prepare a batch while it computes another. It must not make any request later than a
single queue would, from which idle workers take the next batch. So:

* if another worker could serve it, a batch is only sent in advance to a worker that should finish all it has
  within ``REST`` seconds, or that is pipelined;
* it is taken back when an idle worker could begin it sooner, when the batch before it takes longer than
  expected, and when its worker is to end.

Nothing runs twice: worker and server agree on who has a batch, see :mod:`modelserver.wire.arena`.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Protocol

from modelserver.pools.spec import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from modelserver.batching.queue import BatchQueue
    from modelserver.batching.request import Batch
    from modelserver.pools.worker import Worker


class Owner(Protocol):
    """The pool of the workers."""

    workers: list[Worker]
    queue: BatchQueue
    clock: Callable[[], float]

    def send(self, worker: Worker, batch: Batch, now: float) -> None:
        """Sends the batch to the worker."""

    def put_back(self, batch: Batch) -> None:
        """Queues a batch again."""

    def pump(self) -> None:
        """Sends every batch that may go now."""


class Reserve:
    """Decides which batches wait at busy workers, and for how long. ``used``: some may."""

    __slots__ = ("_timer", "used")

    def __init__(self) -> None:
        self.used = False
        self._timer: asyncio.TimerHandle | None = None

    def fill(self, pool: Owner, now: float) -> bool:
        """Sends full batches in advance; False if no worker has room for one that is waiting."""
        queue = pool.queue
        while queue.has_full():
            worker = least_loaded(pool.workers)
            if worker is None:
                return False
            batch = queue.take(now, 0, only_full=True)
            if batch is None:
                break
            pool.send(worker, batch, now)
            if len(pool.workers) > 1 and (self._timer is None or not self.used):
                self.watch(pool)
        return True

    def take_back(self, pool: Owner, now: float, *, others_idle: bool) -> bool:
        """Puts batches back into the queue that need not wait at their worker; True if there were any."""
        holders = _holders(pool)
        self.used = bool(holders)
        late = [worker for worker in holders if not worker.may_rest(now, others_idle=others_idle)]
        returned = [batch for worker in late for batch in worker.take_back()]
        for batch in returned:
            pool.put_back(batch)
        return bool(returned)

    def close(self) -> None:
        """Stops watching."""
        self.used = False
        if self._timer is not None:
            self._timer.cancel()

    def watch(self, pool: Owner) -> None:
        """Starts watching the waiting batches, if there are several workers."""
        holders = _holders(pool)
        if not holders or _lone(pool.workers) is not None:
            return
        self.used = True
        if self._timer is None:
            pause = min(worker.patience for worker in holders)
            self._timer = asyncio.get_running_loop().call_later(pause, self._look, pool)

    def _look(self, pool: Owner) -> None:
        self._timer = None
        self.take_back(pool, pool.clock(), others_idle=False)
        pool.pump()
        self.watch(pool)


def _holders(pool: Owner) -> list[Worker]:
    return [worker for worker in pool.workers if worker.has_reserve]


def least_loaded(workers: Sequence[Worker]) -> Worker | None:
    """The worker with the fewest batches, of those that may hold another."""
    if len(workers) == 1:
        # As below, quicker.
        return workers[0] if workers[0].has_room else None
    found: Worker | None = None
    fewest, ready = math.inf, WorkerState.READY
    for worker in workers:
        held = len(worker.in_flight)
        if held < fewest and held < worker.shared_capacity and worker.state is ready:
            found, fewest = worker, held
    if found is None:
        lone = _lone(workers)
        if lone is not None and lone.has_room:
            return lone
    return found


def _lone(workers: Sequence[Worker]) -> Worker | None:
    """The only worker for which requests may wait; None if there are several."""
    lone, ready = None, WorkerState.READY
    for worker in workers:
        if worker.state is ready or worker.may_serve:
            if lone is not None:
                return None
            lone = worker
    return lone
