"""Accepts a front end's connections from a listening socket that it shares with the others.

Why one socket and not one for each with ``SO_REUSEPORT``: waiting connections belong to no process, so none
is lost when a front end ends, regularly or not; no other process can bind the address; and the kernel would
distribute by the client's port, which is uneven for the few, long-lived connections of clients and load
balancers. Here a front end accepts one connection at a time, and one that has more than another waits a
moment first, which keeps them balanced.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from modelserver.surface.tls.context import tls_arguments

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from modelserver.ext.frontends.counts import ConnectionCounts

_log = logging.getLogger("modelserver.frontend")

# Seconds that others get to accept a connection first, and until the next attempt after an error.
COURTESY = 0.001
_PAUSE = 0.5


class Acceptor:
    """Accepts connections and creates protocols for them.

    Args:
        listener: bound, shared, non-blocking.
        counts: the numbers of connections; ``seat`` is this front end's.
        make: creates the protocol of one connection.
        tls: None for connections without TLS.
    """

    def __init__(
        self,
        listener: socket.socket,
        counts: ConnectionCounts,
        seat: int,
        make: Callable[[], asyncio.Protocol],
        tls: SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._counts = counts
        self._seat = seat
        self._make = make
        self._tls = tls_arguments(tls)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # The fewest connections that another had when this one let it go first; -1: it did not.
        self._gave_way_to = -1
        self.connections = 0  # accepted and not ended

    def open(self) -> None:
        self._counts.put(self._seat, self.connections)
        self._watch()

    def close(self) -> None:
        if self.is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._counts.leave(self._seat)

    def left(self) -> None:
        self.connections -= 1
        if not self.is_closed:
            self._counts.put(self._seat, self.connections)

    @property
    def is_closed(self) -> bool:
        return self._listener.fileno() < 0

    def _watch(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._on_waiting)

    def _on_waiting(self) -> None:
        fewest = self._counts.fewest()
        # It waits again if the others have accepted some meanwhile: on a busy machine they need more time.
        if self.connections > fewest > self._gave_way_to:
            self._gave_way_to = fewest
            self._wait(COURTESY)
            return
        self._gave_way_to = -1
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Descriptors may have run out (F38); try again later.
            _log.error("No connection can be accepted: %s", error.strerror or error)
            self._wait(_PAUSE)
            return
        self.connections += 1
        self._counts.put(self._seat, self.connections)
        task = self._loop.create_task(self._take(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(seconds, self._watch)

    async def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._make, connection, **self._tls)
        except OSError:
            # The client has already disconnected.
            connection.close()
            self.left()
