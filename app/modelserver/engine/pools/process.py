"""One worker process: start, communication, end. Those on other machines have the same methods."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from functools import partial

from modelserver.engine.pools.channel import Channel, FrameChannel
from modelserver.engine.pools.local_process import LocalProcess
from modelserver.engine.pools.output import OutputReaders
from modelserver.engine.pools.spec import Node, Process, Receiver, WorkerSpec
from modelserver.engine.wire.arena import Arena
from modelserver.engine.wire.frames import encode
from modelserver.engine.wire.messages import Recalled, ToWorker

# Seconds to read the last messages of an ended worker.
_LAST_WORDS = 1.0


class WorkerProcess(LocalProcess):
    """A running worker process with its ``channel``.

    ``batches_started``: how many batches it had started when it ended; None before its end, or if unknown.
    ``memory`` is where it writes that. It is on this machine, so that it has no ``node`` and no
    ``round_trip``.
    """

    channel: Channel
    memory: Arena | None = None
    batches_started: int | None = None
    node: None = None
    round_trip: float = 0.0

    @property
    def pids(self) -> list[int]:
        """The process ids; this worker has one process."""
        return [self.pid]

    def send(self, message: ToWorker, bodies: Sequence[bytes] = ()) -> None:
        self.channel.send(message, bodies)

    def allow(self, limit: int) -> None:
        """Changes the limit for its frames, in bytes."""
        self.channel.allow(limit)

    @property
    def recalls(self) -> bool:
        """Whether batches can be taken back from it."""
        return self.memory is not None

    def recall(self, sequence: int) -> int:
        """Takes back the batches below ``sequence`` that it has not begun; returns how many it has begun.

        Batches with a sequence below the number returned stay with it, unless it returns them itself. Raises
        OSError.
        """
        if self.memory is None:
            raise OSError("the process has ended, or shares no memory")
        return self.memory.recall(sequence)

    def kill(self) -> None:
        """Ends the process without asking."""
        super().kill()
        self.channel.close()

    async def wait(self) -> str:
        """Waits for the end of the process and its output, and ends its descendants; returns how it ended."""
        code = await self.exited()
        await self.end_descendants()
        await self.finish()
        # A descendant may still hold the worker's end of the connection; its messages are ignored.
        await self.channel.finish(_LAST_WORDS)
        memory, self.memory = self.memory, None
        if memory is not None:
            with contextlib.suppress(OSError):
                self.batches_started = memory.batches_started()
            memory.close()
        return describe_exit(code)


class RemoteProcess:
    """A worker's process on another machine, where its launcher has it started and watched.

    ``channel`` is its connection, once it has one; ``node`` is its machine.
    """

    def __init__(self, label: str, spec: WorkerSpec) -> None:
        self.pid = -1
        # None on this machine.
        self.pids: list[int] = []
        self.node = Node("")
        self.batches_started: int | None = None
        self.for_memory: bool | None = False
        self.channel: FrameChannel | None = None
        self._output = OutputReaders(spec.measured)
        self.rename(label)

    def rename(self, label: str) -> None:
        """Gives it this label, which the log shows with its node's name."""
        self.label = label
        self._output.name(f"{label}@{self.node.name}" if self.node.name else label)

    def send(self, message: ToWorker, bodies: Sequence[bytes] = ()) -> None:
        """Sends one message; dropped if there is no connection."""
        if self.channel is not None:
            self.channel.send(message, bodies)

    def allow(self, limit: int) -> None:
        """Changes the limit for its frames, in bytes."""
        if self.channel is not None:
            self.channel.allow(limit)

    def recalled(self, started: int, below: int) -> None:
        """It had begun the batches below ``started``; the others below ``below`` were taken back."""
        if self.channel is not None:
            self.channel.on_message(Recalled(started, below), memoryview(b""))

    def printed(self, data: bytes, *, is_error: bool) -> None:
        """It has printed this to standard output or error."""
        self._output.readers[is_error].feed(data)

    def ended(self, code: int | None, started: int | None, for_memory: bool | None) -> str:
        """It has ended with this exit code; returns how, in words."""
        self.batches_started, self.for_memory = started, for_memory
        return describe_exit(code)

    async def finish(self) -> None:
        """Reads what the ended process has printed and sent."""
        for reader in self._output.readers:
            reader.finish()
        if self.channel is not None:
            await self.channel.finish(_LAST_WORDS if self.batches_started is not None else 0.0)

    def last_output(self, lines: int = 20) -> str:
        return self._output.last(lines)


def describe_exit(code: int | None) -> str:
    """An exit code as text; a negative one is a signal, as in :mod:`subprocess`."""
    if code is None:
        return "ended with an unknown status: the process that had started it did not report it"
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


async def launch(spec: WorkerSpec, label: str, receiver: Receiver) -> WorkerProcess:
    """Starts a worker process and sends it its model.

    The process is spawned, or forked by the spawner, which has no threads; never forked by the server, which
    has. It communicates only by its end of the socket pair; standard output and error are captured, so that
    user code's output cannot interfere. Raises OSError if it cannot be started.
    """
    local, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (local, remote):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
    local.setblocking(False)
    process = WorkerProcess(os.environ, spec.own_environment(), spec.hidden_variables, spec.threads)
    fork = None if spec.spawner is None else partial(spec.spawner.spawn, spec, process.variables)
    arena = Arena.create()
    try:
        # A duplicate, as the arena is closed with the connection.
        process.memory = None if arena is None else arena.duplicate()
        Arena.send(local, b"".join(encode(spec.load)), arena)
        await process.start(remote.fileno(), spec.python, fork=fork)
    except BaseException:
        local.close()
        if arena is not None:
            arena.close()
        if process.memory is not None:
            process.memory.close()
        raise
    finally:
        remote.close()
    process.read(label, spec.measured)
    _, process.channel = await asyncio.get_running_loop().create_unix_connection(
        lambda: Channel(receiver, spec.frame_limit, arena), sock=local
    )
    return process


async def started(launching: asyncio.Task[Process], *, is_quick: bool) -> Process:
    """The process that is being started; if this is cancelled, the process is ended.

    A start that is not ``is_quick`` may be waiting for a machine, and is cancelled, too.
    """
    try:
        return await asyncio.shield(launching)
    except asyncio.CancelledError:
        if not is_quick:
            launching.cancel()
        # A second cancellation ends this wait only, not the task.
        await asyncio.wait({asyncio.create_task(_end(launching))})
        raise
    finally:
        # It keeps its error, which refers to this frame: a cycle.
        del launching


async def _end(launching: asyncio.Task[Process]) -> None:
    with contextlib.suppress(Exception, asyncio.CancelledError):
        (process := await launching).kill()
        await process.wait()
