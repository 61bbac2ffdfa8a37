"""A pool whose workers hold the state of sequences: ``sequenceBatching`` (reference 8.9).

Decisions made here, besides the rules of :mod:`modelserver.ext.sequences.queue`:

* Too many sequences, too many requests of one, and requests still waiting when a sequence ends get
  TorchServe's 503.
* When a worker dies, the state is lost. The running step gets ``Worker died.`` as usual; waiting requests of
  its sequences, and later ones with their ids, get a 500 that says so, instead of an answer computed without
  the state. Sequences that had not begun, and new ones, go elsewhere. (TorchServe never answers waiting
  requests, and then refuses the id.)
* A worker that is scaled down gets no new sequences and serves its own until they end: for up to
  ``sequenceTimeoutMSec``, or if there is none, ``response_timeout``. Then they are lost as if it had died.
  TorchServe aborts them at once.
* A worker gets its next batch when it has answered the last one, never in advance. With
  ``continuousBatching`` it has several requests at a time, as always there, each of a different sequence.
"""

from __future__ import annotations

import asyncio
import math
from functools import cached_property
from typing import TYPE_CHECKING

from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.spec import WorkerState, no_worker, policy_for
from modelserver.errors import ModelServerError, ResponseTimeout, WorkerDied
from modelserver.ext.sequences.queue import (
    SequencedRequest,
    SequenceLimits,
    SequenceLost,
    SequenceQueue,
    SequenceStatistics,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from modelserver.engine.batching.request import Batch, Request
    from modelserver.engine.pools.spec import PoolLimits
    from modelserver.engine.pools.worker import Worker
    from modelserver.engine.wire.messages import Answer, Result, SequenceHeaders


def sequence_queue(
    limits: PoolLimits, max_idle_ms: int, timeout_ms: int, max_sequences: int, max_waiting: int
) -> SequenceQueue:
    """The queue for values of model-config.yaml: in milliseconds, with 0 for an unlimited lifetime."""
    max_age = timeout_ms / 1000 if timeout_ms else math.inf
    return SequenceQueue(
        *(limits.batch_size, policy_for(limits), limits.max_requests, limits.max_bytes),
        SequenceLimits(max_idle_ms / 1000, max_age, max_sequences, max_waiting),
    )


class SequencePool(Pool):
    """Serves one model version whose requests belong to sequences."""

    queue: SequenceQueue

    @cached_property
    def _draining(self) -> dict[Worker, asyncio.Event]:
        """Leaving workers, each with an event for the end of its last sequence."""
        return {}

    @property
    def _headers(self) -> SequenceHeaders:
        return self.spec.load.sequence_headers

    # -- requests

    def submit(self, request: Request, asked_version: str | None = None) -> None:
        """As the parent.

        Raises:
            ServiceUnavailable: as the parent; too many sequences, or too many requests of this one.
            WorkerDied: the state of its sequence was lost, and the request does not restart it.
        """
        self._end_those_over()
        reason = self._objection(request)
        if reason:
            self.metrics.requests.rejected(reason)
            raise no_worker(self.name, asked_version, self.failure if reason == "no_worker" else "")
        try:
            super().submit(request, asked_version)
        except SequenceLost as lost:
            self.metrics.requests.rejected("sequence_lost")
            raise self._lost(str(lost)) from lost

    def _objection(self, request: Request) -> str:
        """Why the request is refused, as a label for the metrics, or an empty string."""
        if not super()._has_hope() and not self.queue.lives(request):
            return "no_worker"
        if not self.limits.tickets or not isinstance(request, SequencedRequest):
            return ""
        workers = self._serving() if self.queue.lives(request) else self._open_to_new()
        idle = [worker for worker in workers if self._is_free(worker)]
        return "" if self.queue.would_run(request, idle) else "no_ticket"

    def _has_hope(self) -> bool:
        return super()._has_hope() or bool(self._draining)

    def _refuse_if_hopeless(self) -> None:
        """Refuses sequences without a worker if there is none; the others have theirs."""
        if super()._has_hope():
            return
        for request in self.queue.drain_unplaced():
            self._end(request, no_worker(self.name, failure=self.failure))

    def _end_those_over(self) -> None:
        """Ends expired sequences."""
        self._close_out(self.queue.expire(self.clock()))

    def _close_out(self, requests: Iterable[Request]) -> None:
        """Refuses waiting requests of ended sequences."""
        for request in requests:
            self._end(request, no_worker(self.name))
        for worker, ended in self._draining.items():
            if not self.queue.living(worker):
                ended.set()

    def _lost(self, sequence_id: str) -> WorkerDied:
        return WorkerDied(
            f"Worker died. The state of sequence {sequence_id} is lost with it. Begin it anew with the "
            f"header {self._headers.start}: true, or under another id."
        )

    def cancel(self, request: Request) -> None:
        """As the parent; a sequence that has not begun and has no other request ends too."""
        super().cancel(request)
        self._close_out(())

    def _expire(self, request: Request) -> None:
        super()._expire(request)
        self._close_out(())

    # -- batches

    def pump(self) -> None:
        """Sends every batch that may go now and sets the timer for the next batch or end of a sequence."""
        self._end_those_over()
        self._disarm()
        queue, now = self.queue, self.clock()
        queue.place(self._open_to_new(), sum(w.state is not WorkerState.FAILED for w in self.workers))
        self._crowded = True
        due = queue.next_end()
        for worker in self._serving():
            while self._is_free(worker):
                batch = None if worker in self._draining else queue.take(now, 1)
                batch = batch or queue.take_for(worker, now)
                if batch is None:
                    self._crowded = False
                    due = min(due, queue.due_at(worker, now), queue.due(now, 1))
                    break
                self.send(worker, batch, now)
        if due < math.inf:
            self._timer = self._loop.call_later(max(0.0, due - now), self.pump)
        self._check_quiet()

    def _disarm(self) -> None:
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._timer = None

    def _is_free(self, worker: Worker) -> bool:
        return worker.has_room if self.spec.concurrency else worker.idle

    def _serving(self) -> Iterator[Worker]:
        """The loaded workers, including those that leave when their sequences have ended."""
        for worker in (*self.workers, *self._draining):
            if worker.state is WorkerState.READY:
                yield worker

    def _open_to_new(self) -> list[Worker]:
        """The loaded workers, idle ones first."""
        ready = [worker for worker in self.workers if worker.state is WorkerState.READY]
        return sorted(ready, key=lambda worker: len(worker.in_flight))

    # -- events of workers

    def worker_answered(self, worker: Worker, batch: Batch, result: Result, tail: memoryview) -> None:
        """As the parent; the handler may end sequences by a header of its answers."""
        ended = self.queue.finish(batch, self.clock())
        self._close_out(ended + self.queue.end(worker, self._ended_by(result.answers)))
        super().worker_answered(worker, batch, result, tail)

    def _ended_by(self, answers: Iterable[Answer]) -> list[str]:
        """The sequences ended by these answers, separated by ``;`` (reference 8.9)."""
        end = self._headers.end.lower()
        return [
            name.strip()
            for answer in answers
            for key, value in answer.headers or ()
            if key.lower() == end
            for name in value.split(";")
        ]

    def worker_lost(
        self, worker: Worker, running: Batch | None, unbegun: list[Batch], error: ModelServerError
    ) -> None:
        """Waiting requests of its sequences fail, unless only one request timed out and the process lives."""
        if worker.state is not WorkerState.READY or not isinstance(error, ResponseTimeout):
            self._lose(worker)
        for batch in unbegun:
            self._fail_batch(batch, error)
        super().worker_lost(worker, running, [], error)
        self._close_out(())

    def _lose(self, worker: Worker) -> None:
        for request in self.queue.lose(worker, self.clock()):
            assert isinstance(request, SequencedRequest)  # noqa: S101 - of a sequence
            self._end(request, self._lost(request.mark.id))

    def _fail_batch(self, batch: Batch, error: Exception) -> None:
        self._close_out(self.queue.finish(batch, self.clock()))
        super()._fail_batch(batch, error)

    # -- workers

    async def _leave(self, worker: Worker) -> None:
        """Lets the worker's sequences end, then ends it."""
        try:
            if self.queue.living(worker) and not self.closing:
                await self._await_sequences(worker)
            self._lose(worker)
        finally:
            await super()._leave(worker)

    async def _await_sequences(self, worker: Worker) -> None:
        ended = self._draining[worker] = asyncio.Event()
        longest = self.queue.limits.max_age
        try:
            await asyncio.wait_for(ended.wait(), self._times.response if longest == math.inf else longest)
        except asyncio.TimeoutError:
            pass
        finally:
            del self._draining[worker]

    async def close(self, grace: float) -> None:
        """As the parent, without waiting for sequences to end."""
        self.closing = True
        self._close_out(self.queue.drain())
        await super().close(grace)

    @property
    def sequences(self) -> SequenceStatistics | None:
        """How many sequences live and wait."""
        return self.queue.statistics
