"""One worker and its supervision: start, load, serve, die, restart.

A worker outlives its processes: when one ends unexpectedly, it is restarted after a growing pause (reference
18.4), until it has been failing for ``max_retry_timeout`` seconds or the cause is permanent. A process has
three timeouts: for loading (startup timeout), for one batch (response timeout), and for silence while idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from modelserver.engine.pools.flights import Flights
from modelserver.engine.pools.memory_kills import kills
from modelserver.engine.pools.output import MAX_LINES, quote, was_out_of_memory, without_quote
from modelserver.engine.pools.process import started
from modelserver.engine.pools.ranks import launch_worker
from modelserver.engine.pools.spec import (
    Node,
    Process,
    Receiver,
    WorkerOwner,
    WorkerSpec,
    WorkerState,
    WorkerTimes,
    backoff,
)
from modelserver.engine.telemetry.logs import MULTILINE
from modelserver.engine.wire.messages import (
    GPU_BROKEN,
    Broken,
    Fitting,
    Loaded,
    LoadFailed,
    Parts,
    Ping,
    Pong,
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

_log = logging.getLogger("modelserver.workers")

# Seconds for a worker to exit by itself after its connection was closed or it was asked to stop.
LEAVE_GRACE = 5.0

# Consecutive failed loads after which requests no longer wait for the worker.
MANY_LOAD_FAILURES = 3

# Seconds that a call may take to end after it was given up.
CALL_GRACE = 1.0


@dataclass(slots=True)
class Failures:
    """What has gone wrong with the processes of a worker.

    ``reason``: of the last failure, empty since the model has loaded again. ``since``: the time of the first
    one. ``loads``: consecutive failed loads. ``last_end``: when, and why, the last process ended that had
    loaded, unless as requested. ``next_try``: the time of the next start, 0.0 unless one is waited for.
    ``broken_in_a_row``: processes whose GPU failed before they had answered anything.
    """

    reason: str = ""
    since: float | None = None
    loads: int = 0
    last_end: tuple[float, str] | None = None
    next_try: float = 0.0
    broken_in_a_row: int = 0


@dataclass(slots=True)
class _Run:
    """One process, from its start to its end; times of the loop's clock.

    ``verdict``: the error for its batches, if the server ends it. ``killed_because``: why, for describe.
    ``batches_started``: how many batches it had started, if that is known after its end. ``overdue``: when
    the batches were given up that it has not answered since.
    """

    outcome: asyncio.Future[Loaded | LoadFailed]
    started_at: float = 0.0
    verdict: ModelServerError | None = None
    killed_because: str = ""
    batches_started: int | None = None
    overdue: dict[int, float] = field(default_factory=dict)


class Worker:
    """A slot in a pool with one process at a time, which has the batches of ``flights``.

    ``first_load`` ends with the first attempt to load: with None, or :class:`StartFailed`. ``model`` is what
    the process reported of its loaded model, ``device`` where that is: empty if the handler does not report
    it. ``most_rows`` fit into its GPU's memory, 0: any number.
    """

    def __init__(
        self, worker_id: int, label: str, spec: WorkerSpec, times: WorkerTimes, owner: WorkerOwner[Worker]
    ) -> None:
        self.id = worker_id
        self.label = label
        self.gpu_id = spec.load.gpu_id
        self.created = time.time()
        self.state = WorkerState.LOADING
        self.pid = -1
        self.device = ""
        self.model = Loaded()
        self.most_rows = 0
        self.flights = Flights(spec.concurrency)
        self.failures = Failures()
        self._spec = spec
        self._times = times
        self.owner = owner
        self._loop = asyncio.get_running_loop()
        self.first_load: asyncio.Future[None] = self._loop.create_future()
        # A failure counts as retrieved even if nobody waits for it: the log has it.
        self.first_load.add_done_callback(lambda load: load.cancelled() or load.exception())
        self._run = _Run(self._loop.create_future())
        self._watchdog: asyncio.TimerHandle | None = None
        self._stopping = False
        self._task = self._loop.create_task(self._supervise(), name=f"worker {label}")

    @property
    def process(self) -> Process | None:
        """Its process; None between the end of one and the start of the next."""
        return self.flights.process

    @property
    def node(self) -> Node | None:
        """The other machine that it runs on, if any."""
        return None if self.process is None else self.process.node

    @property
    def failure(self) -> str:
        """Why its process or the loading of the model has failed, or an empty string."""
        return self.failures.reason

    @property
    def is_on_cpu(self) -> bool:
        """Whether its loaded model is on the CPU, as far as its handler reports."""
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
        if self._spec.launcher is not None and self.flights.process is None:
            return False  # there may be no machine for it for hours
        return self.state is not WorkerState.FAILED and self.failures.loads < MANY_LOAD_FAILURES

    @property
    def is_ready(self) -> bool:
        """Whether it has loaded its model, and serves."""
        return self.state is WorkerState.READY

    @property
    def is_loading(self) -> bool:
        """Whether it waits for a process, or for that to load the model."""
        return self.state is WorkerState.LOADING

    @property
    def idle(self) -> bool:
        """Whether a batch sent now would run immediately."""
        return self.state is WorkerState.READY and not self.flights.in_flight

    @property
    def has_room(self) -> bool:
        """Whether it can accept a batch now, if only to prepare it."""
        return self.state is WorkerState.READY and len(self.flights.in_flight) < self.flights.capacity

    @property
    def healthy(self) -> bool:
        """False once it has been failing for longer than its retry window (reference 6.2)."""
        if self.state is WorkerState.FAILED:
            return False
        since = self.failures.since
        return since is None or self._loop.time() - since <= self._times.max_retry

    async def stop(self, grace: float = LEAVE_GRACE) -> None:
        """Gives the batches in flight ``grace`` seconds to finish, and ends the process. Idempotent."""
        self._stopping = True
        if self.state is WorkerState.LOADING:
            # It reads no messages while loading, and has nothing to lose.
            grace = 0.0
        if self.state is not WorkerState.FAILED:
            self.state = WorkerState.UNLOADING
        if self.flights.process is None:
            self._task.cancel()
        else:
            self.flights.process.send(Stop())
        done, _ = await asyncio.wait({self._task}, timeout=grace)
        if not done:
            if self.flights.process is not None:
                self.flights.process.kill()
            await asyncio.wait({self._task}, timeout=LEAVE_GRACE)
            self._task.cancel()
        if not self.first_load.done():
            self.first_load.set_exception(StartFailed("The worker was stopped before it had loaded."))

    def kill(self, reason: str) -> None:
        """Kills the current process for a reason shown by describe; supervision continues."""
        self._run.killed_because = reason
        if self.state is WorkerState.READY:
            # Further batches would be lost.
            self.state = WorkerState.LOADING
        if self.flights.process is not None:
            self.flights.process.kill()

    # -- supervision

    async def _supervise(self) -> None:
        try:
            # The task would keep this error, whose frames refer to the worker: a cycle.
            with contextlib.suppress(asyncio.CancelledError):
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
            if not self.failures.loads:
                self.failures.last_end = time.time(), without_quote(self.failures.reason)
            if self.failures.since is None or (waited and placed):
                pauses, self.failures.since = backoff(), now
            # Without a machine the model has not failed: there may be one in hours.
            waited = self._spec.launcher is not None and not placed
            if permanent or (not waited and now - self.failures.since >= self._times.max_retry):
                self.state = WorkerState.FAILED
                _log.error("Worker %s is given up: %s", self.label, without_quote(self.failures.reason))
                # Nothing is in flight, but the owner must learn that this worker will not come back.
                self._lose(WorkerDied())
                return
            broken_once = isinstance(self._run.verdict, GpuFailed) and self.failures.broken_in_a_row == 1
            at_once = broken_once or isinstance(self._run.verdict, ResponseTimeout)
            pause = 0.0 if at_once else next(pauses)
            pause = min(pause, max(1.0, pause - (now - began))) if waited else pause
            self.state = WorkerState.LOADING
            _log.info("Retry worker: %d in %g seconds.", self.id, pause, extra={"label": self.label})
            self.failures.next_try = time.time() + pause
            await asyncio.sleep(pause)
            self.failures.next_try = 0.0

    async def _live(self) -> bool:
        """One process from start to end. Returns whether its failure is permanent."""
        self._run = _Run(self._loop.create_future())
        self.device, self.most_rows = "", 0
        kills.look()
        worth = math.inf if self._spec.worth is None else self._spec.worth()
        async with contextlib.AsyncExitStack() as place:
            await place.enter_async_context(self._spec.gate.place(self._spec.need, worth))
            process = await self._launch()
            if process is None:
                return False
            self.flights.started(process)
            # It may have changed during the start.
            process.allow(self._spec.frame_limit)
            self.pid = process.pid
            self._run.started_at = self._loop.time()
            _log.info("Worker %s started as process %d and loads its model.", self.label, self.pid)
            early = self._run.outcome.result() if self._run.outcome.done() else None
            ended = self._loop.create_task(process.wait())
            try:
                if isinstance(early, Loaded):
                    # The message arrived before this task could continue.
                    self._on_loaded(early)
                permanent = await self._wait_loaded(process, ended)
                # The next may load.
                await place.aclose()
                how = await ended
            except BaseException:
                process.kill()
                await ended
                raise
            finally:
                self.flights.ended()
                if self._watchdog is not None:
                    self._watchdog.cancel()
                    self._watchdog = None
        self._end_run(process, how)
        return permanent

    def _end_run(self, process: Process, how: str) -> None:
        """The process has ended: notes why, and gives up its batches."""
        run = self._run
        run.batches_started = process.batches_started
        if self._stopping:
            _log.info("Worker %s %s, as requested.", self.label, how)
            self._lose(WorkerDied())
            return
        for_memory = "SIGKILL" in how and not run.killed_because and process.for_memory
        if for_memory is None:
            how += " (perhaps out of memory)"
        if run.killed_because and was_out_of_memory(process.last_output(MAX_LINES)):
            run.killed_because += " Its memory was exhausted."
            run.verdict = run.verdict or OutOfMemory()
        error = run.verdict or (OutOfMemory() if for_memory else WorkerDied())
        if run.outcome.done() and isinstance(run.outcome.result(), Loaded):
            self.owner.worker_failed(self, error)
            self.failures.reason = run.killed_because or f"The worker {how}.{quote(process.last_output())}"
            _log.warning("Worker %s %s. Worker disconnected.", self.label, how)
        if for_memory:
            self.failures.reason += " Its memory limit was reached."
        self._lose(error)

    async def _launch(self) -> Process | None:
        start = launch_worker(self._spec, self.label, Receiver(self._on_message, self._on_lost))
        try:
            return await started(self._loop.create_task(start), is_quick=self._spec.launcher is None)
        except StartFailed as failed:
            self._load_failed(failed.message, failed.status)
        except Exception as error:  # noqa: BLE001 - no user code has run: a retry may succeed
            if not isinstance(error, OSError):
                _log.exception("Worker %s: its process could not be started", self.label)
            self._load_failed(f"The worker process could not be started: {error}")
        return None

    async def _wait_loaded(self, process: Process, ended: asyncio.Task[str]) -> bool:
        """Waits until the model has loaded or failed to; returns whether a failure is permanent."""
        loaded = self._run.outcome
        outcomes: set[asyncio.Future[Any]] = {loaded, ended}
        await asyncio.wait(outcomes, timeout=self._times.startup, return_when=asyncio.FIRST_COMPLETED)
        if loaded.done():
            outcome = loaded.result()
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
        # The last lines may be those of an engine of which the worker only knows that it has ended.
        status = 507 if status == 500 and was_out_of_memory(reason) else status
        self.failures.reason = reason
        self.failures.loads += 1
        if self._stopping:
            _log.info("Worker %s was stopped while loading.", self.label)
        else:
            # With the last output, as not everybody reads the models' log; the console has just shown that.
            brief = f"Worker {self.label} could not load its model: {without_quote(reason)}"
            extra = {**MULTILINE, "brief": brief, "attempt": self.failures.loads}
            _log.error("Worker %s could not load its model: %s", self.label, reason, extra=extra)
        if not self.first_load.done():
            self.first_load.set_exception(StartFailed(reason, status))

    def _lose(self, error: ModelServerError) -> None:
        running, waiting = self.flights.lost(
            self._run.batches_started, idempotent=self._spec.idempotent, failed=self._run.verdict is not None
        )
        last = running.pop() if len(running) == 1 and not self.flights.concurrency else None
        for batch in running:
            self.owner.worker_lost(self, batch, [], error)
        self.owner.worker_lost(self, last, waiting, error)

    # -- messages

    def _on_message(self, message: ToServer, tail: memoryview) -> None:
        flights = self.flights
        flights.active_at = self._loop.time()
        if isinstance(message, Result):
            if (batch := flights.answered(message)) is not None:
                self.owner.worker_answered(self, batch, message, tail)
            elif flights.concurrency:
                self._run.overdue.pop(message.sequence, None)
            elif flights.in_flight:
                # A process that answers a batch other than the running one cannot be trusted.
                self.kill(f"It sent an unexpected answer to batch {message.sequence}.")
        elif isinstance(message, Parts):
            self.owner.worker_streamed(self, message, tail)
        elif isinstance(message, Returned):
            for batch in flights.returned(message.sequence):
                self.owner.worker_returned(self, batch)
        elif isinstance(message, Recalled):
            for batch in flights.recalled(message):
                self.owner.worker_returned(self, batch)
        else:
            self._on_condition(message)

    def _on_condition(self, message: Loaded | LoadFailed | Broken | Fitting | Pong) -> None:
        if isinstance(message, (Loaded, LoadFailed)):
            if not self._run.outcome.done():
                self._run.outcome.set_result(message)
            if self.flights.process is not None and isinstance(message, Loaded):
                self._on_loaded(message)
        elif isinstance(message, Broken):
            if message.of_gpu:
                self._on_broken(message.reason)
            else:
                self._run.killed_because = message.reason
        elif isinstance(message, Fitting):
            self._on_fitting(message.rows)

    def _on_loaded(self, message: Loaded) -> None:
        self.flights.loaded(message)
        self.model = message
        self.device = message.device
        self.failures.since = None
        self.failures.loads = 0
        self.failures.reason = ""
        seconds = self.flights.active_at - self._run.started_at
        _log.info("Worker %s is ready, %.1f s after its start.", self.label, seconds)
        if not self._stopping:
            self.state = WorkerState.READY
        if not self.first_load.done():
            self.first_load.set_result(None)
        self.owner.worker_ready(self, message.seconds)

    def _on_broken(self, reason: str) -> None:
        """The process answers what it was running, and ends: another one takes its place."""
        _log.error("Worker %s: its GPU cannot be used any more: %s", self.label, reason, extra=MULTILINE)
        self.failures.broken_in_a_row = 1 if self.flights.served else self.failures.broken_in_a_row + 1
        self._run.killed_because = f"Its GPU could not be used any more: {reason}"
        self._run.verdict = GpuFailed(GPU_BROKEN)
        self._run.verdict.cause = reason
        if self.state is WorkerState.READY:
            # Further batches would come back.
            self.state = WorkerState.LOADING
        for batch in self.flights.take_back():
            self.owner.worker_returned(self, batch)

    def _on_fitting(self, rows: int) -> None:
        self.most_rows = rows
        if rows:
            _log.warning(
                "Worker %s: more than %d rows exhaust its GPU's memory, batches are split", self.label, rows
            )
        else:
            _log.info("Worker %s: whole batches fit into its GPU's memory again", self.label)

    def _on_lost(self, reason: str | None) -> None:
        if self.state is WorkerState.READY:
            self.state = WorkerState.LOADING
        if reason is not None:
            _log.error("The connection to worker %s broke: %s", self.label, reason)
        if self.flights.process is not None:
            # Usually it is exiting: giving it a moment preserves its exit status.
            self._loop.call_later(2.0, self.flights.process.kill)

    def reconfigure(self, spec: WorkerSpec, times: WorkerTimes) -> None:
        """Applies batch size, frame limit and timeouts; the handler sees the batch size after a restart."""
        load = msgspec.structs.replace(self._spec.load, batch_size=spec.load.batch_size)
        self._spec = replace(self._spec, load=load, frame_limit=spec.frame_limit)
        self._times = times
        if self.flights.process is not None:
            self.flights.process.allow(spec.frame_limit)
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watch()

    # -- timeouts

    def _watch(self) -> None:
        """Checks the timeouts of a serving process."""
        flights, now = self.flights, self._loop.time()
        response, silence = self._times.response, self._times.silence
        heard = max(flights.active_at, flights.head_since)
        due = (heard if flights.concurrency else flights.head_since) + response
        endless = sum(now - since >= CALL_GRACE for since in self._run.overdue.values())
        if (flights.in_flight and now >= due) or 0 < flights.concurrency <= endless:
            self._overdue()
            return
        if not flights.in_flight:
            if now - heard >= silence:
                self._silent()
                return
            kills.look()
            pause = min(silence / 3, response)
        elif flights.concurrency:
            pause = self._watch_each(now)
        else:
            pause = min(due - now, silence / 3)
        if flights.process is not None and (flights.concurrency or not flights.in_flight):
            flights.process.send(Ping())
        self._watchdog = self._loop.call_later(pause, self._watch)

    def _watch_each(self, now: float) -> float:
        """Checks concurrent batches, each with its own timeout; returns seconds until the next check.

        An overdue batch fails alone while the process responds.
        """
        limit = self._times.response
        for batch in [batch for batch in self.flights.in_flight if now - batch.active_at >= limit]:
            _log.error("Worker %s: a request had no answer within response_timeout=%g s", self.label, limit)
            self.flights.give_up(batch)
            self._run.overdue[batch.sequence] = now
            self.owner.worker_lost(self, batch, [], ResponseTimeout())
        first = min((batch.active_at for batch in self.flights.in_flight), default=now)
        return min(max(first + limit - now, 0.01), limit / 3, self._times.silence / 3)

    def _overdue(self) -> None:
        _log.error("Worker %s did not answer within response_timeout=%g s", self.label, self._times.response)
        self._run.verdict = ResponseTimeout()
        self.state = WorkerState.LOADING
        # Clients first, as ending the process may take a moment.
        self._lose(self._run.verdict)
        self.kill(f"No answer within response_timeout={self._times.response:g} s.")

    def _silent(self) -> None:
        _log.error("Worker %s was silent for %g s while idle", self.label, self._times.silence)
        self.kill(f"No sign of life within silence_timeout={self._times.silence:g} s.")
