"""The server's side of the spawner, a process that has imported torch and forks workers.

The server itself never forks, as it has threads. The spawner has one, and checks that before each fork (see
:mod:`modelserver.ext.forking.fork_server`). Workers that it cannot fork are spawned, and the log says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.engine.pools.local_process import LocalProcess
from modelserver.ext.forking import messages
from modelserver.ext.forking.preload_reader import PreloadReader
from modelserver.ext.forking.preloading import EARLY_VARIABLE, Preload

if TYPE_CHECKING:
    from modelserver.engine.pools.spec import WorkerSpec


_log = logging.getLogger("modelserver.workers")

# Seconds for importing what workers need, and for forking a worker.
PATIENCE = 120.0
FORK_PATIENCE = 30.0
# Seconds that a worker waits for a spawner that replaces a lost one.
REPLACEMENT_PATIENCE = 2.0
# Seconds for which a spawner may be stopped, as by a debugger; between checks of that; and for the spawner to
# report how a worker ended.
STOPPED_PATIENCE = 1.0
LOOKS = 0.25
REPORT_PATIENCE = 1.0
# Unexpected ends of the spawner after which it is no longer used.
MAX_DEATHS = 3
_NO_FOLDER = "/nonexistent"
_FORK_SERVER = "modelserver.ext.forking.fork_server"


class SpawnRefused(Exception):
    """The worker must be spawned instead; the message says why."""


def can_fork() -> bool:
    """Whether the system supports pidfds and signals from pipes."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ForkedProcess:
    """A forked worker. ``life`` is a pipe that is held open as long as it may live."""

    def __init__(self, pid: int, pidfd: int, life: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._life = life
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int | None] = self._loop.create_future()
        self._loop.add_reader(pidfd, self._ended_unreported)

    def kill(self) -> None:
        """Ends the process; ProcessLookupError if it has ended."""
        if self._end.done():
            raise ProcessLookupError
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> int | None:
        """The exit code, negative for a signal; None if unknown."""
        return await asyncio.shield(self._end)

    def ended(self, code: int | None) -> None:
        """Records the end of the process."""
        if not self._end.done():
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            os.close(self._life)
            self._end.set_result(code)

    def _ended_unreported(self) -> None:
        """The spawner usually reports the exit code soon; waits only a limited time for that."""
        self._loop.remove_reader(self._pidfd)
        self._loop.call_later(REPORT_PATIENCE, self._ended_unknown)

    def _ended_unknown(self) -> None:
        if self._end.done():
            return
        try:
            _, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            self.ended(None)
        else:
            # As process 1 of a container, the server inherits orphans.
            self.ended(os.waitstatus_to_exitcode(status))


@dataclass(slots=True)
class _Pending:
    """A request without a reply yet. ``life`` is the pipe of the worker to be forked, if any."""

    reply: asyncio.Future[ForkedProcess | None]
    life: int | None


class Spawner:
    """Starts the spawner process on demand, and again if it ends.

    ``for_all``: it also forks workers that need no heavy package, as long as it has imported none. Those that
    requests wait for are otherwise forked by another one, which imports none.
    """

    def __init__(self, *, for_all: bool = False) -> None:
        self._for_all = for_all
        self._light: Spawner | None = None
        self._process: _SpawnerProcess | None = None
        self._starting = asyncio.Lock()
        self._deaths = 0
        self._reported: set[str] = set()
        self._closed = False
        self._hidden = ""
        self._preloads = PreloadReader()
        self._replacing: asyncio.Task[None] | None = None
        # What the spawner was last used for, from which the next one is prepared.
        self._latest: tuple[WorkerSpec, Mapping[str, str], messages.Prepare] | None = None

    async def preload(self, handler: str, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """Imports what a built-in handler or a script needs, before it is known how its workers are started.

        Workers that need it sooner wait for it. ``environment`` is the server's.
        """
        with contextlib.suppress(SpawnRefused):
            process = await self._running("", environment)
            await process.prepare(messages.Prepare(_NO_FOLDER, handler, list(modules)))

    async def spawn(
        self, spec: WorkerSpec, environment: Mapping[str, str], outputs: tuple[int, int], connection: int
    ) -> ForkedProcess | None:
        """Forks a worker with this environment and these descriptors; None if it must be spawned instead."""
        try:
            return await self._spawn(spec, environment, outputs, connection)
        except SpawnRefused as refused:
            # Its traceback refers to the reply that it came with: a reference cycle, with all that was sent.
            refused.__traceback__ = None
            if (reason := str(refused)) and reason not in self._reported:
                self._reported.add(reason)
                _log.info("Workers of %s are not forked: %s", spec.load.model_name, reason)
            return None

    async def _spawn(
        self, spec: WorkerSpec, environment: Mapping[str, str], outputs: tuple[int, int], connection: int
    ) -> ForkedProcess | None:
        if reason := why_not(spec, environment):
            raise SpawnRefused(reason)
        load = spec.load
        preload = await self._preloads.preload_of(Path(load.model_dir), load.handler)
        if preload is None:
            if not self._for_all and spec.worth is None:
                raise SpawnRefused("")
            if not self._for_all:
                if self._light is None:
                    self._light = Spawner(for_all=True)
                return await self._light.spawn(spec, environment, outputs, connection)
            preload = Preload()
        else:
            self._for_all = False
        needs = messages.Prepare(load.model_dir, preload.handler, list(preload.modules))
        request = messages.Spawn(
            needs.model_dir,
            needs.handler,
            needs.modules,
            environment=dict(environment),
            threads=spec.threads_in(environment),
        )
        self._latest = spec, environment, needs
        process = await self._running(_hidden_by(spec), environment)
        await process.prepare(needs)
        return await process.spawn(request, [connection, *outputs])

    def _on_lost(self) -> None:
        """Starts another, so that later workers need not wait for it."""
        if self._closed or self._latest is None:
            return
        if self._replacing is None or self._replacing.done():
            self._replacing = asyncio.create_task(self._replace(*self._latest))

    async def _replace(
        self, spec: WorkerSpec, environment: Mapping[str, str], needs: messages.Prepare
    ) -> None:
        with contextlib.suppress(SpawnRefused):
            await (await self._running(_hidden_by(spec), environment)).prepare(needs)

    async def _running(self, hidden: str, environment: Mapping[str, str]) -> _SpawnerProcess:
        """The process; ``hidden`` is the pattern of variables that it must not have."""
        async with self._starting:
            if self._closed:
                raise SpawnRefused("")
            if self._process is not None and self._process.lost:
                self._process = None
                self._deaths += 1
            if self._deaths >= MAX_DEATHS:
                raise SpawnRefused(f"the spawner ended {self._deaths} times")
            if self._process is None:
                self._hidden = hidden
                try:
                    self._process = await _SpawnerProcess.start(
                        environment, self._on_lost, replaces=self._deaths > 0
                    )
                except OSError as error:
                    raise SpawnRefused(f"the spawner could not be started: {error}") from error
            elif hidden != self._hidden:
                raise SpawnRefused("the spawner was started with other hidden variables")
            return self._process

    def refuse(self) -> None:
        """Forks nothing any more; the ends of workers are still reported."""
        self._closed = True
        if self._replacing is not None:
            self._replacing.cancel()
        if self._light is not None:
            self._light.refuse()
        if self._process is not None:
            self._process.refuse("")

    async def close(self) -> None:
        """Ends the spawner, even if it is busy; workers live on."""
        self.refuse()
        if self._light is not None:
            await self._light.close()
        if self._process is not None:
            self._process.close()
            await self._process.closed()


def _hidden_by(spec: WorkerSpec) -> str:
    return spec.hidden_variables.pattern if spec.hidden_variables else ""


def why_not(spec: WorkerSpec, environment: Mapping[str, str]) -> str:
    """Why a worker with these variables cannot be forked, or an empty string."""
    if spec.python != sys.executable:
        return "they have a Python of their own"
    early = sorted(name for name in spec.extra_environment if EARLY_VARIABLE.fullmatch(name))
    if early == ["PYTHONPATH"]:
        return "they import packages of their own (install_py_dep_per_model), which no other process may have"
    if early:
        return f"{', '.join(early)} must be set before anything is imported"
    if not spec.threads_in(environment):
        return "OMP_NUM_THREADS, MKL_NUM_THREADS, OPENBLAS_NUM_THREADS are not one and the same number"
    return ""


def _spawner_threads() -> dict[str, str]:
    """All cores for libraries that start threads on demand; 1 for OpenBLAS, which starts them at once."""
    cores = str(len(os.sched_getaffinity(0)))
    return {"OMP_NUM_THREADS": cores, "MKL_NUM_THREADS": cores, "OPENBLAS_NUM_THREADS": "1"}


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal or debugger."""
    try:
        statistics = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return statistics.rpartition(")")[2].split()[0] in {"T", "t"}


class _SpawnerProcess:
    """One spawner process and the communication with it; ``on_lost`` is called at its end."""

    def __init__(
        self,
        process: LocalProcess,
        control: socket.socket,
        on_lost: Callable[[], None],
        *,
        replaces: bool,
    ) -> None:
        self.lost = False
        self._on_lost = on_lost
        self._patience = REPLACEMENT_PATIENCE if replaces else PATIENCE
        self._stopped_since: float | None = None
        self._process = process
        self._control = control
        self._pending: deque[_Pending] = deque()
        self._children: dict[int, ForkedProcess] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(control, self._read)
        process.read("spawner")
        self._closing: asyncio.Task[None] | None = None
        self._looking = self._loop.call_later(LOOKS, self._look)

    @classmethod
    async def start(
        cls, environment: Mapping[str, str], on_lost: Callable[[], None], *, replaces: bool
    ) -> _SpawnerProcess:
        """Starts a process with this environment. ``replaces``: a previous one was lost. Raises OSError."""
        local, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        local.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        local.setblocking(False)
        process = LocalProcess(environment, _spawner_threads(), None, 1)
        try:
            await process.start(remote.fileno(), module=_FORK_SERVER)
        except BaseException:
            local.close()
            raise
        finally:
            remote.close()
        return cls(process, local, on_lost, replaces=replaces)

    async def prepare(self, needs: messages.Prepare) -> None:
        """Lets it import what a worker needs. Raises SpawnRefused."""
        try:
            await asyncio.wait_for(self._ask(needs), self._patience)
        except asyncio.TimeoutError:
            if self._patience == REPLACEMENT_PATIENCE:
                raise SpawnRefused("the spawner was lost, and another is not ready yet") from None
            self.close()
            raise SpawnRefused(f"the spawner was not ready within {self._patience:g} s") from None

    async def spawn(self, request: messages.Spawn, descriptors: list[int]) -> ForkedProcess:
        """Requests a worker, for which it is prepared. Raises SpawnRefused."""
        remote, local = os.pipe()
        try:
            reply = self._ask(request, [*descriptors, remote], local)
        except SpawnRefused:
            os.close(local)
            raise
        finally:
            os.close(remote)
        try:
            child = await asyncio.wait_for(reply, FORK_PATIENCE)
        except asyncio.TimeoutError:
            self.close()
            raise SpawnRefused(f"the spawner did not fork within {FORK_PATIENCE:g} s") from None
        assert child is not None  # noqa: S101 - what answers a Spawn
        return child

    def _ask(
        self, request: messages.ToSpawner, descriptors: list[int] | None = None, life: int | None = None
    ) -> asyncio.Future[ForkedProcess | None]:
        """Sends a request; the future gets its reply or SpawnRefused. Raises SpawnRefused."""
        try:
            messages.send(self._control, request, descriptors)
        except OSError as error:
            raise SpawnRefused(f"the spawner cannot be reached: {error}") from error
        pending = _Pending(self._loop.create_future(), life)
        self._pending.append(pending)
        return pending.reply

    def _look(self) -> None:
        """Replaces a process that is stopped; one that is importing will answer."""
        if not is_stopped(self._process.pid):
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = self._loop.time()
        elif self._loop.time() - self._stopped_since >= STOPPED_PATIENCE:
            _log.warning("The spawner was stopped by a signal: it is replaced")
            self.close()
            return
        self._looking = self._loop.call_later(LOOKS, self._look)

    def _read(self) -> None:
        try:
            received = messages.receive_report(self._control)
        except BlockingIOError:
            return
        except OSError:
            received = None
        if received is None:
            self.close()
        else:
            self._handle(*received)

    def _handle(self, report: messages.FromSpawner, descriptors: list[int]) -> None:
        if isinstance(report, messages.ChildEnded):
            child = self._children.pop(report.pid, None)
            if child is not None:
                child.ended(report.code)
            return
        pending = self._pending.popleft()
        if isinstance(report, messages.ModulesImported):
            self._patience = PATIENCE
            if not pending.reply.done():
                pending.reply.set_result(None)
            return
        if isinstance(report, messages.ForkRefused):
            if pending.life is not None:
                os.close(pending.life)
            if not pending.reply.done():
                pending.reply.set_exception(SpawnRefused(report.reason))
            return
        assert isinstance(report, messages.Spawned)  # noqa: S101 - the last of the union
        assert pending.life is not None  # noqa: S101 - what a Spawn has
        child = ForkedProcess(report.pid, descriptors[0], pending.life)
        self._children[report.pid] = child
        if pending.reply.done():
            # The caller has given up.
            child.kill()
        else:
            pending.reply.set_result(child)

    def close(self) -> None:
        """Ends the process; its requests are refused, its workers live on."""
        if self.lost:
            return
        self.lost = True
        self._loop.remove_reader(self._control)
        self._control.close()
        self._looking.cancel()
        for pending in self._pending:
            if pending.life is not None:
                os.close(pending.life)
        self.refuse("the spawner has ended")
        self._pending.clear()
        self._children.clear()
        self._process.kill()
        self._closing = self._loop.create_task(self._finish())
        self._on_lost()

    def refuse(self, reason: str) -> None:
        """Refuses the requests that wait for a reply."""
        for pending in self._pending:
            if not pending.reply.done():
                pending.reply.set_exception(SpawnRefused(reason))

    async def closed(self) -> None:
        """Waits until the process has ended."""
        if self._closing is not None:
            await self._closing

    async def _finish(self) -> None:
        await self._process.exited()
        await self._process.finish()
