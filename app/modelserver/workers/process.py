"""One worker process: started, spoken to, ended.

This is the launcher seam: a process elsewhere would offer the same methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from modelserver.wire.arena import create, read_begun, send_with
from modelserver.wire.frames import encode
from modelserver.wire.marks import MARK, end_marked, new_mark
from modelserver.workers.capture import Capture
from modelserver.workers.channel import Channel
from modelserver.workers.gate import BASE_NEED, StartGate
from modelserver.workers.interpreter import worker_command
from modelserver.workers.spawner import THREAD_VARIABLES, Spawner, SpawnRefused

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence

    from modelserver.wire.arena import Arena
    from modelserver.wire.messages import Load, ToServer, ToWorker
    from modelserver.workers.printed_metrics import Measured
    from modelserver.workers.ranks import Ranks


# Seconds in which all that a worker said before its end has been read.
_LAST_WORDS = 1.0
# Threads of their own: others may be busy for long, and whoever waits for these waits for a new worker.
_enders = ThreadPoolExecutor(2, thread_name_prefix="worker-ends")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What every worker of one model version is started with.

    ``threads`` are the cores that the workers share, ``own_threads`` the number that the model names for each
    of its processes, 0 for none; ``frame_limit`` is in bytes. ``spawner`` forks the
    processes where it can; without one each is a new Python. ``gate`` bounds how many load at once, and
    ``need`` are the bytes that loading may take. ``concurrency``: a worker runs so many batches at the same
    time and answers them in any order; 0: one after the other. ``measured`` takes the metrics that
    they print. ``ipex``: whether handlers are to use Intel's extension, and on GPUs.
    """

    load: Load
    threads: int
    frame_limit: int
    own_threads: int = 0
    hidden_variables: re.Pattern[str] | None = None
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    spawner: Spawner | None = None
    gate: StartGate = field(default_factory=StartGate)
    need: int = BASE_NEED
    concurrency: int = 0
    ranks: Ranks | None = None
    measured: Measured | None = None
    ipex: tuple[bool, bool] = (False, False)

    def environment(self, server: Mapping[str, str]) -> dict[str, str]:
        """The server's environment without what is hidden (``blacklist_env_vars``), with thread counts set.

        Numeric libraries read their thread counts once, when they load: they must stand here before that.
        """
        hidden = self.hidden_variables
        environment = {k: v for k, v in server.items() if hidden is None or not hidden.fullmatch(k)}
        for name in THREAD_VARIABLES:
            environment[name] = str(self.own_threads or environment.get(name) or self.threads)
        environment["PYTHONUNBUFFERED"] = "1"
        environment["TS_DECODE_INPUT_REQUEST"] = str(self.load.decode_input_request).lower()
        environment["TS_IPEX_ENABLE"], environment["TS_IPEX_GPU_ENABLE"] = (str(x).lower() for x in self.ipex)
        return {**environment, **self.extra_environment}


class Child(Protocol):
    """A process, however it was started."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None:
        """Ends it; ProcessLookupError if it has ended."""

    async def wait(self) -> int | None:
        """Its exit code, negative for a signal; None if that cannot be known."""


class WorkerProcess:
    """A running worker process with its channel and captured output.

    ``mark`` is what it and all that it starts are known by. ``begun``: how many batches it had begun when it
    ended; None before its end, and where that cannot be known. ``memory`` is a descriptor to read that from.
    """

    def __init__(
        self, process: Child, channel: Channel, capture: Capture, mark: str, memory: int | None
    ) -> None:
        self.begun: int | None = None
        self._process = process
        self._channel = channel
        self._capture = capture
        self._mark = mark
        self._memory = memory

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Its processes: the one."""
        return [self.pid]

    def send(self, message: ToWorker, bodies: Sequence[bytes] = ()) -> None:
        self._channel.send(message, bodies)

    def allow(self, limit: int) -> None:
        """Its frames may have so many bytes from now on."""
        self._channel.allow(limit)

    def kill(self) -> None:
        """Ends the process without asking."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._channel.close()

    async def wait(self) -> str:
        """Waits for the end of the process, of what it started and of its output; returns how it ended."""
        code = await self._process.wait()
        await self._end_descendants()
        await self._capture.finish()
        # A descendant may have inherited the worker's end, and live on: nothing it says counts.
        await self._channel.finish(_LAST_WORDS)
        self._read_begun()
        return describe_exit(code)

    async def _end_descendants(self) -> None:
        """Ends what user code started and left behind, in the worker's process group or elsewhere (F45)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.get_running_loop().run_in_executor(_enders, end_marked, self._mark)

    def _read_begun(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            with contextlib.suppress(OSError):
                self.begun = read_begun(memory)
            os.close(memory)

    def last_output(self, lines: int = 20) -> str:
        return self._capture.tail.last(lines)


def describe_exit(code: int | None) -> str:
    """An exit code in words; a negative one is a signal, as :mod:`subprocess` says it."""
    if code is None:
        return "ended in a way that nobody saw: the process that had started it has not told"
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


async def launch(
    spec: WorkerSpec,
    label: str,
    on_message: Callable[[ToServer, memoryview], None],
    on_lost: Callable[[str | None], None],
) -> WorkerProcess:
    """Starts a worker process and sends it its model.

    The process is spawned, or forked by the spawner, which has no threads; never by the server, which has.
    Its end of the socket pair is its only way to talk; standard output and error are captured, so that
    whatever user code prints cannot disturb the talk.

    Raises:
        OSError: it cannot be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
    ours.setblocking(False)
    capture = Capture()
    mark = new_mark()
    environment = {**spec.environment(os.environ), MARK: mark}
    arena, memory = create(), None
    try:
        memory = _memory_of(arena)
        send_with(ours, b"".join(encode(spec.load)), arena)
        process = await _start(spec, environment, theirs.fileno(), capture.outputs)
    except BaseException:
        ours.close()
        capture.discard()
        if arena is not None:
            arena.close()
        if memory is not None:
            os.close(memory)
        raise
    finally:
        theirs.close()
        capture.close_outputs()
    capture.read(label, spec.measured)
    _, channel = await asyncio.get_running_loop().create_unix_connection(
        lambda: Channel(on_message, on_lost, spec.frame_limit, arena), sock=ours
    )
    return WorkerProcess(process, channel, capture, mark, memory)


def _memory_of(arena: Arena | None) -> int | None:
    """A descriptor that stays open when the connection is gone, with which the arena ends. Raises OSError."""
    return None if arena is None else os.dup(arena.descriptor)


async def _start(
    spec: WorkerSpec, environment: Mapping[str, str], connection: int, outputs: tuple[int, int]
) -> Child:
    if spec.spawner is not None:
        with contextlib.suppress(SpawnRefused):
            return await spec.spawner.spawn(spec, environment, outputs, connection)
    return await asyncio.create_subprocess_exec(
        *worker_command(spec.python),
        str(connection),
        str(os.getpid()),
        # `-m` looks for modules in the current directory first: it must be one that nobody else can write to.
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=outputs[0],
        stderr=outputs[1],
        pass_fds=[connection],
        start_new_session=True,
    )
