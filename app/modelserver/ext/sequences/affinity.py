"""Workers that hold the state of sequences: ``sequenceBatching`` (reference 8.9).

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
* With ``continuousBatching`` a worker has several requests at a time, as always there, each of a different
  sequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial

from modelserver.engine.batching.request import Batch, Request, SequencedRequest
from modelserver.engine.pools.spec import PoolLimits
from modelserver.engine.wire.messages import Answer, SequenceHeaders
from modelserver.errors import ModelServerError
from modelserver.ext.sequences.queue import SequenceLimits, SequenceQueue, state_lost
from modelserver.models.options.resolve import ModelOptions


def sequence_affinity(limits: PoolLimits, options: ModelOptions, names: SequenceHeaders) -> SequenceAffinity:
    """The affinity for a model's options; their times are in milliseconds, a lifetime of 0 is unlimited."""
    timeout = options.sequence_timeout_ms
    bounds = SequenceLimits(
        options.sequence_max_idle_ms / 1000,
        timeout / 1000 if timeout else math.inf,
        options.max_num_sequence,
        options.max_sequence_job_queue_size,
    )
    return SequenceAffinity(SequenceQueue(limits, bounds, names), names)


class SequenceAffinity:
    """Sends the requests of a sequence to the worker that has its state.

    See :class:`modelserver.engine.pools.spec.Affinity`. ``leaving``: each with an event for the end of its
    last sequence.
    """

    def __init__(self, queue: SequenceQueue, names: SequenceHeaders) -> None:
        self.queue = queue
        self.leaving: dict[Hashable, asyncio.Event] = {}
        self._names = names
        self.knows = queue.knows
        self.place = queue.place
        self.next_end = queue.next_end
        self.expire = queue.expire
        self.remove_unplaced = queue.drain_unplaced
        # It refers to what it changes only: with a method of this object, both would be a reference cycle.
        queue.on_free = partial(_freed, self.leaving)

    @property
    def statistics(self) -> dict[str, int]:
        lines = self.queue.lines.values()
        return {"living": len(lines), "waiting": sum(line.waiting for line in lines)}

    def lives(self, request: Request) -> bool:
        return isinstance(request, SequencedRequest) and request.mark.id in self.queue.lines

    def has_ticket(self, request: Request, free: Sequence[Hashable]) -> bool:
        if not isinstance(request, SequencedRequest):
            return True
        if not self.lives(request):
            free = [worker for worker in free if worker not in self.leaving]
        return self.queue.would_run(request, free)

    def take(self, worker: Hashable, now: float) -> Batch | None:
        batch = None if worker in self.leaving else self.queue.take(now, 1)
        return batch or self.queue.take_for(worker, now)

    def due(self, worker: Hashable, now: float) -> float:
        return min(self.queue.due_at(worker, now), self.queue.due(now, 1))

    def finished(
        self, batch: Batch, now: float, worker: Hashable = None, answers: Sequence[Answer] = ()
    ) -> list[Request]:
        """The handler may end sequences by a header of its answers."""
        return self.queue.finish(batch, now) + self.queue.end(worker, self._ended_by(answers))

    def _ended_by(self, answers: Iterable[Answer]) -> list[str]:
        """The sequences ended by these answers, separated by ``;`` (reference 8.9)."""
        end = self._names.end.lower()
        return [
            name.strip()
            for answer in answers
            for key, value in answer.headers or ()
            if key.lower() == end
            for name in value.split(";")
        ]

    def lose(self, worker: Hashable, now: float) -> list[tuple[Request, ModelServerError]]:
        lost = self.queue.lose(worker, now)
        _freed(self.leaving, worker)
        return [
            (request, state_lost(request.mark.id, self._names))
            for request in lost
            if isinstance(request, SequencedRequest)
        ]

    async def leave(self, worker: Hashable, patience: float) -> None:
        if not self.queue.living(worker):
            return
        ended = self.leaving[worker] = asyncio.Event()
        longest = self.queue.limits.max_age
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), patience if longest == math.inf else longest)
        finally:
            del self.leaving[worker]


def _freed(leaving: Mapping[Hashable, asyncio.Event], worker: Hashable) -> None:
    if worker in leaving:
        leaving[worker].set()
