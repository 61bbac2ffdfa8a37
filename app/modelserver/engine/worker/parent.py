"""Makes a worker die with its server, even if user code never returns."""

from __future__ import annotations

import ctypes
import os
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


def _watch(server_pid: int) -> None:
    while os.getppid() == server_pid:
        time.sleep(1.0)
    os._exit(1)
