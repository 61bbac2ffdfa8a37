"""A version that gets copies of requests, whose answers are compared and then thrown away.

A copy is made of a request that has been answered, and waits in a bounded queue of its own until

* the event loop has time to spare,
* no client's request waits for the version, and one of its workers is free.

Copies that wait are sent together, as one request to the version's pool: most of what the server does for a
request is not done for each copy. What cannot be sent is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, cast

from modelserver.engine.batching.request import Request
from modelserver.engine.ids import accept_request_id
from modelserver.engine.pools.pool import Pool
from modelserver.engine.wire.messages import Answer, Row
from modelserver.errors import ModelServerError
from modelserver.ext.rollout.compare import Pair, difference
from modelserver.ext.rollout.judging import Judge
from modelserver.ext.rollout.latencies import Latencies
from modelserver.ext.rollout.plan import Shadowing
from modelserver.models.version import ModelVersion

# Whether the event loop has time to spare for work of low priority.
#
# A loop that always has something to do answers fewer requests for whatever else it does. Time in which it
# waits for a processor counts as well: then no core is free.

# Seconds between looks, and the share of time from which a loop has none to spare.
EVERY = 0.1
BUSY = 0.8
_SCHEDULED = Path("/proc/thread-self/schedstat")


def seconds_busy() -> float:
    """Seconds for which this thread has run or waited for a processor."""
    try:
        ran, waited, _ = _SCHEDULED.read_bytes().split()
        return (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):
        return time.thread_time()


class Spare:
    """Decides whether the running thread's event loop has time for copies.

    Args:
        clock: seconds.
        busy_seconds: the seconds for which the loop had something to do so far.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, busy_seconds: Callable[[], float] = seconds_busy
    ) -> None:
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._since, self._before = clock(), busy_seconds()
        # As of the last look.
        self.busy = False

    def left(self) -> bool:
        """Whether there is time for one piece of work; of a busy loop, for one at each look."""
        now = self._clock()
        if (passed := now - self._since) < EVERY:
            return not self.busy
        busy_seconds = self._busy_seconds()
        self.busy = busy_seconds - self._before >= BUSY * passed
        self._since, self._before = now, busy_seconds
        return True


_log = logging.getLogger("modelserver.rollout")

# Copies that may wait, their bytes with the answers, and the differing pairs that are kept.
MOST_WAITING = 1000
MOST_BYTES = 1 << 24
MOST_DIFFERENCES = 20
# Seconds until copies are sent, so that answers of the same turn go first, and until a busy pool is asked
# again.
SOON = 0.001
LATER = 0.02

# What became of a copy, or of a request that would have been copied; those from the third on were not
# compared.
OUTCOMES = (
    "agreed",
    "differed",
    "no_time",
    "queue_full",
    "not_ready",
    "refused",
    "streamed",
    "unanswered",
    "not_compared",
    "ended",
)


class Copy(NamedTuple):
    """A request that was answered by another version after ``seconds``."""

    request: Request
    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Two answers that differ, the primary's first; latencies in seconds, ``bodies`` only if asked for."""

    request_id: str
    reason: str
    statuses: tuple[int, int]
    seconds: tuple[float, float]
    batches: tuple[tuple[str, int], tuple[str, int]]
    bodies: tuple[bytes, bytes, bytes] | None = None


@dataclass(slots=True)
class Counts:
    """Copies by outcome, how many of them failed although the primary did not, and what took how long."""

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    failed: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    primary_latencies: Latencies = field(default_factory=Latencies)
    batch_sizes: int = 0
    primary_batch_sizes: int = 0


class Shadow:
    """One shadow of a model.

    Args:
        version: gets the copies.
        how: how many, and how their answers are compared.
        judge: compares what takes long.
        keep: bytes of bodies that are kept with a difference, 0 for none.
        spare: whether the loop has time.
        on_result: called with the version, whether a copy failed that the primary did not fail, its seconds,
            and whether its answer agreed (None: not compared).
    """

    def __init__(
        self,
        version: ModelVersion,
        how: Shadowing,
        judge: Judge,
        *,
        keep: int = 0,
        spare: Spare | None = None,
        on_result: Callable[[ModelVersion, bool, float, bool | None], None] = lambda *_: None,
    ) -> None:
        self.version = version
        self.how = how
        self.counts = Counts()
        self.differences: deque[Difference] = deque(maxlen=MOST_DIFFERENCES)
        self._judge = judge
        self._keep = keep
        self._spare = spare or Spare()
        self._on_result = on_result
        self._waiting: deque[Copy] = deque()
        self._nbytes = 0
        self._running = 0
        # Of those that run, the ones that were answered in parts.
        self._streamed: set[Request] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Copies that wait."""
        return len(self._waiting)

    # -- in

    def passes_over(self) -> bool:
        """Whether it takes no copy of a request that is about to be answered, which is counted.

        A busy loop has no time for more than one batch of copies at each look.
        """
        if self._spare.busy and len(self._waiting) >= self.version.pool.queue.batch_size:
            self.counts.outcomes["no_time"] += 1
            return True
        return False

    def take(self, request: Request, primary: ModelVersion, *, streamed: bool) -> None:
        """Takes a copy of a request that the primary has just answered."""
        if self._closed:
            self.count("ended")
        elif request.error is not None:
            self.count("unanswered")
        elif streamed:
            self.count("streamed")
        elif (primary.splits, primary.splits_tensors) != (self.version.splits, self.version.splits_tensors):
            self._refuse("the versions do not take the same rows")
        else:
            answers = cast("list[tuple[Answer, bytes]]", request.answers)
            nbytes = request.nbytes + sum(len(content) for _, content in answers)
            if len(self._waiting) >= MOST_WAITING or self._nbytes + nbytes > MOST_BYTES:
                self.count("queue_full")
                return
            self._waiting.append(Copy(request, monotonic() - request.arrived, nbytes))
            self._nbytes += nbytes
            self._send_in(SOON)

    def count(self, outcome: str, number: int = 1) -> None:
        """Counts copies that ended like this."""
        self.counts.outcomes[outcome] += number

    def _refuse(self, reason: str) -> None:
        if not self.counts.outcomes["refused"]:
            _log.warning("Shadow %s gets no copies: %s", self.version.version, reason)
        self.count("refused")

    # -- out

    def _send_in(self, seconds: float) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._send)

    def _send(self) -> None:
        """Sends what may go now."""
        self._timer = None
        pool = self.version.pool
        while self._waiting:
            ready = sum(worker.is_ready for worker in pool.workers)
            if not ready:
                self.drop("not_ready")
            elif self._running >= ready or pool.queue.requests or not self._spare.left():
                self._send_in(LATER)
                return
            else:
                self._submit(pool, self._gather(pool.queue.batch_size))

    def _gather(self, most: int) -> list[Copy]:
        """The next copies, with at most so many rows unless one alone has more."""
        copies: list[Copy] = []
        rows = 0
        while self._waiting:
            request = self._waiting[0].request
            rows += len(request.rows)
            if copies and (rows > most or request.key != copies[0].request.key):
                break
            copies.append(self._waiting.popleft())
            self._nbytes -= copies[-1].nbytes
        return copies

    def _submit(self, pool: Pool, copies: list[Copy]) -> None:
        rows: list[Row] = []
        bodies: list[bytes] = []
        for copy in copies:
            rows += copy.request.rows
            bodies += copy.request.bodies
        name, key = accept_request_id(), copies[0].request.key
        together = Request(name, rows, bodies, monotonic(), key=key, on_done=partial(self._ended, copies))
        together.on_part = self._note_part
        try:
            pool.submit(together)
        except ModelServerError as error:
            together.on_done = together.on_part = None
            for _ in copies:
                self._refuse(error.message)
            return
        self._running += 1

    def drop(self, outcome: str) -> None:
        """Drops what waits."""
        self.count(outcome, len(self._waiting))
        self._waiting.clear()
        self._nbytes = 0

    def close(self) -> None:
        """Takes and sends no more copies; those that were sent still end."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.drop("ended")

    # -- back

    def _note_part(self, together: Request, *_: Any) -> None:
        """A part of an answer, which is thrown away: whose it is is not known."""
        self._streamed.add(together)

    def _ended(self, copies: list[Copy], together: Request) -> None:
        """The copies were answered, or all of them failed."""
        self._running -= 1
        streamed = together in self._streamed
        self._streamed.discard(together)
        seconds = monotonic() - together.arrived
        place = 0
        for copy in copies:
            request = copy.request
            answers = together.answers[place : place + len(request.rows)]
            place += len(request.rows)
            if streamed:
                self.count("streamed")
                continue
            counts = self.counts
            counts.latencies.add(seconds)
            counts.primary_latencies.add(copy.seconds)
            counts.batch_sizes += together.batch_size
            counts.primary_batch_sizes += request.batch_size
            self._compare(copy, together, answers, seconds)
        if self._waiting:
            self._send_in(SOON)

    def _compare(
        self, copy: Copy, together: Request, answers: Sequence[tuple[Answer, bytes] | None], seconds: float
    ) -> None:
        """Compares now what is quickly compared, and leaves the rest to the judge."""
        if len(answers) == 1 and answers[0] == copy.request.answers[0]:
            # Most are like this one.
            self._agrees(seconds)
            return
        primary = cast("list[tuple[Answer, bytes]]", copy.request.answers)
        if together.error is not None:
            statuses = _status(primary), getattr(together.error, "status", 500)
            result = self._describe(copy, together, seconds, statuses, reason=str(together.error))
            self._differs(result, failed=True)
            return
        copied = cast("list[tuple[Answer, bytes]]", answers)
        statuses = _status(primary), _status(copied)
        if statuses[0] != statuses[1]:
            failed = statuses[1] >= 500 > statuses[0]
            result = self._describe(copy, together, seconds, statuses, copied, reason="statuses differ")
            self._differs(result, failed=failed)
            return
        pairs = [
            Pair(one, other, row.is_tensors)
            for row, (_, one), (_, other) in zip(copy.request.rows, primary, copied, strict=True)
            if one != other
        ]
        if not pairs:
            self._agrees(seconds)
        elif self.how.mode == "exact":
            reason = difference(pairs[0], "exact", 0)
            self._differs(self._describe(copy, together, seconds, statuses, copied, reason=reason))
        else:
            # Not the copies: their bodies would be kept while the answers wait to be compared.
            result = self._describe(copy, together, seconds, statuses, copied)
            self._judge.compare(pairs, self.how, partial(self._judged, result))

    def _judged(self, result: Difference, reason: str | None) -> None:
        seconds = result.seconds[1]
        if reason is None:
            self.count("not_compared")
            self._on_result(self.version, False, seconds, None)
        elif reason:
            self._differs(replace(result, reason=reason))
        else:
            self._agrees(seconds)

    def _agrees(self, seconds: float) -> None:
        self.count("agreed")
        self._on_result(self.version, False, seconds, True)

    def _describe(
        self,
        copy: Copy,
        together: Request,
        seconds: float,
        statuses: tuple[int, int],
        copied: Sequence[tuple[Answer, bytes]] = (),
        *,
        reason: str = "",
    ) -> Difference:
        request = copy.request
        bodies: tuple[bytes, bytes, bytes] | None = None
        if self._keep:
            primary = cast("list[tuple[Answer, bytes]]", request.answers)
            bodies = (
                _begin(request.bodies, self._keep),
                _begin([content for _, content in primary], self._keep),
                _begin([content for _, content in copied], self._keep),
            )
        batches = (request.batch_id, request.batch_size), (together.batch_id, together.batch_size)
        return Difference(request.id, reason, statuses, (copy.seconds, seconds), batches, bodies)

    def _differs(self, result: Difference, *, failed: bool = False) -> None:
        self.count("differed")
        self.differences.append(result)
        if failed:
            self.counts.failed += 1
        self._on_result(self.version, failed, result.seconds[1], False)


def _status(answers: Sequence[tuple[Answer, bytes]]) -> int:
    """The status of a request with these answers: the first failure's, or another than 200 of a row."""
    others = (answer.status for answer, _ in answers if answer.failed or answer.status != 200)
    return next(others, 200)


def _begin(pieces: Sequence[bytes], most: int) -> bytes:
    """The first bytes."""
    result = b""
    for piece in pieces:
        result += bytes(piece[: most - len(result)])
        if len(result) >= most:
            break
    return result
