"""Discrete events around the server's own queue and policies: nothing waits, and nothing is random.

The steps between events are those of ``modelserver.engine.pools.dispatch``: the policy decides which batch an
idle worker gets; a model's only worker gets a full batch in advance; when a result comes, the policy learns
first, then the worker gets its next batch, then clients get their answers. What is simulated takes
milliseconds: with several workers nothing waits at a busy one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from modelserver.engine.batching.queue import BatchQueue, QueueFull
from modelserver.engine.batching.request import Batch, Request
from modelserver.engine.pools.spec import PoolLimits
from modelserver.engine.wire.messages import Row
from modelserver.ext.console.simulation.costs import Cost

_ROWS = [Row("r", 0)]
_BODIES = [b""]
# What a lone worker may hold, as in modelserver.engine.pools.worker for handlers of a millisecond or more.
IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """One model version: what a batch costs, and with how many workers.

    ``overhead`` is the way of a batch to its worker and back, in seconds; a batch handed over in advance
    has gone the first half of it when its turn comes.
    """

    cost: Cost
    workers: int = 1
    overhead: float = 0.0


@dataclass(slots=True)
class Trace:
    """What happened: (arrival, latency) of each answered request, (end, size, seconds) of each batch."""

    answers: list[tuple[float, float]] = field(default_factory=list)
    batches: list[tuple[float, int, float]] = field(default_factory=list)
    refused: int = 0


# The batches that it holds.
_Worker: TypeAlias = "deque[Batch]"


class _Event(NamedTuple):
    """A worker's answer, a request's arrival, or else a look at what is due; sorted by time and order."""

    at: float
    order: int
    is_arrival: bool
    worker: _Worker | None


class Simulation:
    """A server under arrivals.

    Args:
        server: what is simulated.
        limits: how it batches, and how many requests wait.
        times: of the requests' arrivals, ascending.
    """

    def __init__(self, server: SimulatedServer, limits: PoolLimits, times: Iterable[float]) -> None:
        self.server = server
        policy = limits.make_policy()
        self.queue = BatchQueue(limits.batch_size, policy, limits.max_requests, limits.max_bytes)
        self.trace = Trace()
        self.now = 0.0
        self._times = iter(times)
        self._workers: list[_Worker] = [deque() for _ in range(server.workers)]
        self._events: list[_Event] = []
        self._orders = itertools.count()
        self._look = math.inf

    def run(self) -> Trace:
        """Lets the requests come and answers them all."""
        self._next_arrival()
        events = self._events
        while events:
            event = heapq.heappop(events)
            self.now = event.at
            if event.is_arrival:
                self._arrive()
                # As in one turn of the server's loop: what came at once is seen at once.
                if events and events[0].at == self.now and events[0].is_arrival:
                    continue
                self._pump()
            elif event.worker is not None:
                self._answer(event.worker)
            elif event.at == self._look:
                self._pump()
        return self.trace

    def _add(self, at: float, worker: _Worker | None = None, *, is_arrival: bool = False) -> None:
        heapq.heappush(self._events, _Event(at, next(self._orders), is_arrival, worker))

    def _next_arrival(self) -> None:
        if (at := next(self._times, None)) is not None:
            self._add(at, is_arrival=True)

    def _arrive(self) -> None:
        try:
            self.queue.put(Request("r", _ROWS, _BODIES, self.now))
        except QueueFull:
            self.trace.refused += 1
        self._next_arrival()

    def _answer(self, worker: _Worker) -> None:
        batch = worker.popleft()
        spent = self.server.cost.seconds(batch.size)
        self.queue.policy.finished(batch.size, spent, self.now)
        self.trace.batches.append((self.now, batch.size, spent))
        if worker:
            self._run(worker, self.server.overhead / 2)
        self._pump()
        for parcel in batch.parcels:
            self.trace.answers.append((parcel.request.arrived, self.now - parcel.request.arrived))

    def _pump(self) -> None:
        """Sends batches to idle workers, as the pool's dispatch does."""
        self._look = math.inf
        if not self.queue.requests:
            return
        idle = [worker for worker in self._workers if not worker]
        while idle and (batch := self.queue.take(self.now, len(idle))) is not None:
            self._send(idle.pop(0), batch)
        if not idle:
            self._hand_over_in_advance()
        elif self.queue.requests and (due := self.queue.due(self.now, len(idle))) < math.inf:
            self._look = max(due, self.now)
            self._add(self._look)

    def _hand_over_in_advance(self) -> None:
        if len(self._workers) > 1:
            return
        (worker,) = self._workers
        while len(worker) < IN_FLIGHT and self.queue.has_full():
            batch = self.queue.take(self.now, 0, only_full=True)
            if batch is None:
                return
            self._send(worker, batch)

    def _send(self, worker: _Worker, batch: Batch) -> None:
        worker.append(batch)
        if len(worker) == 1:
            self._run(worker, self.server.overhead)

    def _run(self, worker: _Worker, overhead: float) -> None:
        spent = self.server.cost.seconds(worker[0].size)
        self._add(self.now + overhead + spent, worker)
