"""One worker process: started, spoken to, ended.

This is the launcher seam: a process elsewhere would offer the same methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelserver.workers.channel import Channel
from modelserver.workers.output import LineReader, OutputTail

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence

    from modelserver.wire.messages import Load, ToServer, ToWorker

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What every worker of one model version is started with.

    ``threads`` are the cores that the workers share; ``frame_limit`` is in bytes.
    """

    load: Load
    threads: int
    frame_limit: int
    hidden_variables: re.Pattern[str] | None = None
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable

    def environment(self, server: Mapping[str, str]) -> dict[str, str]:
        """The server's environment without what is hidden (``blacklist_env_vars``), with thread counts set.

        Numeric libraries read their thread counts once, when they load: they must stand here before that.
        """
        hidden = self.hidden_variables
        environment = {k: v for k, v in server.items() if hidden is None or not hidden.fullmatch(k)}
        for name in _THREAD_VARIABLES:
            environment.setdefault(name, str(self.threads))
        environment["PYTHONUNBUFFERED"] = "1"
        environment["TS_DECODE_INPUT_REQUEST"] = str(self.load.decode_input_request).lower()
        return {**environment, **self.extra_environment}


class WorkerProcess:
    """A running worker process with its channel and captured output."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        channel: Channel,
        tail: OutputTail,
        streams: Sequence[LineReader],
    ) -> None:
        self._process = process
        self._channel = channel
        self._tail = tail
        self._streams = streams

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToWorker, bodies: Sequence[bytes] = ()) -> None:
        self._channel.send(message, bodies)

    def kill(self) -> None:
        """Ends the process without asking."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._channel.close()

    async def wait(self) -> str:
        """Waits for the end of the process and of its output; returns how it ended, in words."""
        code = await self._process.wait()
        self._end_descendants()
        # Those that left its session may hold the streams open for ever: what they print is not waited for.
        await asyncio.wait([s.ended for s in self._streams], timeout=1.0)
        for stream in self._streams:
            stream.close()
        # A descendant may have inherited the worker's end: nothing it says counts.
        self._channel.close()
        return describe_exit(code)

    def _end_descendants(self) -> None:
        """Ends what user code started and left behind in the worker's process group (F45)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def last_output(self, lines: int = 20) -> str:
        return self._tail.last(lines)


def describe_exit(code: int) -> str:
    """An exit code in words; a negative one is a signal, as :mod:`subprocess` says it."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", perhaps by the system's out-of-memory killer" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


async def launch(
    spec: WorkerSpec,
    label: str,
    on_message: Callable[[ToServer, memoryview], None],
    on_lost: Callable[[str | None], None],
) -> WorkerProcess:
    """Starts a worker process and sends it its model.

    The process is spawned, never forked: the server has threads. Its end of the socket pair is its only way
    to talk; standard output and error are captured, so that whatever user code prints cannot disturb the
    talk.
    """
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
    ours.setblocking(False)
    tail = OutputTail()
    out, err = os.pipe(), os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            spec.python,
            "-m",
            "modelserver.worker",
            str(theirs.fileno()),
            str(os.getpid()),
            # `-m` looks for modules in the current directory first: it must be one that nobody else can write
            # to.
            cwd="/",
            env=spec.environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=out[1],
            stderr=err[1],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        for pipe in (out, err):
            os.close(pipe[0])
        raise
    finally:
        theirs.close()
        for pipe in (out, err):
            os.close(pipe[1])
    streams = []
    for pipe, level, name in ((out, logging.INFO, "stdout"), (err, logging.WARNING, "stderr")):
        reader = LineReader(f"{label}-{name}", level, tail)
        reader.attach(pipe[0])
        streams.append(reader)
    _, channel = await loop.create_unix_connection(
        lambda: Channel(on_message, on_lost, spec.frame_limit), sock=ours
    )
    channel.send(spec.load)
    return WorkerProcess(process, channel, tail, streams)
