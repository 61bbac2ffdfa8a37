"""Frames as bytes: what :mod:`modelserver.engine.wire.messages` looks like on a socket.

The bytes of large rows may lie in an arena instead; the frame has their place (u64) where they would be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from modelserver.engine.wire.arena import LARGE, IncomingHalf, OutgoingHalf, ProtocolError
from modelserver.engine.wire.messages import MAX_FRAME, PREFIX, Parts, Predict, Result, ToServer, ToWorker

_encoder = msgspec.msgpack.Encoder()
to_server_decoder = msgspec.msgpack.Decoder(ToServer)
to_worker_decoder = msgspec.msgpack.Decoder(ToWorker)

_JOIN_LIMIT = 1 << 16
_PLACE = struct.Struct("<Q")
# Bytes missing of a frame from which they are received where they belong. More than a TLS record.
_DIRECT = 1 << 16

MessageT = TypeVar("MessageT")


def encode(
    message: msgspec.Struct, bodies: Sequence[bytes] = (), arena: OutgoingHalf | None = None
) -> list[bytes]:
    """The pieces of one frame, to be written together; small ones arrive as one piece.

    Large bodies are written into the arena, if there is one and it has room.

    Raises:
        ProtocolError: the frame would not fit its length field (4 GiB).
    """
    head = _encoder.encode(message)
    # Most often one.
    tail = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
    size = len(head) + tail + 4
    if size > MAX_FRAME:
        raise ProtocolError(f"a frame of {size} bytes is over the limit of {MAX_FRAME}")
    if tail >= LARGE and arena is not None and (place := arena.put(bodies, tail)) is not None:
        size = len(head) + _PLACE.size + 4
        return [b"".join((PREFIX.pack(size, len(head)), head, _PLACE.pack(place)))]
    prefix = PREFIX.pack(size, len(head))
    if tail <= _JOIN_LIMIT:
        return [b"".join((prefix, head, *bodies))]
    return [prefix + head, *bodies]


def announced(message: object) -> int:
    """The size of the rows after the head, according to the message."""
    total = 0
    if isinstance(message, (Result, Parts)):
        for answer in message.answers:
            total += answer.size
    elif isinstance(message, Predict):
        for row in message.rows:
            total += row.size
    return total


class FrameReader(Generic[MessageT]):
    """Turns received bytes into messages; keeps what is incomplete.

    Args:
        decoder: decodes the messages to this side.
        limit: maximum bytes of a frame.

    ``arena`` may hold large rows; None: there is no arena.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT], limit: int = MAX_FRAME) -> None:
        self._decoder = decoder
        self._limit = limit
        self.arena: IncomingHalf | None = None
        self._pending = bytearray()
        self._needed = 0
        # A large frame that is received in place, how much of it there is, and the memory for such frames.
        self._frame: memoryview | None = None
        self._filled = 0
        self._spare = bytearray()

    def allow(self, limit: int) -> None:
        """Sets the maximum bytes of a frame."""
        self._limit = limit

    def trim(self) -> None:
        """Gives back the memory that is kept for the next large frame; for idle times."""
        self._spare = bytearray()

    def room(self) -> memoryview | None:
        """Where the rest of a large incomplete frame belongs; None: receive elsewhere, and feed it."""
        if self._frame is None:
            if self._needed - len(self._pending) < _DIRECT:
                return None
            if len(self._spare) < self._needed:
                self._spare = bytearray(self._needed)
            self._frame, self._filled = memoryview(self._spare)[: self._needed], len(self._pending)
            self._frame[: self._filled] = self._pending
            self._pending = bytearray()
        left = len(self._frame) - self._filled
        return self._frame[self._filled :] if left >= _DIRECT else None

    def filled(self, count: int) -> Iterator[tuple[MessageT, memoryview]]:
        """Yields messages as :meth:`feed` does, of ``count`` bytes that were received into :meth:`room`."""
        self._filled += count
        return self.feed(b"")

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[MessageT, memoryview]]:
        """Yields each complete message with the bytes after its head.

        The memory view is valid until the next message is requested.

        Raises:
            ProtocolError: for anything else than a frame; the connection is unusable afterwards.
        """
        if self._frame is not None:
            return self._fill(self._frame, data)
        buffer: bytes | bytearray | memoryview = data
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed:
                return iter(())
            # The old buffer is handed out as views: a new one collects what follows.
            buffer, self._pending = self._pending, bytearray()
        return self._read(buffer)

    def _fill(self, frame: memoryview, data: bytes | memoryview) -> Iterator[tuple[MessageT, memoryview]]:
        missing = len(frame) - self._filled
        frame[self._filled : self._filled + len(data)] = data[:missing]
        self._filled += min(missing, len(data))
        if self._filled < len(frame):
            return
        self._frame = None
        yield from self._read(frame)
        yield from self._read(data[missing:])

    def _read(self, buffer: bytes | bytearray | memoryview) -> Iterator[tuple[MessageT, memoryview]]:
        self._needed = 0
        position, available = 0, len(buffer)
        view = memoryview(buffer)
        # Messages refer to parts of their head: it is copied if its memory will be used again.
        is_permanent = isinstance(buffer, bytes)
        while available - position >= PREFIX.size:
            size, head = PREFIX.unpack_from(buffer, position)
            if size > self._limit or head + 4 > size:
                raise ProtocolError(f"no frame: {size} bytes announced, {head} of them a head")
            end = position + 4 + size
            if end > available:
                self._needed = end - position
                break
            start = position + PREFIX.size
            try:
                encoded = view[start : start + head]
                message = self._decoder.decode(encoded if is_permanent else bytes(encoded))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(f"no message: {error}") from error
            tail = view[start + head : end]
            if len(tail) == announced(message):
                yield message, tail
            else:
                yield from self._from_arena(message, tail)
            position = end
        if position < available:
            self._pending += view[position:]

    def _from_arena(self, message: MessageT, tail: memoryview) -> Iterator[tuple[MessageT, memoryview]]:
        """The message with its rows from the arena; the frame only has their place."""
        size = announced(message)
        if self.arena is None or len(tail) != _PLACE.size or size < LARGE:
            raise ProtocolError(f"{len(tail)} bytes of rows came, {size} were announced")
        if size > self._limit:
            raise ProtocolError(f"no frame: {size} bytes of rows announced, {self._limit} are allowed")
        (place,) = _PLACE.unpack(tail)
        rows = self.arena.take(place, size)
        try:
            yield message, rows
        finally:
            self.arena.free(place)
