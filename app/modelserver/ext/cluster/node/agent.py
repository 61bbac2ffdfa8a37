"""The agent of one worker on a node: fetches what it needs, starts it, and reports its condition.

The agent connects to the server and does what that requests (see :mod:`modelserver.ext.cluster.messages`).
Its life depends on that connection: once nothing has come from the server for the time of the lease, or the
connection is lost, it ends the worker, and itself. The worker has a connection of its own, so that no answer
passes here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import uvloop

from modelserver import __version__
from modelserver.engine.pools.local_process import LocalProcess
from modelserver.engine.pools.spec import Ports
from modelserver.engine.telemetry.gpus import Gpus
from modelserver.engine.telemetry.system import family_of, worker_memory
from modelserver.engine.wire.arena import Arena, ProtocolError
from modelserver.engine.wire.marks import Mark
from modelserver.errors import BadRequest
from modelserver.ext.cluster import messages
from modelserver.ext.cluster.greeting import Invitation
from modelserver.ext.cluster.node.archives import ArchiveCache, Held
from modelserver.ext.cluster.node.dial import LOCAL_SOCKET, dial_streams
from modelserver.models.environments.packages import WorkerEnvironment

# What a worker on a node starts with: the packages of its model, and its environment variables.
#
# Packages are installed as on the server's machine, into the cache of the node (``environments/``), for the
# Python that runs the agent.

# Of Ray and the agent, which no model needs and some of which are secret; and what would open a debugger. How
# the worker connects is for itself (see modelserver.ext.cluster.node.dial).
_NEVER: Final = (
    rf"RAY_.*|(?!{LOCAL_SOCKET}$)MODELSERVER_(INVITATION|TICKET|NODE)(_.*)?|PYTHONBREAKPOINT|SPT_NOENV"
)


@dataclass(frozen=True)
class NodeEnvironment:
    """The environment of one worker on this node.

    Args:
        hidden: the pattern of further variables that the worker must not see, "" for none.
        own: variables beside those of the node; they win.
        threads: of numeric libraries, if neither ``own`` nor the node says it.
    """

    hidden: str
    own: Mapping[str, str]
    threads: int

    def environments(self, installer: str, fallback: Path, tell: Callable[[str, str], None]) -> Any:
        """What installs packages here: that of the module ``installer``.

        ``fallback`` is a folder to use if the node has no cache. ``tell`` gets pip's output line by line with
        its source.
        """
        return import_module(installer).Environments(sys.executable, fallback, self._hidden, printed=tell)

    def process(self, node: Mapping[str, str], packages: Mapping[str, str]) -> LocalProcess:
        """The worker's process; ``node`` and ``packages`` are the variables of the node and its packages."""
        return LocalProcess(node, {**self.own, **packages}, self._hidden, max(1, self.threads))

    @property
    def _hidden(self) -> re.Pattern[str]:
        return re.compile(f"{_NEVER}|(?:{self.hidden})" if self.hidden else _NEVER)


_log = logging.getLogger("modelserver.node")

# Seconds between reports of the worker's condition.
_REPORT = 2.0
# Output that is sent at once, in bytes, and the most per second: a worker that prints more has to wait.
_OUTPUT, _OUTPUT_RATE = 1 << 16, 8 << 20
_PIECE = 1 << 18
# Seconds for the last output of an ended worker.
_LAST_WORDS = 1.0
# Seconds of silence that an agent accepts before its start request, and between two checks of that.
_LEASE, _LOOK = 30.0, 0.25


class Agent:
    """One worker's agent. ``node`` is the cluster's name for this machine."""

    def __init__(self, invitation: Invitation, node: str) -> None:
        self._invitation = invitation
        self._node = node
        self._reader = messages.MessageReader(messages.to_agent_decoder)
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[messages.Start] = self._loop.create_future()
        self._tickets: asyncio.Queue[Invitation] = asyncio.Queue()
        self._process: LocalProcess | None = None
        self._memory: Arena | None = None
        self._outgoing: asyncio.StreamWriter
        self._received_at = time.monotonic()
        self._is_killed = False

    async def run(self) -> None:
        """Connects, runs the worker, and returns after its end. Raises OSError if it cannot connect.

        If this is cancelled, the worker is ended.
        """
        incoming, self._outgoing = await dial_streams(self._invitation)
        self._received_at = time.monotonic()
        devices = Gpus.of(os.environ).visible or ""
        self._send(messages.Present(__version__, messages.PYTHON, self._node, socket.gethostname(), devices))
        listening = self._loop.create_task(self._listen(incoming))
        working = self._loop.create_task(self._work())
        try:
            await asyncio.wait({listening, working}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._leave(listening, working)

    async def _leave(self, listening: asyncio.Task[None], working: asyncio.Task[None]) -> None:
        """Ends the worker if it still runs, and everything of this agent."""
        self._kill()
        if not working.done() and self._process is None:
            working.cancel()
        await asyncio.wait({working})
        listening.cancel()
        if not working.cancelled() and (error := working.exception()) is not None:
            _log.error("%s", error)
            self._send(_refusal(error))
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._outgoing.drain(), _LAST_WORDS)
        self._outgoing.close()

    def _send(self, message: messages.FromAgent) -> None:
        if not self._outgoing.is_closing():
            self._outgoing.write(messages.encode(message))

    # -- the server

    async def _listen(self, incoming: asyncio.StreamReader) -> None:
        """Does what the server requests until the connection or the lease ends."""
        lease = self._loop.create_task(self._keep_lease())
        try:
            while data := await incoming.read(1 << 18):
                self._received_at = time.monotonic()
                for message in self._reader.feed(data):
                    self._handle(message)
        except (OSError, ProtocolError) as error:
            _log.error("The connection to the server is lost: %s", error)
        finally:
            lease.cancel()

    def _handle(self, message: messages.ToAgent) -> None:
        if isinstance(message, messages.Alive):
            self._send(messages.Heard(message.number))
        elif isinstance(message, messages.Recall):
            self._recall(message.below)
        elif isinstance(message, messages.Start):
            if not self._started.done():
                self._started.set_result(message)
        elif isinstance(message, messages.ArchiveTicket):
            self._tickets.put_nowait(message.invitation)
        elif isinstance(message, messages.Meet):
            self._send(self._meeting(message))
        else:
            assert isinstance(message, messages.Kill)  # noqa: S101 - the last of the union
            self._kill()

    def _meeting(self, request: messages.Meet) -> messages.Meeting | messages.StartRefused:
        """Where the ranks of a worker can meet."""
        host = self._outgoing.get_extra_info("sockname")[0]
        try:
            return messages.Meeting(host, Ports(request.first, request.assigned).next())
        except OSError as error:
            return messages.StartRefused(str(error))

    async def _keep_lease(self) -> None:
        """Closes the connection once the server has been silent for too long."""
        silence = 0.0
        while silence < (self._started.result().lease if self._started.done() else _LEASE):
            before = time.monotonic()
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            # If this process, or the whole machine, was stopped, messages of the server may wait to be read.
            self._received_at = min(now, self._received_at + max(0.0, now - before - _LOOK))
            silence = now - self._received_at
        _log.error("Nothing was heard of the server for %.1f s: the worker is ended", silence)
        self._outgoing.transport.abort()

    def _recall(self, below: int) -> None:
        if self._memory is not None:
            with contextlib.suppress(OSError):
                self._send(messages.TakenBack(self._memory.recall(below), below))

    # -- the worker

    async def _work(self) -> None:
        start = await self._started
        # Ends processes that workers of killed agents have left behind.
        await asyncio.to_thread(Mark.end_orphans)
        async with contextlib.AsyncExitStack() as held:
            files = await self._fetch(start, held)
            python, process = await self._furnish(start, files, held)
            await self._run_worker(start, files.path, python, process)

    async def _run_worker(
        self, start: messages.Start, model_dir: Path, python: str, process: LocalProcess
    ) -> None:
        self._memory = Arena.create()
        # The path by which another process of this user opens the memory.
        memory = f"/proc/{os.getpid()}/fd/{self._memory.descriptor}" if self._memory is not None else ""
        await self._spawn(start.worker, python, process)
        self._process = process
        forwarding = [
            self._loop.create_task(self._forward(descriptor, is_error=is_error))
            for descriptor, is_error in zip(process.outputs, (False, True), strict=True)
        ]
        reporting = self._loop.create_task(self._report(start.gpu_id, process))
        self._send(messages.WorkerStarted(process.pid, str(model_dir), memory))
        if self._is_killed:
            self._kill()
        code = await process.exited()
        for_memory = process.for_memory if code == -signal.SIGKILL and not self._is_killed else False
        await process.end_descendants()
        await asyncio.wait(forwarding, timeout=_LAST_WORDS)
        for task in (*forwarding, reporting):
            task.cancel()
        self._send(messages.WorkerEnded(code, self._started_batches(), for_memory))

    async def _fetch(self, start: messages.Start, held: contextlib.AsyncExitStack) -> Held:
        """The model's files, until ``held`` is closed."""
        files = await ArchiveCache.of_node(os.environ).hold(
            start.digest, start.size, self._receive, self._report_progress
        )
        held.push_async_callback(files.release)
        return files

    async def _receive(self, offset: int) -> AsyncIterator[bytes]:
        """The bytes of the model's files from there, on a connection of their own: heartbeats go on."""
        self._send(messages.WantArchive(offset))
        reader, writer = await dial_streams(await self._tickets.get())
        with contextlib.closing(writer):
            while piece := await reader.read(_PIECE):
                yield piece

    async def _furnish(
        self, start: messages.Start, files: Held, held: contextlib.AsyncExitStack
    ) -> tuple[str, LocalProcess]:
        """Has the model's packages installed; returns the worker's Python and its process."""
        own = dict(start.environment)
        for name, content in start.files.items():
            own[name] = str(files.folder / name)
            (files.folder / name).write_bytes(content)
        node = NodeEnvironment(start.hidden, own, start.threads)
        packages, (requirements, venv, installer) = WorkerEnvironment(), start.packages
        if requirements or venv:
            environments = node.environments(installer, files.folder / "environments", self._report_progress)
            packages = await environments.provide(
                start.model, files.path, requirements or None, venv=venv, tell=self._report_progress
            )
        held.push_async_callback(asyncio.to_thread, packages.release)
        return packages.python or sys.executable, node.process(os.environ, packages.variables)

    def _report_progress(self, step: str, source: str = "") -> None:
        self._send(messages.StartProgress(step, source))

    async def _spawn(self, invitation: Invitation, python: str, process: LocalProcess) -> None:
        """Starts the worker, which reads the invitation, with the memory beside it."""
        own, other = socket.socketpair()
        with own, other:
            Arena.send(own, invitation.text().encode(), self._memory)
            try:
                await process.start(other.fileno(), python, "modelserver.ext.cluster.node.worker")
            except OSError as error:
                # The event loop's error does not name the program.
                raise OSError(error.errno, error.strerror, python) from error

    def _started_batches(self) -> int | None:
        with contextlib.suppress(OSError):
            return None if self._memory is None else self._memory.batches_started()
        return None

    async def _forward(self, descriptor: int, *, is_error: bool) -> None:
        """Sends what the worker prints, as fast as the server takes it, within a limit."""
        reader = asyncio.StreamReader(limit=_OUTPUT)
        pipe = os.fdopen(descriptor, "rb", 0)
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        with contextlib.closing(transport), contextlib.suppress(OSError):
            while data := await reader.read(_OUTPUT):
                self._send(messages.WorkerOutput(is_error, data))
                await self._outgoing.drain()
                await asyncio.sleep(len(data) / _OUTPUT_RATE)

    async def _report(self, gpu_id: int | None, process: LocalProcess) -> None:
        gpus = Gpus.of(process.variables)
        while True:
            process.look_for_kills()
            sizes = await asyncio.to_thread(_residents, process.pid)
            if gpu_id is not None:
                await gpus.renew()
            self._send(messages.Condition(sizes[0], gpus.usage(gpu_id), sum(sizes)))
            await asyncio.sleep(_REPORT)

    def _kill(self) -> None:
        self._is_killed = True
        if self._process is not None:
            self._process.kill()


def _residents(pid: int) -> list[int]:
    """Bytes of the process, and of each of its descendants."""
    return [*map(worker_memory, family_of([pid]))]


def _refusal(error: BaseException) -> messages.StartRefused:
    if isinstance(error, BadRequest):
        return messages.StartRefused(error.message, error.status)
    return messages.StartRefused(
        f"{error}" if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    )


def run(invitation: str, node: str) -> None:
    """Runs an agent on the invitation's text; returns when it has ended."""
    uvloop.run(_run(invitation, node))


async def _run(invitation: str, node: str) -> None:
    running = asyncio.ensure_future(Agent(Invitation.parse(invitation), node).run())
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
