"""Servers forked from a process that has imported the server: the imports are two thirds of a start.

From there on a server runs as the command does: ``modelserver.__main__.main`` in a main thread, with its
arguments, directory, environment and output. Starts from nothing are tested by ``test_command.py``, and
wherever a server gets an environment or a Python of its own.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tests.e2e import forked_helpers, spawners

# This includes modules that a server imports only while it starts or, like gRPC, if they are on.
_ROOMS = "run.server run.listeners surface.api.app engine.telemetry.logs"
_EXTENSIONS = """
    autoscaling collector console docs events files forking grpc openai packages parking paths snapshots
    workflows
"""
_OF_EXTENSIONS = """
    docs.page events.routes files.layout grpc.server openai.routes parking.routes recording.routes
    repository.routes repository.rpcs rollout.routes snapshots.extension triton.routes triton.rpcs
    workflows.archive workflows.routes workflows.run workflows.workflows
"""
_IMPORTED = (
    "uvloop",
    "modelserver.__main__",
    *(f"modelserver.{name}" for name in _ROOMS.split()),
    *(f"modelserver.ext.{name}.extension" for name in _EXTENSIONS.split()),
    *(f"modelserver.ext.{name}" for name in _OF_EXTENSIONS.split()),
    "pynvml",
    "pydantic.v1",
    "uvicorn.lifespan.off",
)
# The command of a helper is written over that of this process, which may not be shorter.
_ROOM = "0" * 16


class Forked:
    """A server's process, with what tests use of :class:`subprocess.Popen`."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = end

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; TimeoutExpired if it still lives after this many seconds."""
        if self.returncode is None:
            # select would not do, as tests have thousands of descriptors.
            looking = select.poll()
            looking.register(self._end, select.POLLIN)
            if not looking.poll(None if timeout is None else timeout * 1000):
                assert timeout is not None
                raise subprocess.TimeoutExpired("modelserver", timeout)
            self.returncode = int(self._end.recv(16))
            self._end.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Preloaded:
    """The process that has imported the server; it ends when this object is gone."""

    def __init__(self, root: Path) -> None:
        self._lock = threading.Lock()
        self._control, peer = socket.socketpair()
        with peer:
            # The command recognises a server by the part "modelserver" of its name.
            command = [sys.executable, "-m", "tests.e2e.preloaded", "modelserver", _ROOM, str(peer.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=[peer.fileno()],
                cwd=root,
                env={**os.environ, "PYTHONPATH": os.pathsep.join((f"{root}/app", f"{root}/handlers"))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def start(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], output: int
    ) -> Forked:
        """Starts the command with these arguments; ``output`` is the descriptor that it prints to."""
        # Each number is a message of its own.
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps([list(arguments), str(folder), dict(environment)]).encode()
        with peer, self._lock:
            self._control.sendall(len(request).to_bytes(4, "big"))
            socket.send_fds(self._control, [b"."], [output, peer.fileno()])
            self._control.sendall(request)
        return Forked(int(ours.recv(16)), ours)

    def end(self) -> None:
        self._control.close()
        self._process.wait()


def main() -> None:
    """Forks a server for each request on the socket whose number is the last argument."""
    gc.disable()
    for module in _IMPORTED:
        importlib.import_module(module)

    gc.freeze()
    gc.enable()
    control = socket.socket(fileno=int(sys.argv[-1]))
    ends: dict[int, tuple[int, socket.socket]] = {}
    waiting = [spawners.listening(spawners.address_for(os.getpid()))]
    helpers = spawners.listening(forked_helpers.address_for(os.getpid()))
    # As long as its other end is open, the process that forks spawners lives.
    lease, _end_of_lease = os.pipe()
    while True:
        for ready in select.select([control, helpers, *waiting, *ends], [], [])[0]:
            if ready in waiting:
                spawners.start_on(waiting.pop(), lease)
                os.close(lease)
                continue
            if ready in ends:
                pid, end = ends.pop(ready)
                _tell(end, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                end.close()
                os.close(ready)
                continue
            if ready is helpers:
                connection, _ = helpers.accept()
                with connection:
                    request, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 2)
                become = forked_helpers.become
            else:
                size = control.recv(4, socket.MSG_WAITALL)
                if not size:
                    return
                _, descriptors, _, _ = socket.recv_fds(control, 1, 2)
                request = control.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
                become = _become
            if not request:
                continue
            pid = os.fork()
            if pid == 0:
                become(*json.loads(request), descriptors[0])
            end = socket.socket(fileno=descriptors[1])
            os.close(descriptors[0])
            ends[os.pidfd_open(pid)] = pid, end
            _tell(end, pid)


def _tell(end: socket.socket, number: int) -> None:
    """Writes to the process that started the server, which may be gone."""
    with contextlib.suppress(OSError):
        end.send(str(number).encode())


def _become(arguments: list[str], folder: str, environment: dict[str, str], output: int) -> NoReturn:
    from modelserver.__main__ import main as command
    from modelserver.ext.forking.child import leave

    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 1024)
    os.chdir(folder)
    spawners.fork_spawners(spawners.address_for(os.getppid()))
    forked_helpers.fork_helpers(forked_helpers.address_for(os.getppid()), Forked)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    tempfile.tempdir = None
    sys.argv[1:] = arguments
    sys.path[0] = folder
    leave(lambda: sys.exit(command(arguments)))


if __name__ == "__main__":
    main()
