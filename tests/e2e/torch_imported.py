"""A process that has imported torch, and forks spawners for servers of tests.

From there on a spawner runs as its command does: ``modelserver.ext.forking.fork_server.main``, with its
arguments, directory, environment and output; torch is hidden until it is imported.
"""

import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from modelserver.engine.wire.marks import Mark
from modelserver.ext.forking import fork_server
from modelserver.ext.forking.child import replace_environment, show_command, show_mark
from modelserver.ext.forking.preloading import EARLY_VARIABLE

# Only how often output is written depends on it.
_IGNORED = frozenset({"PYTHONUNBUFFERED"})


class HiddenModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imported modules that are not in ``sys.modules`` until one of them is imported."""

    def __init__(self, names: set[str]) -> None:
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._spec: ModuleSpec | None = None
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, _path: object, _target: object = None) -> ModuleSpec | None:
        """A specification if it is one of them."""
        return importlib.util.spec_from_loader(name, self) if name in self._modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module as it is; all others are there now."""
        module = self._modules[spec.name]
        sys.meta_path.remove(self)
        sys.modules.update(self._modules)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run; the import has replaced its specification."""
        module.__spec__ = self._spec


def main() -> None:
    """Forks a spawner for each connection."""
    gc.disable()
    listener, lease = socket.socket(fileno=int(sys.argv[-2])), int(sys.argv[-1])
    light = set(sys.modules)
    importlib.import_module("torch")
    heavy = set(sys.modules) - light
    gc.collect()
    gc.freeze()
    # The kernel forgets those that have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    early = early_variables(os.environ)
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    poller.register(lease, 0)
    while all(ready == listener.fileno() for ready, _ in poller.poll()):
        connection, _ = listener.accept()
        with connection:
            request, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            if not request:
                continue
            server_pid, environment = json.loads(request)
            fits = early_variables(environment) == early
            pid = os.fork() if fits else 0
            if fits and pid == 0:
                HiddenModules(heavy)
                _become(server_pid, environment, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(str(pid).encode())


def early_variables(environment: Mapping[str, str]) -> dict[str, str]:
    early = {name for name in environment if EARLY_VARIABLE.fullmatch(name) and name not in _IGNORED}
    return {name: environment[name] for name in early}


def _become(server_pid: int, environment: Mapping[str, str], descriptors: Sequence[int]) -> NoReturn:
    """Turns this process into a spawner of that server."""
    control, out, err = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir("/")
    os.dup2(out, 1)
    os.dup2(err, 2)
    replace_environment(environment)
    show_mark(Mark.of(environment))
    show_command(fork_server.__name__, str(control), str(server_pid))
    sys.argv[:] = [fork_server.__file__, str(control), str(server_pid)]
    sys.path[0] = "/"
    fork_server.outlives = outlives
    fork_server.main()
    os._exit(0)


def outlives(server_pid: int) -> bool:
    """As the spawner's, whose parent is its server."""
    try:
        descriptor = os.pidfd_open(server_pid)
    except ProcessLookupError:
        return True
    return bool(select.select([descriptor], [], [], fork_server._FAREWELL)[0])


if __name__ == "__main__":
    main()
