"""The server's end of the connection to one worker on another machine."""

from __future__ import annotations

import asyncio
import socket

from modelserver.engine.pools.channel import FrameChannel
from modelserver.engine.pools.spec import Receiver
from modelserver.engine.wire.arena import Arena

# One for the connections of all workers: what has been received is taken before anything else is read.
_SMALL = memoryview(bytearray(1 << 18))


class RemoteChannel(FrameChannel, asyncio.BufferedProtocol):
    """A channel on a network connection: large frames are received where they belong, without a copy.

    ``connected`` is set when the worker has connected.
    """

    def __init__(self, receiver: Receiver, limit: int) -> None:
        super().__init__(receiver, limit)
        self._is_direct = False
        self.connected: asyncio.Future[None] = self._loop.create_future()

    def share(self, memory: str) -> None:
        """Uses the arena at this place, for a worker on this machine. Raises OSError."""
        if not memory:
            return
        arena = self._arena = Arena.open(memory)
        self._outgoing_arena, self._reader.arena = arena.outgoing, arena.incoming

    @property
    def is_local(self) -> bool:
        """Whether the worker is on this machine."""
        connection = None if self._transport is None else self._transport.get_extra_info("socket")
        return connection is not None and connection.family == socket.AF_UNIX

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.connected.done():
            self.connected.set_result(None)

    def _trim(self) -> None:
        super()._trim()
        self._reader.trim()

    def connection_lost(self, exc: Exception | None) -> None:
        # A worker that is killed, or its machine, does not close the connection in good order.
        super().connection_lost(None if isinstance(exc, OSError) else exc)
        # One with TLS keeps its protocol's methods for ever.
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._reader.room()
        self._is_direct = room is not None
        return _SMALL if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        self._take(reader.filled(nbytes) if self._is_direct else reader.feed(_SMALL[:nbytes]))
