"""Helper processes of servers of tests, forked from the process that has imported the server: imports are
nearly all that one does before its first call.

Helpers that are started from nothing are tested by ``tests/engine/offload``, by campaigns, and wherever a
server is not forked.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from modelserver.engine.offload import helpers, process
from modelserver.ext.forking.child import leave, replace_environment, show_command

# Bytes of address space with which the imports of the whole server do not matter.
_ENOUGH = 1 << 29


def address_for(pid: int) -> str:
    """Where helpers are requested from the process ``pid``."""
    return f"\0modelserver-helpers-{pid}"


def fork_helpers(address: str, forked: Callable[[int, socket.socket], Any]) -> None:
    """From now on the helpers of this process are requested there; ``forked`` makes a process of its id and
    of the socket that brings how it ends.
    """
    start = helpers._Helper.__init__

    def start_forked(self: Any, memory: int) -> None:
        if memory < _ENOUGH:
            start(self, memory)
            return
        self._connection, helper_end = socket.socketpair()
        ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps([os.getpid(), memory, dict(os.environ)]).encode()
        with helper_end, peer, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(address)
            socket.send_fds(connection, [request], [helper_end.fileno(), peer.fileno()])
        self.process = forked(int(ours.recv(16)), ours)

    helpers._Helper.__init__ = start_forked  # type: ignore[method-assign]


def become(server_pid: int, memory: int, environment: Mapping[str, str], connection: int) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    os.dup2(connection, 3)
    os.closerange(4, 1024)
    replace_environment(environment)
    sys.argv[:] = [process.__file__, "3", str(memory)]
    sys.path[0] = "/"
    show_command("modelserver.engine.offload", "3", str(server_pid))
    leave(process.main)
