"""A helper process: ``python -m modelserver.engine.offload CONNECTION_FD MEMORY``.

Performs one call at a time, within ``MEMORY`` bytes of address space and the CPU time of the call; ends after
being idle for a while, or when the server is gone.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
import time
import traceback

import msgspec

from modelserver.engine.offload.calls import CallEnded, HelperClosed, OffloadCall, perform, receive, send
from modelserver.errors import ModelServerError

IDLE = 60.0  # seconds

_decode = msgspec.msgpack.Decoder(OffloadCall).decode


def serve(connection: socket.socket) -> None:
    """Performs calls until the connection is closed or idle."""
    with contextlib.suppress(HelperClosed, OSError):
        while True:
            call = _decode(receive(connection))
            _limit_cpu(call.seconds)
            send(connection, _ended(call))
            del call


def _ended(call: OffloadCall) -> CallEnded:
    try:
        return perform(call)
    except ModelServerError as error:
        return CallEnded(error=type(error).__name__, text=error.message[: 1 << 16])
    except MemoryError:
        return CallEnded(error=MemoryError.__name__)
    except Exception:  # noqa: BLE001 - the server logs it
        return CallEnded(error="", text=traceback.format_exc())


def _limit_cpu(seconds: float) -> None:
    """Limits the CPU time from now on; the kernel kills a process that exceeds it."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, hard))


def main() -> None:
    """The process."""
    descriptor, memory = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with socket.socket(fileno=descriptor) as connection:
        connection.settimeout(IDLE)
        serve(connection)
