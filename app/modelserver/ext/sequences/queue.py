"""Sequences of requests: each in order, one step at a time, on the worker that has its state.

A *step* is one instance of a request. Invariants (reference 8.9):

* the steps of a sequence run in order of arrival, never two at once;
* all of them run on one worker, from the first that it gets until the sequence ends;
* a batch has at most ``batch_size`` steps, each of another sequence, all of requests with the same key;
* at most ``max_sequences`` are alive, distributed evenly over the workers, with at most ``max_waiting``
  waiting requests each.

A sequence begins with the first request that names it. It ends when none of it waited or ran for ``max_idle``
seconds, when it is older than ``max_age``, when the handler or (our addition) the client says so, or when its
worker is lost. A running step always finishes first. Requests that still wait then are returned to be
refused: a worker without the state would answer them wrongly. For the same reason, the id of a sequence whose
worker was lost is refused for another ``max_idle`` seconds, unless the client starts it anew: the client may
not know of the loss.

As in the parent class, there are no tasks and no clock. The parent handles requests without a sequence (the
server's own questions to a handler).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from modelserver.engine.batching.policies import Waiting
from modelserver.engine.batching.queue import BatchQueue, QueueFull
from modelserver.engine.batching.request import Batch, Parcel, Request, SequencedRequest
from modelserver.engine.pools.spec import PoolLimits
from modelserver.engine.wire.messages import SequenceHeaders
from modelserver.errors import WorkerDied

# How many ids of lost sequences are remembered, unless ``max_sequences`` is larger.
MAX_LOST = 1024


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """The bounds of sequences, times in seconds: ``sequenceMaxIdleMSec``, ``sequenceTimeoutMSec`` (infinite
    where that is 0), ``maxNumSequence`` and ``maxSequenceJobQueueSize``.
    """

    max_idle: float
    max_age: float = math.inf
    max_sequences: int = 1
    max_waiting: int = 1


class SequenceLost(QueueFull):
    """The worker that had the state of the sequence is gone, and the client may not know."""

    def __init__(self, sequence_id: str, names: SequenceHeaders) -> None:
        super().__init__("sequence_lost", state_lost(sequence_id, names))


def state_lost(sequence_id: str, names: SequenceHeaders) -> WorkerDied:
    """The error for requests of a sequence whose state is gone."""
    return WorkerDied(
        f"Worker died. The state of sequence {sequence_id} is lost with it. Begin it anew with the "
        f"header {names.start}: true, or under another id."
    )


class Line:
    """One live sequence: its waiting steps, and the batch with the running one.

    ``has_state``: a worker got a step, and so has the state. ``waiting`` counts requests. ``ending``: the
    sequence ends with the running step. ``key``: of the first waiting step, as long as that could run.
    """

    __slots__ = (
        "ending",
        "has_state",
        "id",
        "idle_since",
        "key",
        "post",
        "running",
        "since",
        "steps",
        "waiting",
    )

    def __init__(self, sequence_id: str, since: float) -> None:
        self.id = sequence_id
        self.since = self.idle_since = since
        self.steps: deque[Parcel] = deque()
        self.key: object = None
        self.waiting = 0
        self.running: Batch | None = None
        self.has_state = self.ending = False
        self.post: _Post | None = None

    @property
    def closes(self) -> bool:
        """Whether the handler or the client said that nothing follows."""
        if self.ending:
            return True
        running = self.running
        last = self.steps[-1].request if self.steps else None
        if last is None and running is not None:
            last = next((p.request for p in running.parcels if _line_of(p) is self), None)
        return isinstance(last, SequencedRequest) and last.mark.ends


@dataclass(slots=True, eq=False)
class _Post:
    """The sequences of one worker; ``ready``: those with a step that could run, the longest waiting first;
    ``groups``: the same ones by the keys of those steps.
    """

    worker: Hashable
    lines: dict[Line, None] = field(default_factory=dict)
    ready: dict[Line, None] = field(default_factory=dict)
    groups: dict[object, dict[Line, None]] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        """A step could run."""
        if line not in self.ready:
            self.ready[line] = None
            line.key = line.steps[0].request.key
            self.groups.setdefault(line.key, {})[line] = None

    def drop(self, line: Line) -> None:
        """None can any more."""
        if line in self.ready:
            del self.ready[line]
            self._leave_group(line)

    def update(self, line: Line) -> None:
        """Another step may be the first; the sequence has waited as long as before."""
        key = line.steps[0].request.key
        if line in self.ready and key != line.key:
            self._leave_group(line)
            line.key = key
            self.groups[key] = dict.fromkeys(each for each in self.ready if each.key == key)

    def _leave_group(self, line: Line) -> None:
        group = self.groups[line.key]
        del group[line]
        if not group:
            del self.groups[line.key]


class SequenceQueue(BatchQueue):
    """A queue that returns, for each worker, batches of steps of that worker's sequences.

    Args:
        pool: how batches of steps are made, and the bounds of waiting requests without a sequence.
        limits: the bounds of sequences.
        names: of the headers, for messages.

    ``on_free`` is called with a worker whose last sequence has ended.
    """

    def __init__(self, pool: PoolLimits, limits: SequenceLimits, names: SequenceHeaders) -> None:
        most = pool.max_requests + limits.max_sequences * limits.max_waiting
        super().__init__(pool.batch_size, pool.make_policy(), most, pool.max_bytes)
        self.limits = limits
        self.on_free: Callable[[Hashable], None] = lambda _: None
        self._names = names
        self.lines: dict[str, Line] = {}  # by id, in the order in which they began
        self._quiet: dict[Line, None] = {}  # in the order in which they became idle
        self._unplaced: dict[Line, None] = {}
        self._posts: dict[Hashable, _Post] = {}
        self._lost: dict[str, float] = {}  # id to the time at which it is forgotten, in that order
        self._share = limits.max_sequences

    # -- input

    def knows(self, sequence_id: str) -> bool:
        """Whether the sequence has begun and not ended, or its state was lost lately."""
        return sequence_id in self.lines or sequence_id in self._lost

    def put(self, request: Request) -> None:
        """Adds a request; raises :class:`QueueFull` or :class:`SequenceLost` without having changed anything.

        Reasons of the former besides the parent's: ``sequences`` (too many), ``sequence_queue`` (full) and
        ``sequence_closed`` (an earlier request was said to be the last).
        """
        if not isinstance(request, SequencedRequest):
            super().put(request)
            return
        line = self._find(request)
        if self.nbytes + request.nbytes > self.max_bytes and self.requests:
            raise QueueFull("bytes")
        now = request.arrived
        if line is None:
            line = self._begin(request.mark.id, now)
            request.is_first = True
        request.line = line
        request.place = next(self._places)
        request.waiting = len(request.rows)
        line.steps.extend(Parcel(request, index, 1) for index in range(len(request.rows)))
        line.waiting += 1
        self._count(1, len(request.rows), request.nbytes)
        if not self.is_at_once(request):
            self.policy.arrived(len(request.rows), now)
        self._wake(line)

    def _find(self, request: SequencedRequest) -> Line | None:
        """The sequence that a request continues, None if it begins one."""
        mark = request.mark
        line = self.lines.get(mark.id)
        if line is None:
            if mark.id in self._lost and not mark.starts:
                raise SequenceLost(mark.id, self._names)
            if len(self.lines) >= self.limits.max_sequences:
                raise QueueFull("sequences")
        elif line.closes:
            raise QueueFull("sequence_closed")
        elif line.waiting >= self.limits.max_waiting:
            raise QueueFull("sequence_queue")
        return line

    def _begin(self, sequence_id: str, now: float) -> Line:
        self._lost.pop(sequence_id, None)
        line = self.lines[sequence_id] = Line(sequence_id, now)
        self._unplaced[line] = None
        return line

    def remove(self, request: Request) -> None:
        """Removes what waits of the request, and its sequence if that has no other request and no state."""
        line = request.line if isinstance(request, SequencedRequest) else None
        if line is None:
            super().remove(request)
        elif request.waiting:
            line.steps = deque(step for step in line.steps if step.request is not request)
            self._uncount(line, request)
            if line.steps:
                if line.post is not None:
                    line.post.update(line)
            else:
                if line.post is not None:
                    line.post.drop(line)
                if not line.has_state:
                    self._end(line)
                elif line.running is None:
                    # The request was a sign of life from the client.
                    self._rest(line, max(line.idle_since, request.arrived))

    def _parcels(self) -> Iterable[Parcel]:
        return itertools.chain(super()._parcels(), *(line.steps for line in self.lines.values()))

    def drain(self) -> list[Request]:
        """Removes everything and ends all sequences; returns the requests that waited, each once."""
        waiting = super().drain()
        for line in list(self.lines.values()):
            waiting += self._end(line)
        return waiting

    def drain_unplaced(self) -> list[Request]:
        """Removes what has no worker yet, with and without a sequence; returns the requests."""
        waiting = super().drain()
        for line in list(self._unplaced):
            waiting += self._end(line)
        return waiting

    # -- output

    def place(self, ready: Sequence[Hashable], workers: int) -> None:
        """Assigns new sequences to ready workers: each to the first of those that have the fewest.

        ``workers`` is the number of all workers, ready or not: none gets more than its share of
        ``max_sequences``. TorchServe rounds the share down, so that some sequences could wait for ever; here
        it is rounded up.
        """
        self._share = -(-self.limits.max_sequences // max(1, workers))
        while self._unplaced:
            line = next(iter(self._unplaced))
            worker = min(ready, key=self.living, default=None)
            if worker is None or self.living(worker) >= self._share:
                return
            del self._unplaced[line]
            post = self._posts.setdefault(worker, _Post(worker))
            post.lines[line] = None
            line.post = post
            self._wake(line)

    def living(self, worker: Hashable) -> int:
        """How many sequences the worker has."""
        post = self._posts.get(worker)
        return 0 if post is None else len(post.lines)

    def due_at(self, worker: Hashable, now: float) -> float:
        """The time of the next batch for this worker; see :meth:`due`."""
        post = self._posts.get(worker)
        if post is None:
            return math.inf
        return min((self._group_due(group, post, now) for group in self._groups(post)), default=math.inf)

    def take_for(self, worker: Hashable, now: float) -> Batch | None:
        """The next batch due for this idle worker, or None; requests past their deadline are removed."""
        post = self._posts.get(worker)
        if post is None or not post.ready:
            return None
        while True:
            due = (group for group in self._groups(post) if self._group_due(group, post, now) <= now)
            group = next(due, None)
            if group is None:
                return None
            late = [line.steps[0].request for line in group if _is_late(line.steps[0].request, now)]
            if not late:
                return self._send(group, post, now)
            for request in late:
                self.remove(request)

    def _groups(self, post: _Post) -> Iterator[list[Line]]:
        """The sequences that could share a batch, the longest waiting first."""
        for line in post.ready:
            group = post.groups[line.key]
            if line is next(iter(group)):
                yield list(itertools.islice(group, self.batch_size))

    def _is_full(self, group: list[Line], post: _Post) -> bool:
        """Whether no other sequence can join: there is no room, or the worker's whole share is in it."""
        return len(group) >= self.batch_size or len(group) == len(post.lines) >= self._share

    def _group_due(self, group: list[Line], post: _Post, now: float) -> float:
        if self.flushing or self._is_full(group, post) or self.is_at_once(group[0].steps[0].request):
            return now
        waiting = [line.steps[0].request for line in group]
        arrived = [request.arrived for request in waiting]
        # Other workers cannot take these, so for the policy there is only one.
        due = self.policy.due(Waiting(len(group), min(arrived), max(arrived), 1), now)
        deadlines = (request.deadline for request in waiting)
        return now if any(deadline is not None and deadline <= due for deadline in deadlines) else due

    def _send(self, group: list[Line], post: _Post, now: float) -> Batch:
        reason = "delay" if self.policy.name == "window" else "idle"
        if self._is_full(group, post):
            reason = "size"
        elif self.flushing:
            reason = "flush"
        at_once = self.is_at_once(group[0].steps[0].request)
        batch = Batch([line.steps.popleft() for line in group], len(group), reason, at_once=at_once)
        for line, step in zip(group, batch.parcels, strict=True):
            request = step.request
            request.waiting -= 1
            last = request.waiting == 0
            line.waiting -= last
            self._count(-last, -1, -request.nbytes if last else 0)
            line.running, line.has_state = batch, True
            post.drop(line)
        return batch

    # -- the life of sequences

    def finish(self, batch: Batch, now: float) -> list[Request]:
        """The worker is done with the batch: the next steps may be sent. Idempotent.

        Returns the waiting requests of sequences that end with it.
        """
        waited: list[Request] = []
        for line, step in _lines(batch):
            if line.running is not batch:
                continue
            request = step.request
            assert isinstance(request, SequencedRequest)  # noqa: S101 - of a line
            line.running = None
            if line.ending or (request.mark.ends and not line.steps):
                waited += self._end(line)
            elif line.steps:
                self._wake(line)
            else:
                self._rest(line, now)
        return waited

    def end(self, worker: Hashable, ids: Iterable[str]) -> list[Request]:
        """The worker's handler ends some of its sequences; returns their waiting requests.

        Ids of other sequences are ignored; a sequence with a running step ends after that step.
        """
        waited: list[Request] = []
        for name in ids:
            line = self.lines.get(name)
            if line is None or line.post is None or line.post.worker != worker:
                continue
            if line.running is None:
                waited += self._end(line)
            else:
                line.ending = True
        return waited

    def expire(self, now: float) -> list[Request]:
        """Ends the sequences that are too old or too long idle and run no step; returns what waited."""
        for name in list(itertools.takewhile(lambda name: self._lost[name] <= now, self._lost)):
            del self._lost[name]
        idle = self.limits.max_idle
        quiet = itertools.takewhile(lambda line: line.idle_since + idle <= now, self._quiet)
        over = dict.fromkeys((*quiet, *self._too_old(now)))
        return [request for line in over for request in self._end(line)]

    def next_end(self) -> float:
        """The time at which :meth:`expire` has something to do."""
        idle = next((line.idle_since + self.limits.max_idle for line in self._quiet), math.inf)
        if self.limits.max_age == math.inf:
            return idle
        first = (line.since for line in self.lines.values() if line.running is None)
        return min(idle, next(first, math.inf) + self.limits.max_age)

    def _too_old(self, now: float) -> Iterator[Line]:
        if self.limits.max_age < math.inf:
            for line in self.lines.values():
                if line.since + self.limits.max_age > now:
                    return
                if line.running is None:
                    yield line

    def lose(self, worker: Hashable, now: float) -> list[Request]:
        """The worker's process is gone with the state of its sequences; returns what waited.

        Sequences that it had got no step of are not lost: they go to another worker.
        """
        post = self._posts.pop(worker, None)
        if post is None:
            return []
        waited: list[Request] = []
        for line in list(post.lines):
            line.post = None
            if line.has_state:
                waited += self._end(line)
                self._remember(line.id, now)
            else:
                self._unplaced[line] = None
        self._unplaced = dict.fromkeys(sorted(self._unplaced, key=lambda line: line.steps[0].request.place))
        return waited

    def _remember(self, sequence_id: str, now: float) -> None:
        self._lost.pop(sequence_id, None)
        self._lost[sequence_id] = now + self.limits.max_idle
        if len(self._lost) > max(MAX_LOST, self.limits.max_sequences):
            del self._lost[next(iter(self._lost))]

    def _wake(self, line: Line) -> None:
        """Marks a sequence with a waiting step as ready, if it has a worker and runs no step."""
        if line.steps and line.running is None:
            self._quiet.pop(line, None)
            if line.post is not None:
                line.post.add(line)

    def _rest(self, line: Line, since: float) -> None:
        last = next(reversed(self._quiet), None)
        line.idle_since = since
        self._quiet[line] = None
        if last is not None and last.idle_since > since:
            self._quiet = dict.fromkeys(sorted(self._quiet, key=lambda quiet: quiet.idle_since))

    def _end(self, line: Line) -> list[Request]:
        """Ends a sequence; returns its waiting requests."""
        del self.lines[line.id]
        self._quiet.pop(line, None)
        self._unplaced.pop(line, None)
        post, line.post, line.running = line.post, None, None
        if post is not None:
            post.lines.pop(line)
            post.drop(line)
            if not post.lines:
                self._posts.pop(post.worker, None)
                self.on_free(post.worker)
        waited = list(dict.fromkeys(step.request for step in line.steps))
        line.steps.clear()
        for request in waited:
            self._uncount(line, request)
        return waited

    def _uncount(self, line: Line, request: Request) -> None:
        line.waiting -= 1
        self._count(-1, -request.waiting, -request.nbytes)
        request.waiting = 0

    # -- reports

    def would_run(self, request: SequencedRequest, idle: Sequence[Hashable]) -> bool:
        """Whether one of the idle workers could run the request's first step in its next batch."""
        line = self.lines.get(request.mark.id)
        if line is None:
            free = [worker for worker in idle if self.living(worker) < self._share]
        elif line.steps or line.running is not None or line.post is None:
            return False
        else:
            free = [worker for worker in idle if worker == line.post.worker]
        posts = (self._posts.get(worker) for worker in free)
        return any(post is None or len(post.ready) < self.batch_size for post in posts)


def _line_of(step: Parcel) -> Line | None:
    request = step.request
    return request.line if isinstance(request, SequencedRequest) else None


def _is_late(request: Request, now: float) -> bool:
    return request.deadline is not None and request.deadline <= now


def _lines(batch: Batch) -> list[tuple[Line, Parcel]]:
    return [(line, step) for step in batch.parcels if (line := _line_of(step)) is not None]
