"""Starts observed workers, and receives what they report."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from typing import TYPE_CHECKING

import msgspec

from modelserver.engine.pools.interpreter import worker_command
from modelserver.engine.wire.probing import PROBE, Called, Report, Reported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelserver.engine.pools.spec import WorkerSpec

_MODULE = "modelserver.tools.doctor.worker"
_LARGEST = 1 << 20  # bytes of a report
_decode = msgspec.msgpack.Decoder(Report).decode


class ObservedWorkers:
    """What a pool uses instead of its spawner. ``loads`` and ``calls`` are the reports so far, in order."""

    def __init__(self) -> None:
        self.loads: list[Reported] = []
        self.calls: list[Called] = []
        self._sockets: list[socket.socket] = []

    async def spawn(
        self, spec: WorkerSpec, environment: Mapping[str, str], outputs: tuple[int, int], connection: int
    ) -> asyncio.subprocess.Process:
        """Starts an observed worker as the pool starts others. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LARGEST)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
            self._sockets.append(ours)
            return await asyncio.create_subprocess_exec(
                *(*worker_command(spec.python, _MODULE), str(connection), str(os.getpid())),
                cwd="/",
                env={**environment, PROBE: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                pass_fds=[connection, theirs.fileno()],
                start_new_session=True,
            )

    def read(self) -> None:
        """Receives what has been reported; what belongs to an answer was sent before the answer."""
        for each in self._sockets:
            while (report := _receive(each)) is not None:
                if isinstance(report, Reported):
                    self.loads.append(report)
                else:
                    self.calls.append(report)

    def close(self) -> None:
        """No more is received."""
        for each in self._sockets:
            each.close()


def _receive(reports: socket.socket) -> Report | None:
    try:
        data = reports.recv(_LARGEST)
    except OSError:
        return None
    return _decode(data) if data else None
