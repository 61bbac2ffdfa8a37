"""The batches that a worker has, from when they are sent until they are answered or come back.

What they have taken so far says how many it may have at once, and for one on another machine, when the next
should leave for it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from modelserver.engine.batching.policies import Expectation
from modelserver.engine.batching.request import Batch, Request
from modelserver.engine.pools.spec import Process
from modelserver.engine.wire.messages import (
    ANY_PATH,
    Cancelled,
    Loaded,
    Predict,
    Proceed,
    Recalled,
    Result,
    TracedPredict,
)

# A worker may hold this many batches, and beside the running one no more than it answers in this many
# seconds. For very fast handlers that avoids most switches between processes. The only worker of a pool may
# always hold one in reserve.
MAX_IN_FLIGHT = 16
REST = 0.001


class Flights:
    """The batches of one worker, the oldest first, and its process, None between two.

    ``freed_at`` is set by the owner: when, by its clock, the last batch was answered. ``capacity`` batches
    may be in flight if no other worker could run them, otherwise ``shared_capacity``. ``round_trip`` are the
    seconds to the process and back, 0.0 on this machine, elsewhere with the ``expectation`` of what a batch
    takes there. ``foreseen``: the end of what it has can be expected, and what it gets in advance can be
    taken back. ``served`` counts the requests that the current process has answered. ``concurrency``: how
    many batches run at once, as configured unless the handler says it; 0: one at a time. By the loop's clock,
    the process last sent something at ``active_at``, and has had its oldest batch since ``head_since``.
    """

    def __init__(self, concurrency: int) -> None:
        self.process: Process | None = None
        self.in_flight: deque[Batch] = deque()
        self.capacity = self.shared_capacity = 1
        self.cost, self.expectation = REST, Expectation()
        self.freed_at = self.round_trip = 0.0
        self.foreseen = False
        self.served = 0
        self.head_since = self.active_at = 0.0
        self._loop = asyncio.get_running_loop()
        self.concurrency = concurrency
        self._recalls = self._is_distant = False
        self._model = Loaded()
        # Batches by number, where many run at once.
        self._numbered: dict[int, Batch] = {}
        self._recalled_below = 0  # up to where batches are being taken back
        self._sequence = 0

    # -- the process

    def started(self, process: Process) -> None:
        """A new process gets the batches."""
        self.process = process
        self.foreseen = False
        self.served = self._recalled_below = 0
        self._recalls = process.recalls
        self._is_distant = process.node is not None

    def loaded(self, message: Loaded) -> None:
        """The process has loaded its model."""
        self.concurrency = message.concurrency or self.concurrency
        self.capacity = self.concurrency or 2
        self.shared_capacity = self.concurrency or 1
        self._model = message
        self._measure()

    def ended(self) -> None:
        """The process has ended."""
        self.process = None

    def lost(self, started: int | None, *, idempotent: bool, failed: bool) -> tuple[list[Batch], list[Batch]]:
        """Gives up all batches. Returns those that must not be run again, and those that may.

        ``started``: how many the process had started. None: it is alive, or did not report it.
        ``idempotent``: batches that may or may not have started may run again, unless one of them
        ``failed``.
        """
        batches = list(self.in_flight)
        self.in_flight.clear()
        self._numbered.clear()
        if self.concurrency and self._model.endpoints.keys() - {ANY_PATH}:
            # An answer that has not begun can be generated again: no client has received a part of it.
            fresh = [batch for batch in batches if batch.parcels[0].request.began is None]
            return [batch for batch in batches if batch.parcels[0].request.began is not None], fresh
        if started is not None:
            count = sum(batch.sequence < started for batch in batches)
        elif self._is_distant and idempotent and not failed:
            count = 0
        elif self.concurrency or (self._is_distant and not idempotent):
            # The worker is out of reach, and may have begun all batches.
            count = len(batches)
        else:
            count = min(1, len(batches))
        return batches[:count], batches[count:]

    # -- batches

    def send(self, batch: Batch) -> None:
        """Sends a batch; the worker must have room."""
        assert self.process is not None  # noqa: S101 - READY implies a process
        rows, bodies = batch.contents()
        if not self.in_flight:
            self.head_since = self._loop.time()
        number, trace = self._sequence, batch.trace
        self.process.send(
            Predict(number, rows) if trace is None else TracedPredict(number, rows, trace.parent), bodies
        )
        batch.sequence = number
        if self.concurrency:
            batch.active_at = self._loop.time()
            self._numbered[number] = batch
        self.in_flight.append(batch)
        self._sequence += 1

    def answered(self, result: Result) -> Batch | None:
        """The batch that has been answered; None if there is no such batch, or not at this time."""
        if self.in_flight and self.in_flight[0].sequence == result.sequence:
            batch = self.in_flight.popleft()
        elif self.concurrency and (late := self.find(result.sequence)) is not None:
            batch = late
            self.in_flight.remove(batch)
        else:
            return None
        if self.concurrency:
            self._numbered.pop(result.sequence, None)
        self.head_since = self.active_at
        self.served += len(batch.parcels)
        if self._is_distant:
            self._measure(batch, result.handler_time)
        if not self.concurrency:
            self._learn(result.handler_time)
        return batch

    def find(self, sequence: int) -> Batch | None:
        """The batch with this number."""
        if self.concurrency:
            return self._numbered.get(sequence)
        return next((batch for batch in self.in_flight if batch.sequence == sequence), None)

    def streamed(self, sequence: int) -> Batch | None:
        """The batch of a part that arrived, whose timeout restarts; None if it has timed out."""
        batch = self.find(sequence)
        if batch is not None:
            self.head_since = batch.active_at = self.active_at
        return batch

    def proceed(self, batch: Batch) -> None:
        """Lets the process send further parts of the batch; its timeout restarts."""
        if self.process is not None and batch in self.in_flight:
            self.head_since = batch.active_at = self._loop.time()
            self.process.send(Proceed(batch.sequence))

    def cancel(self, request: Request) -> None:
        """Notifies the process that a request's client has disconnected."""
        if self.process is None:
            return
        for batch in self.in_flight:
            if rows := batch.rows_of(request):
                self.process.send(Cancelled(batch.sequence, rows))

    def give_up(self, batch: Batch) -> None:
        """Cancels a whole batch."""
        assert self.process is not None  # noqa: S101 - it has a batch
        self.process.send(Cancelled(batch.sequence, list(range(batch.size))))
        self._remove(batch.sequence, batch.sequence + 1)

    # -- batches in reserve

    @property
    def has_reserve(self) -> bool:
        """Whether batches wait here for the end of another one."""
        return len(self.in_flight) > 1 and not self.concurrency

    def take_back(self) -> list[Batch]:
        """Takes back batches that have not begun; until its next answer, the worker gets none in advance.

        Those on another machine come back later, as :meth:`recalled`.
        """
        if self.process is None or not self._recalls or self._recalled_below or not self.has_reserve:
            return []
        try:
            first = self.process.recall(self._sequence)
        except OSError:
            return []
        self.shared_capacity, self.foreseen = 1, False
        if first is None:
            self._recalled_below = self._sequence
            return []
        return self._remove(first, self._sequence)

    def recalled(self, message: Recalled) -> list[Batch]:
        """The batches that a worker on another machine has given back."""
        if message.below == self._recalled_below:
            self._recalled_below = 0
        return self._remove(message.started, message.below)

    def returned(self, sequence: int) -> list[Batch]:
        """The batch that the process has given back by itself, if it has it."""
        if taken := self._remove(sequence, sequence + 1):
            self.head_since = self.active_at
        return taken

    def _remove(self, first: int, below: int) -> list[Batch]:
        taken = [batch for batch in self.in_flight if first <= batch.sequence < below]
        for batch in taken:
            self.in_flight.remove(batch)
            self._numbered.pop(batch.sequence, None)
        return taken

    # -- what they take

    def _measure(self, batch: Batch | None = None, seconds: float = 0.0) -> None:
        """Notes how far away the process is now, and what a batch took there."""
        self.round_trip = 0.0 if self.process is None else self.process.round_trip
        if batch is not None and not batch.at_once:
            self.expectation.add(batch.size, seconds)

    def _learn(self, seconds: float) -> None:
        """Tracks the cost of a batch; it rises at once, so a slower handler gets no batches in advance."""
        self.cost = max(seconds, 0.9 * self.cost + 0.1 * seconds)
        quick = min(MAX_IN_FLIGHT, int(REST / max(self.cost, 1e-6)))
        self.capacity = max(2, quick)
        self.foreseen = self._recalls and not self._recalled_below
        self.shared_capacity = max(2 if self._model.pipelined else 1, quick) if self.foreseen else 1
