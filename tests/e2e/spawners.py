"""Spawners of servers of tests, forked from a process that has imported torch: the import is two thirds of
the time of a test whose model needs it. See :mod:`tests.e2e.torch_imported`.

Spawners that are started from nothing are tested by ``test_worker_start.py``, and wherever a server gets an
environment of its own.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from modelserver.engine.pools.interpreter import WORKER
from modelserver.engine.pools.local_process import Fork, LocalProcess
from modelserver.engine.pools.variables import worker_variables
from modelserver.engine.wire.marks import MARK, new_mark
from modelserver.ext.forking.spawner import _spawner_threads

_MODULE = "modelserver.ext.forking.fork_server"
# The command of a spawner and of its workers is written over that of this process, which may not be shorter.
_ROOM = "0" * 64
_PATIENCE = 120.0


def address_for(pid: int) -> str:
    """Where spawners are requested from the process that ``pid``, which has imported the server, starts."""
    return f"\0modelserver-spawners-{pid}"


def listening(address: str) -> socket.socket:
    result = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    result.bind(address)
    result.listen(64)
    return result


def start_on(listener: socket.socket, lease: int) -> subprocess.Popen[bytes]:
    """Starts the process; it ends when the other end of the pipe ``lease`` is closed."""
    # Its mark is none: each spawner overwrites it with its own.
    own = {**_spawner_threads(), MARK: "-" * len(new_mark())}
    environment = worker_variables(os.environ, None, own, 1)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.torch_imported", _ROOM, str(listener.fileno()), str(lease)],
        env=environment,
        pass_fds=[listener.fileno(), lease],
        stdin=subprocess.DEVNULL,
    )


class Spawned:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._end)

    def _end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._ended.set()

    def kill(self) -> None:
        """Ends it; ProcessLookupError if it has ended."""
        if self._ended.is_set():
            raise ProcessLookupError
        signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def wait(self) -> None:
        await self._ended.wait()


def fork_spawners(address: str) -> None:
    """From now on the spawners of this process are requested at the address."""
    start = LocalProcess.start

    async def start_forked(
        self: LocalProcess,
        connection: int,
        python: str = sys.executable,
        module: str = WORKER,
        fork: "Fork | None" = None,
    ) -> None:
        async def fork_spawner(outputs: tuple[int, int], connection: int) -> Spawned | None:
            pid = await asyncio.to_thread(_request, address, self.variables, [connection, *outputs])
            return Spawned(pid) if pid else None

        await start(self, connection, python, module, fork_spawner if module == _MODULE else fork)

    LocalProcess.start = start_forked  # type: ignore[method-assign]


def _request(address: str, environment: Mapping[str, str], descriptors: list[int]) -> int:
    """The id of a new spawner; 0 if it must be started from nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(address)
        request = json.dumps([os.getpid(), dict(environment)]).encode()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(request))
        socket.send_fds(connection, [request], descriptors)
        return int(connection.recv(16) or b"0")
