"""The server's end of the socket to one worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import cast

from modelserver.engine.pools.spec import Receiver
from modelserver.engine.wire.arena import Arena, ProtocolError
from modelserver.engine.wire.frames import FrameReader, encode, to_server_decoder
from modelserver.engine.wire.messages import Ping, ToServer, ToWorker


class FrameChannel(asyncio.BaseProtocol):
    """Sends and receives frames; how bytes are received is up to subclasses.

    Args:
        receiver: of the worker's messages.
        limit: bytes of a frame from the worker; a longer one closes the connection.
        arena: memory shared with the worker, closed with the connection.
    """

    def __init__(self, receiver: Receiver, limit: int, arena: Arena | None = None) -> None:
        self.on_message = receiver.on_message
        self._on_lost = receiver.on_lost
        self._reader: FrameReader[ToServer] = FrameReader(to_server_decoder, limit)
        self._arena = arena
        self._outgoing_arena = arena.outgoing if arena is not None else None
        self._reader.arena = arena.incoming if arena is not None else None
        self._transport: asyncio.Transport | None = None
        self._reason: str | None = None
        self._loop = asyncio.get_running_loop()
        self._outgoing: list[bytes] = []
        self._flush_is_due = False
        self._gone: asyncio.Future[None] = self._loop.create_future()

    def allow(self, limit: int) -> None:
        """Changes the limit for the worker's frames, in bytes."""
        self._reader.allow(limit)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def _take(self, messages: Iterator[tuple[ToServer, memoryview]]) -> None:
        """Handles what has been received."""
        # Messages sent while handling these are flushed together below.
        self._flush_is_due = True
        try:
            for message, tail in messages:
                self.on_message(message, tail)
        except ProtocolError as error:
            self._reason = str(error)
            self.close()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        arena, self._arena, self._outgoing_arena, self._reader.arena = self._arena, None, None, None
        if arena is not None:
            arena.close()
        if not self._gone.done():
            self._gone.set_result(None)
        # A process that was killed with messages unread resets its connection, which is an end like others.
        self._on_lost(self._reason or (None if exc is None or isinstance(exc, ConnectionError) else str(exc)))

    async def finish(self, patience: float) -> None:
        """Waits up to ``patience`` seconds until everything the ended worker sent has been read."""
        await asyncio.wait([self._gone], timeout=patience)
        self.close()

    def send(self, message: ToWorker, bodies: Sequence[bytes] = ()) -> None:
        """Queues one frame, dropped if the connection is lost; those of one loop turn share a write."""
        self._outgoing += encode(message, bodies, self._outgoing_arena)
        if not bodies and isinstance(message, Ping):
            # Only idle workers are pinged.
            self._trim()
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _trim(self) -> None:
        """Gives back memory that is kept for the next large frame."""
        if self._arena is not None:
            self._arena.trim()

    def _flush(self) -> None:
        self._flush_is_due = False
        if not self._outgoing:
            return
        pieces, self._outgoing = self._outgoing, []
        if self._transport is None or self._transport.is_closing():
            return
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)

    def close(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()


class Channel(FrameChannel, asyncio.Protocol):
    """A channel on a socket pair."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # A transport whose write fails, as the worker has died, drops what has not been read before.
        self._rest = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))

    def connection_lost(self, exc: Exception | None) -> None:
        with self._rest as rest, contextlib.suppress(OSError):
            while exc is not None and (data := rest.recv(1 << 18)):
                self.data_received(data)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._take(self._reader.feed(data))
