"""A process on this machine that runs others' code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias

from modelserver.engine.pools.interpreter import WORKER, worker_command
from modelserver.engine.pools.memory_kills import kills
from modelserver.engine.pools.output import Measured, OutputReaders
from modelserver.engine.pools.variables import worker_variables
from modelserver.engine.wire.marks import Mark

# Separate threads, as others may be busy for long, which would delay new workers.
_enders = ThreadPoolExecutor(2, thread_name_prefix="worker-ends")


class Child(Protocol):
    """A process, however it was started."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None:
        """Ends it; ProcessLookupError if it has ended."""

    async def wait(self) -> int | None:
        """Its exit code, negative for a signal; None if unknown."""


# Gets the descriptors for standard output and error, and the connection's; None: it cannot fork.
Fork: TypeAlias = "Callable[[tuple[int, int], int], Awaitable[Child | None]]"


class LocalProcess:
    """A worker's process, the one that workers are forked from, or the one of a worker on a node.

    ``variables`` are those of ``machine`` without ``hidden`` ones, with its ``own``, and with the mark by
    which its descendants are found; ``threads`` are for numeric libraries, if neither says anything.
    ``outputs`` are the pipes of its standard output and error, once it was started.
    """

    def __init__(
        self, machine: Mapping[str, str], own: Mapping[str, str], hidden: re.Pattern[str] | None, threads: int
    ) -> None:
        self._mark = Mark()
        self.variables = {**worker_variables(machine, hidden, own, threads), **self._mark.variables}
        self.outputs: tuple[int, int]
        self._readers: OutputReaders
        self._child: Child

    async def start(
        self, connection: int, python: str = sys.executable, module: str = WORKER, fork: Fork | None = None
    ) -> None:
        """Forks it if that is possible, else has ``python`` run a module in a new session. Raises OSError.

        It inherits ``connection``, whose number and this process's id are the module's arguments.
        """
        out, err = os.pipe(), os.pipe()
        try:
            child = None if fork is None else await fork((out[1], err[1]), connection)
            self._child = child or await asyncio.create_subprocess_exec(
                *worker_command(python, module),
                str(connection),
                str(os.getpid()),
                # `-m` searches the current directory first, so nobody else may be able to write to it.
                cwd="/",
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=out[1],
                stderr=err[1],
                pass_fds=[connection],
                start_new_session=True,
            )
        except BaseException:
            os.close(out[0])
            os.close(err[0])
            raise
        finally:
            os.close(out[1])
            os.close(err[1])
        self.outputs = out[0], err[0]

    @property
    def pid(self) -> int:
        return self._child.pid

    def read(self, label: str, measured: Measured | None = None) -> None:
        """Starts reading the output; ``label`` names it in the log, ``measured`` gets metrics."""
        self._readers = OutputReaders(measured)
        self._readers.name(label)
        self._readers.attach(self.outputs)

    def last_output(self, lines: int = 20) -> str:
        """The last lines that were read, as one text."""
        return self._readers.last(lines)

    def kill(self) -> None:
        """Ends it without asking."""
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()

    async def exited(self) -> int | None:
        """Waits for its end; returns its exit code, negative for a signal, None if unknown."""
        return await self._child.wait()

    async def end_descendants(self) -> None:
        """Ends what user code left behind, in the ended process's group or elsewhere (F45)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        await asyncio.get_running_loop().run_in_executor(_enders, self._mark.end)

    async def finish(self) -> None:
        """Reads the remaining output of the ended process."""
        await self._readers.finish()

    @staticmethod
    def look_for_kills() -> None:
        """To be called from time to time: older kills were of other processes."""
        kills.look()

    @property
    def for_memory(self) -> bool | None:
        """Whether the system killed it for lack of memory; None if unknown. Call it once."""
        return kills.claim()
