"""One worker process: started, spoken to, ended.

This is the launcher seam: a process elsewhere would offer the same methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelserver.environments.interpreter import worker_command
from modelserver.pools.channel import Channel
from modelserver.pools.output import Capture
from modelserver.pools.spawner import SpawnRefused
from modelserver.wire.arena import create, read_begun, recall, send_with
from modelserver.wire.frames import encode
from modelserver.wire.marks import MARK, end_marked, new_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from modelserver.pools.spec import Child, WorkerSpec
    from modelserver.wire.messages import ToServer, ToWorker


# Seconds in which all that a worker said before its end has been read.
_LAST_WORDS = 1.0
# Threads of their own: others may be busy for long, and whoever waits for these waits for a new worker.
_enders = ThreadPoolExecutor(2, thread_name_prefix="worker-ends")


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """A running worker process with its channel and captured output.

    ``mark`` is what it and all that it starts are known by. ``begun``: how many batches it had begun when it
    ended; None before its end, and where that cannot be known. ``memory`` is a descriptor to read that from.
    """

    process: Child
    channel: Channel
    capture: Capture
    mark: str
    memory: int | None
    begun: int | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        """Its processes: the one."""
        return [self.pid]

    def send(self, message: ToWorker, bodies: Sequence[bytes] = ()) -> None:
        self.channel.send(message, bodies)

    def allow(self, limit: int) -> None:
        """Its frames may have so many bytes from now on."""
        self.channel.allow(limit)

    @property
    def recalls(self) -> bool:
        """Whether batches can be taken back from it."""
        return self.memory is not None

    def recall(self, sequence: int) -> int:
        """Takes back what it has not begun of batches below ``sequence``; returns how many it has begun.

        Those of a smaller sequence are its own, if it does not return them. Raises OSError.
        """
        if self.memory is None:
            raise OSError("the process has ended, or shares no memory")
        return recall(self.memory, sequence)

    def kill(self) -> None:
        """Ends the process without asking."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.channel.close()

    async def wait(self) -> str:
        """Waits for the end of the process, of what it started and of its output; returns how it ended."""
        code = await self.process.wait()
        # What user code started and left behind, in the worker's process group or elsewhere (F45).
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await asyncio.get_running_loop().run_in_executor(_enders, end_marked, self.mark)
        await self.capture.finish()
        # A descendant may have inherited the worker's end, and live on: nothing it says counts.
        await self.channel.finish(_LAST_WORDS)
        memory, self.memory = self.memory, None
        if memory is not None:
            with contextlib.suppress(OSError):
                self.begun = read_begun(memory)
            os.close(memory)
        return describe_exit(code)

    def last_output(self, lines: int = 20) -> str:
        return self.capture.last(lines)


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
        # It stays open when the connection is gone, with which the arena ends.
        memory = None if arena is None else os.dup(arena.descriptor)
        send_with(ours, b"".join(encode(spec.load)), arena)
        process = await _start(spec, environment, theirs.fileno(), capture)
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


async def _start(
    spec: WorkerSpec, environment: Mapping[str, str], connection: int, capture: Capture
) -> Child:
    if spec.spawner is not None:
        with contextlib.suppress(SpawnRefused):
            return await spec.spawner.spawn(spec, environment, capture.outputs, connection)
    return await capture.start(worker_command(spec.python), environment, connection)
