"""Either end of the socket between the server and a front end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, cast

from modelserver.engine.wire.arena import Arena, ProtocolError
from modelserver.ext.frontends.messages import LARGE, FrameError, Message, MessageT, Turn, TurnReader

if TYPE_CHECKING:
    import msgspec


_log = logging.getLogger("modelserver.frontend")

_SOCKET_BUFFER = 1 << 20  # bytes
_TRIM_SECONDS = 5.0


class Link(asyncio.Protocol, Generic[MessageT]):
    """Sends and receives messages; all that are sent in one turn of the loop are one write.

    Large bodies use shared memory once there is an :attr:`arena`, or the socket if it has no room.

    Args:
        decoder: decodes the other side's messages.
        on_message: called with each message and its body.
        on_lost: called once, when the other side is gone.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[list[MessageT]],
        on_message: Callable[[MessageT, bytes], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._reader: TurnReader[MessageT] = TurnReader(decoder, self._fetch)
        self._on_message: Callable[[MessageT, bytes], None] = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._turn = Turn()
        self._flush_is_due = False
        self.arena: Arena | None = None
        self._trimming: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message, body in self._reader.feed(data):
                self._on_message(message, body)
        except (FrameError, ProtocolError):
            _log.exception("The link between server and front end carried invalid data")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._trimming is not None:
            self._trimming.cancel()
        arena, self.arena = self.arena, None
        if arena is not None:
            arena.close()
        self._on_lost()

    def send(self, message: Message, body: bytes = b"") -> None:
        """Queues a message; it is dropped if the other side is gone."""
        place = self._store(body) if len(body) >= LARGE else None
        self._turn.add(message, body, place=place)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def _store(self, body: bytes) -> int | None:
        if self.arena is None:
            return None
        if self._trimming is None:
            self._trimming = self._loop.call_later(_TRIM_SECONDS, self._trim)
        return self.arena.outgoing.put([body], len(body))

    def _fetch(self, place: int, size: int) -> bytes:
        if self.arena is None:
            raise ProtocolError("there is no shared memory")
        incoming = self.arena.incoming
        body = bytes(incoming.take(place, size))
        incoming.free(place)
        return body

    def _trim(self) -> None:
        """Returns unused shared memory to the system."""
        self._trimming = None
        if self.arena is not None:
            self.arena.trim()

    def flush(self) -> None:
        self._flush_is_due = False
        pieces = self._turn.take()
        if self._transport is None or self._transport.is_closing():
            return
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif pieces:
            self._transport.writelines(pieces)

    @property
    def unsent(self) -> int:
        """Bytes that the other side has not read yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Closes the connection after everything is written."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets for a link."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in ends:
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
    return ends
