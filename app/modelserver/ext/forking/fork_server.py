"""A process that has imported what handlers need, and forks workers: ``... SOCKET_FD SERVER_PID``.

Importing torch takes seconds and hundreds of megabytes; a fork takes milliseconds and shares the memory. To
make forks safe, this process runs no user code, has one thread, never uses an accelerator and holds no
descriptors but its own. It checks this before each fork, and otherwise refuses.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from modelserver.engine.wire.marks import Mark
from modelserver.ext.forking import messages
from modelserver.ext.forking.child import Birth, become_worker
from modelserver_handlers import BUILT_IN

# Seconds within which a server that closed the connection ends, if it is going to.
_FAREWELL = 5.0
# The modules that a spawned worker has also loaded before importing its handler.
_LIGHT = frozenset(sys.modules)


class Unfit(Exception):
    """This process must not fork the worker; the message says why."""


class ForkServer:
    """Takes requests from the server, forks, and reports how its children end."""

    def __init__(self, control: socket.socket, server_pid: int) -> None:
        self._control = control
        self._server_pid = server_pid
        self._children: dict[int, int] = {}
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        self._broken = ""
        self._pid = os.getpid()

    def serve(self) -> Birth | None:
        """Returns None when the server is gone, and the parameters in each forked child."""
        while True:
            for ready, _ in self._poller.poll():
                if ready in self._children:
                    self._report(ready)
                    continue
                received = messages.receive_request(self._control)
                if received is None:
                    return None
                birth = self._answer(*received)
                if birth is not None:
                    return birth

    def _answer(self, request: messages.ToSpawner, descriptors: list[int]) -> Birth | None:
        try:
            self._prepare(request)
            if isinstance(request, messages.Prepare):
                self._send(messages.ModulesImported())
                return None
            check_fitness({self._control.fileno(), *self._children, *descriptors})
            return self._fork(request, descriptors)
        except (Unfit, OSError) as error:
            self._send(messages.ForkRefused(str(error)))
            return None
        finally:
            # Only in the parent: the child needs them.
            if os.getpid() == self._pid:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _prepare(self, request: messages.ToSpawner) -> None:
        if self._broken:
            raise Unfit(self._broken)
        if own := shadowed(Path(request.model_dir)):
            raise Unfit(f"the model has modules of its own named {', '.join(own)}")
        short = request.handler.removeprefix("modelserver_handlers.")
        built_in = BUILT_IN.get(short) if short == request.handler else short
        modules = [*request.modules, *([f"modelserver_handlers.{built_in}"] if built_in else [])]
        missing = [name for name in modules if name not in sys.modules]
        if not missing:
            return
        try:
            for name in missing:
                module = importlib.import_module(name)
                # Else each worker would import it when it loads.
                if name.startswith("modelserver_handlers.") and hasattr(module, "preload"):
                    module.preload()
        except Exception as error:
            # A package may be partly loaded now.
            self._broken = f"{type(error).__name__} while importing {', '.join(missing)}: {error}"
            raise Unfit(self._broken) from error
        # The collector would write to every object, which would unshare the pages.
        gc.collect()
        gc.freeze()
        if own := shadowed(Path(request.model_dir)):
            raise Unfit(f"the model has modules of its own named {', '.join(own)}")

    def _fork(self, request: messages.Spawn, descriptors: list[int]) -> Birth | None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            return Birth(request, descriptors, [self._control.detach(), *self._children], self._server_pid)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        self._poller.register(pidfd, select.POLLIN)
        self._send(messages.Spawned(pid), [pidfd])
        return None

    def _report(self, pidfd: int) -> None:
        """Ends the rest of the worker's process group while the group's id is still its own (F45)."""
        pid = self._children.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if end is not None:
            self._send(
                messages.ChildEnded(pid, end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)
            )

    def _send(self, report: messages.FromSpawner, descriptors: list[int] | None = None) -> None:
        # The server may be gone; the next turn notices.
        with contextlib.suppress(OSError):
            messages.send(self._control, report, descriptors)


def shadowed(model_dir: Path) -> list[str]:
    """The model's own modules that would not be imported, as others of the same names are loaded."""
    try:
        entries = list(model_dir.iterdir())
    except OSError:
        return []
    own = {entry.name.partition(".")[0] for entry in entries if entry.suffix in {".py", ".pyc", ".so"}}
    own |= {entry.name for entry in entries if (entry / "__init__.py").is_file()}
    return sorted(own & (sys.modules.keys() - _LIGHT))


def check_fitness(known: set[int]) -> None:
    """Raises :class:`Unfit` unless this process has one thread, only ``known`` descriptors, and no device."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise Unfit(f"the imports have started {threads - 1} threads")
    if strange := open_descriptors() - known - {0, 1, 2}:
        raise Unfit(f"the imports hold the descriptors {sorted(strange)}")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise Unfit("the imports have begun to use CUDA")


def open_descriptors() -> set[int]:
    """The descriptors that this process holds."""
    listed = {int(name) for name in os.listdir("/proc/self/fd")}
    return {number for number in listed if _is_open(number)}


def _is_open(descriptor: int) -> bool:
    """False for the one that listed them."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def outlives(server_pid: int) -> bool:
    """Waits for the end of the parent, whose connection is closed; False if it lives on without this."""
    end = time.monotonic() + _FAREWELL
    while os.getppid() == server_pid and time.monotonic() < end:
        time.sleep(0.01)
    return os.getppid() != server_pid


def main() -> None:
    """Serves until the server is gone, then ends what workers left behind; in a child, runs the worker."""
    server_pid = int(sys.argv[2])
    # They are meant for the server. Workers handle them again.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()
    control = socket.socket(fileno=int(sys.argv[1]))
    # Accidentally inherited; uvloop leaves copies of the standard streams.
    for stray in open_descriptors() - {0, 1, 2, control.fileno()}:
        os.close(stray)
    birth = ForkServer(control, server_pid).serve()
    if birth is not None:
        become_worker(birth)
    if outlives(server_pid):
        Mark.of(os.environ).end_all()
    # Skips finalization, which would take a second.
    os._exit(0)


if __name__ == "__main__":
    main()
