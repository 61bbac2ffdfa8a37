"""Batches sent in advance to workers that are still busy with another one.

This saves a worker the round trip to the queue, which costs more than the work of very fast handlers, and
lets a pipelined handler prepare a batch while it computes another. It must not make any request later than a
single queue would, from which idle workers take the next batch. So:

* if another worker could serve it, a batch is only sent in advance to a worker that should finish all it has
  within ``REST`` seconds, or that is pipelined;
* it is taken back when an idle worker could begin it sooner, when the batch before it takes longer than
  expected, and when its worker is to end.

A worker on another machine would be idle for a round trip after each batch. So it counts as free from a
round trip before it should be done: a batch that leaves then, full or not, arrives as it is free, and begins
no later than at an idle worker of the same distance. Taking it back takes a round trip, too, so that is done
only once the batch before it is late, or if it should begin much later.

Nothing runs twice: worker and server agree on who has a batch, see :mod:`modelserver.engine.wire.arena`.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from modelserver.engine.batching.queue import BatchQueue
from modelserver.engine.batching.request import Batch
from modelserver.engine.pools.flights import MAX_IN_FLIGHT, REST
from modelserver.engine.pools.spec import WorkerState
from modelserver.engine.pools.worker import Worker

# Seconds by which timers may be early, as event loops count in milliseconds.
EARLY = 0.0005
# The share of its expected time by which a batch elsewhere may take more or less.
TOLERANCE = 0.125


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
    """Decides which batches wait at busy workers, and for how long.

    ``used``: some may. ``far``: there are workers on other machines.
    """

    __slots__ = ("_opening", "_soon_free", "_timer", "far", "used")

    def __init__(self) -> None:
        self.far = self.used = False
        self._timer: asyncio.TimerHandle | None = None
        # Distant workers by when the next batch may leave for them, and those for which it may leave now.
        self._opening: list[tuple[float, int, Worker]] = []
        self._soon_free: list[Worker] = []

    def note(self, pool: Owner, worker: Worker) -> None:
        """To be called when what a distant worker has in flight has changed."""
        self.far = True
        if _gets_more(worker):
            _, opens, _ = _window(worker)
            heapq.heappush(self._opening, (opens, worker.id, worker))
        if worker.flights.has_reserve and (self._timer is None or not self.used):
            self.watch(pool)

    def add_soon_free(self, pool: Owner, idle: list[Worker], now: float) -> list[Worker]:
        """The idle workers and those that will be when a batch reaches them, the nearest first."""
        opening, soon, early = self._opening, self._soon_free, now + EARLY
        while opening and opening[0][0] <= early:
            worker = heapq.heappop(opening)[2]
            if worker not in soon:
                soon.append(worker)
        # An entry of before a change is followed by one of after it.
        self._soon_free, free, later = [], idle, []
        for worker in soon:
            if not _gets_more(worker):
                continue
            opens, full_opens, late = _window(worker)
            if full_opens > early or now > late:
                continue
            self._soon_free.append(worker)
            if opens > early:
                later.append((opens, worker))
            elif self._is_next(pool, worker, now):
                free.append(worker)
        if len(free) > 1:
            # Among workers at about the same distance, prefer one that is certainly free.
            free.sort(key=lambda each: each.flights.round_trip + (REST if each.flights.in_flight else 0.0))
        if later:
            full = pool.queue.instances // pool.queue.batch_size - len(free)
            if full > 0:
                nearest = [(opens, w) for opens, w in later if self._is_next(pool, w, now)]
                free += [w for _, w in sorted(nearest, key=lambda entry: entry[0])[:full]]
        return free

    def _is_next(self, pool: Owner, worker: Worker, now: float) -> bool:
        """Whether no nearer worker that is still busy should begin all that waits sooner."""
        way, sooner = worker.flights.round_trip, 0
        for other in pool.workers:
            if other.flights.round_trip + REST < way:
                sooner += now < opens_at(other) < now + (way - other.flights.round_trip) / 2
        return pool.queue.instances > sooner * pool.queue.batch_size

    def next_look(self, now: float) -> float:
        """When the next batch may leave for a distant worker that is busy; infinity if that is unknown."""
        due = self._opening[0][0] if self._opening else math.inf
        for opens in map(opens_at, self._soon_free):
            # Where it is due already, the worker was passed over for a nearer one.
            due = min(due, opens if opens > now + EARLY else now + REST)
        return due

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
        late = [worker for worker in holders if not _may_rest(worker, now, others_idle=others_idle)]
        returned = [batch for worker in late for batch in worker.flights.take_back()]
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
            now = pool.clock()
            pause = min(_pause(worker, now) for worker in holders)
            self._timer = asyncio.get_running_loop().call_later(pause, self._look, pool)

    def _look(self, pool: Owner) -> None:
        self._timer = None
        self.take_back(pool, pool.clock(), others_idle=False)
        pool.pump()
        self.watch(pool)


def _holders(pool: Owner) -> list[Worker]:
    return [worker for worker in pool.workers if worker.flights.has_reserve]


def has_idle(workers: Sequence[Worker]) -> bool:
    """Whether one of them has nothing to do."""
    return not all(worker.flights.in_flight for worker in workers)


def opens_at(worker: Worker) -> float:
    """When a batch should leave, to arrive as those in flight end; infinity if it gets none in advance."""
    return _window(worker)[0] if _gets_more(worker) else math.inf


def _gets_more(worker: Worker) -> bool:
    """Whether it is busy, and may get a batch in advance."""
    held = len(worker.flights.in_flight)
    return worker.flights.foreseen and 0 < held < MAX_IN_FLIGHT and worker.state is WorkerState.READY


def _window(worker: Worker) -> tuple[float, float, float]:
    """When a batch should leave for a busy worker, and a full one; when the oldest that it has is late.

    A full batch gains nothing by leaving late, so it is there in time.
    """
    oldest = _seconds(worker, worker.flights.in_flight[0])
    held = oldest
    if len(worker.flights.in_flight) > 1:
        held = sum([_seconds(worker, batch) for batch in worker.flights.in_flight])
    began, slack, way = _began(worker), TOLERANCE * oldest, worker.flights.round_trip
    opens = began + held - way
    return opens, opens - slack, began + oldest + max(REST, way, slack)


def _seconds(worker: Worker, batch: Batch) -> float:
    """Returns the expected seconds of a batch."""
    flights = worker.flights
    return flights.expectation.seconds(batch.size) if flights.round_trip else flights.cost


def idled(worker: Worker, batch: Batch) -> float:
    """Seconds for which the worker had nothing before this batch on account of its distance."""
    way = worker.flights.round_trip
    return min(way, max(0.0, batch.sent_at + way - worker.flights.freed_at))


def _began(worker: Worker) -> float:
    """When its oldest batch began, later by the way of the answer."""
    return max(worker.flights.in_flight[0].sent_at + worker.flights.round_trip, worker.flights.freed_at)


def _late_at(worker: Worker) -> float:
    """From when on the oldest batch of a distant worker is late."""
    return _window(worker)[2]


def _patience(worker: Worker) -> float:
    """Seconds that a batch may run before it counts as slower than expected."""
    return max(REST, 2 * worker.flights.cost)


def _pause(worker: Worker, now: float) -> float:
    """Seconds until the next look at its reserve."""
    return max(REST, _late_at(worker) - now) if worker.flights.round_trip else _patience(worker)


def _may_rest(worker: Worker, now: float, *, others_idle: bool) -> bool:
    """Whether its reserve may stay: the batch it runs should end soon."""
    running = now - _began(worker)
    if not others_idle:
        return running <= _patience(worker)
    if worker.flights.round_trip:
        # Before its last two round trips, taking back comes in time, and another would begin sooner.
        soon = _seconds(worker, worker.flights.in_flight[0]) - 2 * worker.flights.round_trip
        return soon <= running and now <= _late_at(worker)
    return max(running, worker.flights.cost) <= REST


def least_loaded(workers: Sequence[Worker]) -> Worker | None:
    """The worker with the fewest batches, of those that may hold another."""
    if len(workers) == 1:
        # The same result as the loop below, faster.
        return workers[0] if workers[0].has_room else None
    least: Worker | None = None
    fewest, ready = math.inf, WorkerState.READY
    for worker in workers:
        held = len(worker.flights.in_flight)
        if held < fewest and held < worker.flights.shared_capacity and worker.state is ready:
            least, fewest = worker, held
    if least is None:
        lone = _lone(workers)
        if lone is not None and lone.has_room:
            return lone
    return least


def _lone(workers: Sequence[Worker]) -> Worker | None:
    """The only worker for which requests may wait; None if there are several."""
    lone, ready = None, WorkerState.READY
    for worker in workers:
        if worker.state is ready or worker.may_serve:
            if lone is not None:
                return None
            lone = worker
    return lone
