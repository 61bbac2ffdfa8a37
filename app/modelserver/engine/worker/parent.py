"""Makes a worker die with its server, even if user code never returns."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1


def die_with(server_pid: int) -> None:
    """Arranges for this process to end once the process ``server_pid``, its parent, is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The server may have died before the call above.
        if os.getppid() != server_pid:
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(server_pid,), daemon=True).start()


def die_when_closed(pipe: int) -> None:
    """Arranges for this process to end once the other end of the pipe is closed.

    For workers whose parent is not the server. The kernel sends SIGKILL when the state of the pipe changes;
    nothing is ever written to it. Linux only.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    # It may have been closed before the call above.
    poller = select.poll()
    poller.register(pipe, 0)
    if poller.poll(0):
        os._exit(1)


def _watch(server_pid: int) -> None:
    while os.getppid() == server_pid:
        time.sleep(1.0)
    os._exit(1)
