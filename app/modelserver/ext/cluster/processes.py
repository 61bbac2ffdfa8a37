"""Machines that are none: agents as processes of this machine, to try workers on a cluster without one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from modelserver.ext.cluster.placing import NoPlace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.engine.demand import Demand

# Seconds for an agent to end by itself.
_GRACE = 5.0


class ProcessPlacement:
    """The agents' processes of one worker, ``pids``; ``task`` ends with the last."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self._processes = processes
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.gather(*map(self._watch, processes))

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not self.ended.done():
            self.ended.set_result(f"its agent's process ended with {code}")

    def withdraw(self) -> None:
        """Ends the agents, which end their workers."""
        for process in self._processes:
            if process.returncode is None:
                process.terminate()
                asyncio.get_running_loop().call_later(_GRACE, self._kill, process)

    @staticmethod
    def _kill(process: asyncio.subprocess.Process) -> None:
        """The process may be stopped, or hang."""
        if process.returncode is None:
            process.kill()


class ProcessPlacer:
    """Starts agents here, as many as are asked for; ``placements`` are those that may still run.

    Each is a machine of its own; those of one worker that packs its processes are one together.
    """

    def __init__(self) -> None:
        self.placements: list[ProcessPlacement] = []
        self._count = 0

    async def place(self, invitations: Sequence[str], demand: Demand, label: str) -> ProcessPlacement:
        """Starts agents, which read their invitations from a pipe."""
        started: list[asyncio.subprocess.Process] = []
        try:
            for invitation in invitations:
                if not started or demand.placement != "pack":
                    self._count += 1
                started.append(await self._start(invitation, f"process-{self._count}"))
        except BaseException:
            for process in started:
                process.kill()
            raise
        self.placements = [place for place in self.placements if not place.task.done()]
        placement = ProcessPlacement(started)
        self.placements.append(placement)
        return placement

    async def _start(self, invitation: str, node: str) -> asyncio.subprocess.Process:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "modelserver.ext.cluster.node", node, str(os.getpid())),
                cwd="/",
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise NoPlace(f"an agent's process cannot be started: {error}") from error
        assert process.stdin is not None  # noqa: S101 - asked for above
        # The process may have ended already; uvloop raises a RuntimeError then.
        with contextlib.suppress(OSError, RuntimeError):
            process.stdin.write(invitation.encode() + b"\n")
            process.stdin.close()
        return process

    def situation(self) -> str:
        """Nothing: there is always a place."""
        return ""

    async def close(self) -> None:
        for placement in self.placements:
            placement.withdraw()
        if self.placements:
            await asyncio.wait([placement.task for placement in self.placements], timeout=_GRACE + 1.0)
