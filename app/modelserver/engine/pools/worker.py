"""One worker and its supervision: start, load, serve, die, restart.

A worker outlives its processes: when one ends unexpectedly, it is restarted after a growing pause (reference
18.4), until it has been failing for ``max_retry_timeout`` seconds or the cause is permanent. A process has
three timeouts: for loading (startup timeout), for one batch (response timeout), and for silence while idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from modelserver.engine.batching.policies import Expectation
from modelserver.engine.pools.memory_kills import kills
from modelserver.engine.pools.output import quote, without_quote
from modelserver.engine.pools.process import launch, started
from modelserver.engine.pools.ranks import launch_ranks
from modelserver.engine.pools.spec import WorkerState, WorkerTimes, backoff
from modelserver.engine.telemetry.logs import MULTILINE
from modelserver.engine.wire.messages import (
    GPU_BROKEN,
    Annotations,
    Broken,
    Cancelled,
    Fitting,
    Loaded,
    LoadFailed,
    Parts,
    Ping,
    Pong,
    Predict,
    Proceed,
    Recalled,
    Result,
    Returned,
    Stop,
    ToServer,
)
from modelserver.errors import (
    GpuFailed,
    ModelServerError,
    OutOfMemory,
    ResponseTimeout,
    StartFailed,
    WorkerDied,
)

if TYPE_CHECKING:
    from modelserver.engine.batching.request import Batch, Request
    from modelserver.engine.pools.spec import Launcher, Process, WorkerOwner, WorkerSpec

_log = logging.getLogger("modelserver.workers")

# A worker may hold this many batches, and beside the running one no more than it answers in this many
# seconds. For very fast handlers that avoids most switches between processes. The only worker of a pool may
# always hold one in reserve.
MAX_IN_FLIGHT = 16
REST = 0.001

# Seconds for a worker to exit by itself after its connection was closed or it was asked to stop.
LEAVE_GRACE = 5.0

# Consecutive failed loads after which requests no longer wait for the worker.
MANY_LOAD_FAILURES = 3


class Worker:
    """A slot in a pool with one process at a time.

    ``first_load`` ends with the first attempt to load: with None, or :class:`StartFailed`. ``freed_at`` is
    set by the owner: when, by its clock, the last batch was answered. ``capacity`` batches may be in flight
    if no other worker could run them, otherwise ``shared_capacity``. ``round_trip`` are the seconds to its
    process and back, 0.0 on this machine, elsewhere with the ``expectation`` of what a batch takes there.
    ``foreseen``: the end of what it has can be expected, and what it gets in advance can be taken back.
    """

    # Slots, as attribute access is slower on instances with more than thirty.
    __slots__ = (
        "_began", "_begun", "_broken_in_a_row", "_concurrent", "_head_since", "_heard", "_killed_because",
        "_loaded", "_loop", "_owner", "_pipelined", "_process", "_recalled_below", "_recalls", "_remote",
        "_sequence", "_spec", "_stopping", "_task", "_times", "_verdict", "_watchdog", "annotations",
        "capacity", "cost", "created", "device", "expectation", "failing_since", "failure", "first_load",
        "foreseen", "freed_at", "gpu_id", "id", "in_flight", "label", "last_end", "load_failures",
        "most_rows", "next_try", "pid", "precision", "round_trip", "served", "shared_capacity", "splits",
        "state", "warnings",
    )  # fmt: skip

    def __init__(
        self, worker_id: int, label: str, spec: WorkerSpec, times: WorkerTimes, owner: WorkerOwner[Worker]
    ) -> None:
        self.id = worker_id
        self.label = label
        self.gpu_id = spec.load.gpu_id
        self.device = ""  # what the loaded model uses, as its handler says; empty if it does not say
        self.state = WorkerState.LOADING
        self.pid = -1
        self.created = time.time()
        self.failure = ""
        # When, and why, the last process ended that had loaded, unless as requested.
        self.last_end: tuple[float, str] | None = None
        self.failing_since: float | None = None
        self.load_failures = 0
        self.next_try = 0.0  # time of it, while this waits for it
        self.capacity = self.shared_capacity = 1
        self.freed_at = self.round_trip = 0.0
        self.cost, self.expectation = REST, Expectation()
        self.foreseen = self._pipelined = self._recalls = self._remote = False
        self._recalled_below = 0  # up to where batches are being taken back
        self.splits = False
        self.warnings: tuple[str, ...] = ()
        self.precision: dict[str, str] = {}
        self.annotations: Annotations | None = None
        self.in_flight: deque[Batch] = deque()
        # Requests that the current process has answered, and rows that fit into its GPU's memory; 0: any.
        self.served = self.most_rows = 0
        self._spec = spec
        self._times = times
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.first_load: asyncio.Future[None] = self._loop.create_future()
        # A failure counts as retrieved even if nobody waits for it: the log has it.
        self.first_load.add_done_callback(lambda load: load.cancelled() or load.exception())
        self._process: Process | None = None
        self._loaded: asyncio.Future[Loaded | LoadFailed] | None = None
        self._sequence = 0
        self._head_since = 0.0
        self._heard = 0.0
        self._began = 0.0
        self._watchdog: asyncio.TimerHandle | None = None
        self._verdict: ModelServerError | None = None
        self._begun: int | None = None
        self._killed_because = ""
        self._broken_in_a_row = 0  # processes whose GPU failed before they had answered anything
        self._stopping = False
        self._concurrent = spec.concurrency > 0
        self._task = self._loop.create_task(self._supervise(), name=f"worker {label}")

    @property
    def process(self) -> Process | None:
        """Its process; None between the end of one and the start of the next."""
        return self._process

    @property
    def is_on_cpu(self) -> bool:
        """Whether its loaded model is on the CPU, as far as its handler says."""
        return self.device == "cpu"

    @property
    def gpu(self) -> int | None:
        """The GPU of its model on this machine; None: the CPU. Until it has loaded, the one it is to get."""
        return None if self.is_on_cpu else self.gpu_id

    @property
    def may_serve(self) -> bool:
        """Whether requests may wait for it: it serves, or is loading and has not failed too often.

        On another machine, only once it has a process there.
        """
        if self._spec.launcher is not None and self._process is None:
            return False  # there may be no machine for it for hours
        return self.state is not WorkerState.FAILED and self.load_failures < MANY_LOAD_FAILURES

    @property
    def idle(self) -> bool:
        """Whether a batch sent now would run immediately."""
        return self.state is WorkerState.READY and not self.in_flight

    @property
    def has_room(self) -> bool:
        """Whether it can accept a batch now, if only to prepare it."""
        return self.state is WorkerState.READY and len(self.in_flight) < self.capacity

    @property
    def healthy(self) -> bool:
        """False once it has been failing for longer than its retry window (reference 6.2)."""
        if self.state is WorkerState.FAILED:
            return False
        since = self.failing_since
        return since is None or self._loop.time() - since <= self._times.max_retry

    def send(self, batch: Batch) -> None:
        """Sends the worker a batch; it must have room."""
        assert self._process is not None  # noqa: S101 - READY implies a process
        rows, bodies = batch.contents()
        if not self.in_flight:
            self._head_since = self._loop.time()
        number, trace = self._sequence, batch.trace
        self._process.send(Predict(number, rows) if trace is None else trace.message(number, rows), bodies)
        batch.sequence = self._sequence
        if self._concurrent:
            batch.heard_at = self._loop.time()
        self.in_flight.append(batch)
        self._sequence += 1

    def take_back(self) -> list[Batch]:
        """Takes back batches that have not begun; until its next answer, it gets none in advance.

        Those on another machine come back later, by the owner's ``worker_returned``.
        """
        if self._process is None or not self._recalls or self._recalled_below or not self.has_reserve:
            return []
        try:
            begun = self._process.recall(self._sequence)
        except OSError:
            return []
        self.shared_capacity, self.foreseen = 1, False
        if begun is None:
            self._recalled_below = self._sequence
            return []
        return self._taken_back(begun, self._sequence)

    def _taken_back(self, begun: int, below: int) -> list[Batch]:
        taken = [batch for batch in self.in_flight if begun <= batch.sequence < below]
        for batch in taken:
            self.in_flight.remove(batch)
        return taken

    @property
    def has_reserve(self) -> bool:
        """Whether batches wait here for the end of another one."""
        return len(self.in_flight) > 1 and not self._concurrent

    def proceed(self, batch: Batch) -> None:
        """Lets the process send further parts of the batch; its timeout restarts."""
        if self._process is not None and batch in self.in_flight:
            self._head_since = batch.heard_at = self._loop.time()
            self._process.send(Proceed(batch.sequence))

    def cancel(self, request: Request) -> None:
        """Tells the process that a request's client has disconnected."""
        if self._process is None:
            return
        for batch in self.in_flight:
            if rows := batch.rows_of(request):
                self._process.send(Cancelled(batch.sequence, rows))

    async def stop(self, grace: float = LEAVE_GRACE) -> None:
        """Gives the batches in flight ``grace`` seconds to finish, and ends the process. Idempotent."""
        self._stopping = True
        if self.state is WorkerState.LOADING:
            # It reads no messages while loading, and has nothing to lose.
            grace = 0.0
        if self.state is not WorkerState.FAILED:
            self.state = WorkerState.UNLOADING
        if self._process is None:
            self._task.cancel()
        else:
            self._process.send(Stop())
        done, _ = await asyncio.wait({self._task}, timeout=grace)
        if not done:
            if self._process is not None:
                self._process.kill()
            await asyncio.wait({self._task}, timeout=LEAVE_GRACE)
            self._task.cancel()
        if not self.first_load.done():
            self.first_load.set_exception(StartFailed("The worker was stopped before it had loaded."))

    def kill(self, reason: str) -> None:
        """Kills the current process for a reason shown by describe; supervision continues."""
        self._killed_because = reason
        if self.state is WorkerState.READY:
            # Further batches would be lost.
            self.state = WorkerState.LOADING
        if self._process is not None:
            self._process.kill()

    # -- supervision

    async def _supervise(self) -> None:
        try:
            await self._run_processes()
        except Exception as error:  # noqa: BLE001 - callers waiting for the worker must learn of it
            _log.exception("Worker %s is given up", self.label)
            self.state = WorkerState.FAILED
            self._load_failed(f"The worker cannot be run: {error}")
            self._lose(WorkerDied())

    async def _run_processes(self) -> None:
        pauses, waited = backoff(), False
        while not self._stopping:
            self.state = WorkerState.LOADING
            began = self._loop.time()
            permanent = await self._live()
            now, placed, self.pid = self._loop.time(), self.pid >= 0, -1
            if self._stopping:
                return
            if not self.load_failures:
                self.last_end = time.time(), without_quote(self.failure)
            if self.failing_since is None or (waited and placed):
                pauses, self.failing_since = backoff(), now
            # Without a machine the model has not failed: there may be one in hours.
            waited = self._spec.launcher is not None and not placed
            if permanent or (not waited and now - self.failing_since >= self._times.max_retry):
                self.state = WorkerState.FAILED
                _log.error("Worker %s is given up: %s", self.label, without_quote(self.failure))
                # Nothing is in flight, but the owner must learn that this worker will not come back.
                self._lose(WorkerDied())
                return
            broken_once = isinstance(self._verdict, GpuFailed) and self._broken_in_a_row == 1
            at_once = broken_once or isinstance(self._verdict, ResponseTimeout)
            pause = 0.0 if at_once else next(pauses)
            pause = min(pause, max(1.0, pause - (now - began))) if waited else pause
            self.state = WorkerState.LOADING
            _log.info("Retry worker: %d in %g seconds.", self.id, pause)
            self.next_try = time.time() + pause
            await asyncio.sleep(pause)
            self.next_try = 0.0

    async def _live(self) -> bool:
        """One process from start to end. Returns whether its failure is permanent."""
        self._loaded = self._loop.create_future()
        self._verdict = self._begun = None
        self._killed_because, self.device, self.foreseen = "", "", False
        self.served = self.most_rows = self._recalled_below = 0
        kills.look()
        async with contextlib.AsyncExitStack() as place:
            await place.enter_async_context(self._spec.gate.place(self._spec.need))
            process = await self._launch()
            if process is None:
                return False
            self._process = process
            self._recalls = process.recalls
            self._remote = process.node is not None
            # It may have changed during the start.
            process.allow(self._spec.frame_limit)
            self.pid = process.pid
            self._began = self._loop.time()
            _log.info("Worker %s started as process %d and loads its model.", self.label, self.pid)
            early = self._loaded.result() if self._loaded.done() else None
            ended = self._loop.create_task(process.wait())
            try:
                if isinstance(early, Loaded):
                    # The message arrived before this task could continue.
                    self._on_loaded(early)
                permanent = await self._wait_loaded(ended)
                # The next may load.
                await place.aclose()
                how = await ended
            except BaseException:
                process.kill()
                await ended
                raise
            finally:
                self._process = None
                self._disarm()
        self._begun = process.begun
        if self._stopping:
            _log.info("Worker %s %s, as requested.", self.label, how)
            self._lose(WorkerDied())
            return False
        was_killed = "SIGKILL" in how and not self._killed_because
        for_memory = process.for_memory if was_killed else False
        if for_memory is None:
            how += " (perhaps out of memory)"
        if self._loaded.done() and isinstance(self._loaded.result(), Loaded):
            self.failure = self._killed_because or f"The worker {how}.{quote(process.last_output())}"
            _log.warning("Worker %s %s. Worker disconnected.", self.label, how)
        if for_memory:
            self.failure += " Its memory limit was reached."
        self._lose(self._verdict or (OutOfMemory() if for_memory else WorkerDied()))
        return permanent

    async def _launch(self) -> Process | None:
        start: Launcher = self._spec.launcher or (launch if self._spec.ranks is None else launch_ranks)
        launching = self._loop.create_task(start(self._spec, self.label, self._on_message, self._on_lost))
        try:
            return await started(launching, is_quick=self._spec.launcher is None)
        except StartFailed as failed:
            self._load_failed(failed.message, failed.status)
        except Exception as error:  # noqa: BLE001 - no user code has run: a retry may succeed
            if not isinstance(error, OSError):
                _log.exception("Worker %s: its process could not be started", self.label)
            self._load_failed(f"The worker process could not be started: {error}")
        return None

    async def _wait_loaded(self, ended: asyncio.Task[str]) -> bool:
        """Waits until the model has loaded or failed to; returns whether a failure is permanent."""
        assert self._loaded is not None  # noqa: S101 - set by _live
        assert self._process is not None  # noqa: S101 - set by _live
        process = self._process
        outcomes: set[asyncio.Future[Any]] = {self._loaded, ended}
        await asyncio.wait(outcomes, timeout=self._times.startup, return_when=asyncio.FIRST_COMPLETED)
        if self._loaded.done():
            outcome = self._loaded.result()
            if isinstance(outcome, Loaded):
                self._watch()
                return False
            # The process exits by itself: its last output belongs in the error message.
            await asyncio.wait({ended}, timeout=LEAVE_GRACE)
            process.kill()
            environment = self._spec.extra_environment
            if outcome.variables.items() - environment.items():
                _log.warning("Worker %s is started again: %s", self.label, outcome.message)
                self._spec = replace(self._spec, extra_environment={**environment, **outcome.variables})
                return False
            self._load_failed(f"{outcome.message}{quote(process.last_output())}", outcome.status)
            return outcome.permanent
        if ended.done():
            self._load_failed(f"The worker {ended.result()} while loading.{quote(process.last_output())}")
            return False
        process.kill()
        self._load_failed(
            f"The model was not loaded within startup_timeout={self._times.startup:g} s."
            f"{quote(process.last_output())}"
        )
        return False

    def _load_failed(self, reason: str, status: int = 500) -> None:
        self.failure = reason
        self.load_failures += 1
        if self._stopping:
            _log.info("Worker %s was stopped while loading.", self.label)
        else:
            # With the last output, as not everybody reads the models' log; the console has just shown that.
            text = f"Worker {self.label} could not load its model: "
            extra = {**MULTILINE, "brief": text + without_quote(reason)}
            _log.error("%s%s", text, reason, extra=extra)
        if not self.first_load.done():
            self.first_load.set_exception(StartFailed(reason, status))

    def _lose(self, error: ModelServerError) -> None:
        batches = list(self.in_flight)
        self.in_flight.clear()
        begun = self._count_begun(batches)
        running = batches[0] if begun == 1 and not self._concurrent else None
        if running is None:
            for batch in batches[:begun]:
                self._owner.worker_lost(self, batch, [], error)
        self._owner.worker_lost(self, running, batches[begun:], error)

    def _count_begun(self, batches: list[Batch]) -> int:
        """How many of these, from the oldest, must not be run again."""
        if self._begun is not None:
            return sum(batch.sequence < self._begun for batch in batches)
        # The process is alive, or did not report it: out of reach, it may have begun all.
        if self._remote and self._spec.idempotent and self._verdict is None:
            return 0
        all_begun = self._concurrent or (self._remote and not self._spec.idempotent)
        return len(batches) if all_begun else min(1, len(batches))

    # -- messages

    def _on_message(self, message: ToServer, tail: memoryview) -> None:
        self._heard = self._loop.time()
        if isinstance(message, Result):
            if not self.in_flight:
                return
            if self.in_flight[0].sequence == message.sequence:
                batch = self.in_flight.popleft()
            elif (found := self._out_of_turn(message.sequence)) is not None:
                batch = found
            else:
                return
            self._head_since = self._heard
            self.served += len(batch.parcels)
            if self._remote:
                self._measure(batch, message.handler_time)
            self._learn(message.handler_time)
            self._owner.worker_answered(self, batch, message, tail)
        elif isinstance(message, Parts):
            self._pass_on(message, tail)
        elif isinstance(message, Returned):
            self._on_returned(message)
        elif isinstance(message, Recalled):
            self._on_recalled(message)
        elif isinstance(message, (Loaded, LoadFailed)):
            self._settle(message)
            if self._process is not None and isinstance(message, Loaded):
                self._on_loaded(message)
        else:
            self._on_condition(message)

    def _on_loaded(self, message: Loaded) -> None:
        self.capacity = self._spec.concurrency or 2
        self.shared_capacity = self._spec.concurrency or 1
        self._pipelined = message.pipelined
        self.splits = message.splits
        self.warnings = message.warnings
        self.precision = message.precision
        self.device = message.device
        self.annotations = message.annotations
        self.failing_since = None
        self.load_failures = 0
        self.failure = ""
        self._measure()
        _log.info("Worker %s is ready, %.1f s after its start.", self.label, self._heard - self._began)
        if not self._stopping:
            self.state = WorkerState.READY
        if not self.first_load.done():
            self.first_load.set_result(None)
        self._owner.worker_ready(self, message.seconds)

    def _on_condition(self, message: Broken | Fitting | Pong) -> None:
        if isinstance(message, Broken):
            self._on_broken(message.reason)
        elif isinstance(message, Fitting):
            self._on_fitting(message.rows)

    def _on_broken(self, reason: str) -> None:
        """The process answers what it was running, and ends: another one takes its place."""
        _log.error("Worker %s: its GPU cannot be used any more: %s", self.label, reason, extra=MULTILINE)
        self._broken_in_a_row = 1 if self.served else self._broken_in_a_row + 1
        self._killed_because = f"Its GPU could not be used any more: {reason}"
        self._verdict = GpuFailed(GPU_BROKEN)
        self._verdict.cause = reason
        if self.state is WorkerState.READY:
            # Further batches would come back.
            self.state = WorkerState.LOADING
        self._owner.worker_broken(self)
        for batch in self.take_back():
            self._owner.worker_returned(self, batch)

    def _on_fitting(self, rows: int) -> None:
        self.most_rows = rows
        if rows:
            _log.warning(
                "Worker %s: more than %d rows exhaust its GPU's memory, batches are split", self.label, rows
            )
        else:
            _log.info("Worker %s: whole batches fit into its GPU's memory again", self.label)

    def _on_returned(self, message: Returned) -> None:
        batch = self._find(message.sequence)
        if batch is not None:
            self.in_flight.remove(batch)
            self._head_since = self._heard
            self._owner.worker_returned(self, batch)

    def _on_recalled(self, message: Recalled) -> None:
        if message.below == self._recalled_below:
            self._recalled_below = 0
        for batch in self._taken_back(message.started, message.below):
            self._owner.worker_returned(self, batch)

    def _measure(self, batch: Batch | None = None, seconds: float = 0.0) -> None:
        """Notes how far away the process is now, and what a batch took there."""
        self.round_trip = 0.0 if self._process is None else self._process.round_trip
        if batch is not None and not batch.at_once:
            self.expectation.add(batch.size, seconds)

    def _learn(self, seconds: float) -> None:
        """Tracks the cost of a batch; it rises at once, so a slower handler gets no batches in advance."""
        if self._concurrent:
            return
        self.cost = max(seconds, 0.9 * self.cost + 0.1 * seconds)
        quick = min(MAX_IN_FLIGHT, int(REST / max(self.cost, 1e-6)))
        self.capacity = max(2, quick)
        self.foreseen = self._recalls and not self._recalled_below
        self.shared_capacity = max(2 if self._pipelined else 1, quick) if self.foreseen else 1

    def _out_of_turn(self, sequence: int) -> Batch | None:
        """A batch answered before others; None if that is not allowed."""
        batch = self._find(sequence)
        if not self._concurrent:
            # A process that answers a batch other than the running one cannot be trusted.
            self.kill(f"It sent an unexpected answer to batch {sequence}.")
            return None
        # If there is no batch, it has timed out before.
        if batch is not None:
            self.in_flight.remove(batch)
        return batch

    def _pass_on(self, parts: Parts, tail: memoryview) -> None:
        """Passes on parts, which restart the batch's timeout; those of a timed out batch are dropped."""
        batch = self._find(parts.sequence)
        if batch is not None:
            self._head_since = batch.heard_at = self._heard
            self._owner.worker_streamed(self, batch, parts, tail)

    def _find(self, sequence: int) -> Batch | None:
        return next((batch for batch in self.in_flight if batch.sequence == sequence), None)

    def _settle(self, outcome: Loaded | LoadFailed) -> None:
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(outcome)

    def _on_lost(self, reason: str | None) -> None:
        if self.state is WorkerState.READY:
            self.state = WorkerState.LOADING
        if reason is not None:
            _log.error("Worker %s sent an invalid message: %s", self.label, reason)
        if self._process is not None:
            # Usually it is exiting: giving it a moment preserves its exit status.
            self._loop.call_later(2.0, self._process.kill)

    def reconfigure(self, spec: WorkerSpec, times: WorkerTimes) -> None:
        """Applies batch size, frame limit and timeouts; the handler sees the batch size after a restart."""
        load = msgspec.structs.replace(self._spec.load, batch_size=spec.load.batch_size)
        self._spec = replace(self._spec, load=load, frame_limit=spec.frame_limit)
        self._times = times
        if self._process is not None:
            self._process.allow(spec.frame_limit)
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watch()

    # -- timeouts

    def _watch(self) -> None:
        """Checks the timeouts of a serving process."""
        now = self._loop.time()
        response, silence = self._times.response, self._times.silence
        if self._concurrent and self.in_flight:
            pause = self._watch_each(now)
            if pause is None:
                return
        elif self.in_flight:
            due = self._head_since + response
            if now >= due:
                self._overdue()
                return
            pause = min(due - now, silence / 3)
        else:
            if now - max(self._heard, self._head_since) >= silence:
                self._silent()
                return
            kills.look()
            if self._process is not None:
                self._process.send(Ping())
            pause = min(silence / 3, response)
        self._watchdog = self._loop.call_later(pause, self._watch)

    def _watch_each(self, now: float) -> float | None:
        """Checks concurrent batches, each with its own timeout; returns seconds until the next check.

        An overdue batch fails alone while the process responds; otherwise None.
        """
        response = self._times.response
        if now - max(self._heard, self._head_since) >= response:
            self._overdue()
            return None
        for batch in [batch for batch in self.in_flight if now - batch.heard_at >= response]:
            self._give_up(batch)
        if self._process is not None:
            self._process.send(Ping())
        first = min((batch.heard_at for batch in self.in_flight), default=now)
        return min(max(first + response - now, 0.01), response / 3, self._times.silence / 3)

    def _give_up(self, batch: Batch) -> None:
        limit = self._times.response
        _log.error("Worker %s: a request had no answer within response_timeout=%g s", self.label, limit)
        assert self._process is not None  # noqa: S101 - it has a batch
        self._process.send(Cancelled(batch.sequence, list(range(batch.size))))
        self.in_flight.remove(batch)
        self._owner.worker_lost(self, batch, [], ResponseTimeout())

    def _disarm(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def _overdue(self) -> None:
        _log.error("Worker %s did not answer within response_timeout=%g s", self.label, self._times.response)
        self._verdict = ResponseTimeout()
        self.state = WorkerState.LOADING
        # Clients first, as ending the process may take a moment.
        self._lose(self._verdict)
        self.kill(f"No answer within response_timeout={self._times.response:g} s.")

    def _silent(self) -> None:
        _log.error("Worker %s was silent for %g s while idle", self.label, self._times.silence)
        self.kill(f"No sign of life within silence_timeout={self._times.silence:g} s.")
