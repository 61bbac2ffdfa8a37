"""Machines that are none: agents as processes of this machine, to try workers on a cluster without one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from modelserver.pools.spec import NoPlace

if TYPE_CHECKING:
    from modelserver.demand import Demand

_log = logging.getLogger("modelserver.workers")

# Seconds for an agent to end by itself.
_GRACE = 5.0


class ProcessPlacement:
    """An agent's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._watch())

    @property
    def pid(self) -> int:
        """That of the agent."""
        return self._process.pid

    async def _watch(self) -> None:
        code = await self._process.wait()
        self.ended.set_result(f"its agent's process ended with {code}")

    def withdraw(self) -> None:
        """Ends the agent, which ends its worker."""
        if self._process.returncode is None:
            self._process.terminate()
            asyncio.get_running_loop().call_later(_GRACE, self._kill)

    def _kill(self) -> None:
        """It may be stopped, or hang."""
        if self._process.returncode is None:
            self._process.kill()


class ProcessPlacer:
    """Starts agents here, as many as are asked for; ``placements`` are those that may still run."""

    def __init__(self) -> None:
        self.placements: list[ProcessPlacement] = []
        self._count = 0

    async def place(self, invitation: str, demand: Demand, label: str) -> ProcessPlacement:
        """Starts an agent, which reads its invitation from a pipe."""
        self._count += 1
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "modelserver.node", f"process-{self._count}", str(os.getpid())),
                cwd="/",
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise NoPlace(f"an agent's process cannot be started: {error}") from error
        assert process.stdin is not None  # noqa: S101 - asked for above
        # It may have ended already; uvloop says so by a RuntimeError.
        with contextlib.suppress(OSError, RuntimeError):
            process.stdin.write(invitation.encode() + b"\n")
            process.stdin.close()
        self.placements = [place for place in self.placements if not place.ended.done()]
        placement = ProcessPlacement(process)
        self.placements.append(placement)
        return placement

    def situation(self) -> str:
        """Nothing: there is always a place."""
        return ""

    async def close(self) -> None:
        """Ends all agents."""
        for placement in self.placements:
            placement.withdraw()
        if self.placements:
            await asyncio.wait([placement.task for placement in self.placements], timeout=_GRACE + 1.0)
