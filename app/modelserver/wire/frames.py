"""Frames as bytes: what :mod:`modelserver.wire.messages` looks like on a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from modelserver.wire.messages import MAX_FRAME, PREFIX, Predict, Result, ToServer, ToWorker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_encoder = msgspec.msgpack.Encoder()
to_server_decoder = msgspec.msgpack.Decoder(ToServer)
to_worker_decoder = msgspec.msgpack.Decoder(ToWorker)

_JOIN_LIMIT = 1 << 16

MessageT = TypeVar("MessageT")


class ProtocolError(Exception):
    """The peer sent something that is no frame."""


def encode(message: ToWorker | ToServer, bodies: Sequence[bytes] = ()) -> list[bytes]:
    """The pieces of one frame, to be written together; small ones arrive as one piece.

    Raises:
        ProtocolError: the frame would not fit its length field (4 GiB).
    """
    head = _encoder.encode(message)
    tail = sum(map(len, bodies))
    size = len(head) + tail + 4
    if size > MAX_FRAME:
        raise ProtocolError(f"a frame of {size} bytes is over the limit of {MAX_FRAME}")
    prefix = PREFIX.pack(size, len(head))
    if tail <= _JOIN_LIMIT:
        return [b"".join((prefix, head, *bodies))]
    return [prefix + head, *bodies]


def announced(message: object) -> int:
    """The bytes that a message says its rows have behind the head."""
    total = 0
    if isinstance(message, Result):
        for answer in message.answers:
            total += answer.size
    elif isinstance(message, Predict):
        for row in message.rows:
            total += row.size
    return total


class FrameReader(Generic[MessageT]):
    """Turns received bytes into messages; keeps what is incomplete.

    Args:
        decoder: of the messages this side receives.
        limit: bytes a frame may have.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT], limit: int = MAX_FRAME) -> None:
        self._decoder = decoder
        self._limit = limit
        self._pending = bytearray()
        self._needed = 0

    def feed(self, data: bytes) -> Iterator[tuple[MessageT, memoryview]]:
        """Yields each complete message with the bytes behind its head.

        The memory view is valid until the next message is asked for.

        Raises:
            ProtocolError: for anything that is no frame; the connection is unusable afterwards.
        """
        buffer: bytes | bytearray = data
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed:
                return
            # The old buffer is handed out as views: a new one collects what follows.
            buffer, self._pending = self._pending, bytearray()
        self._needed = 0
        position, available = 0, len(buffer)
        view = memoryview(buffer)
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
                message = self._decoder.decode(view[start : start + head])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(f"no message: {error}") from error
            tail = view[start + head : end]
            if len(tail) != announced(message):
                raise ProtocolError(f"{len(tail)} bytes of rows came, {announced(message)} were announced")
            yield message, tail
            position = end
        if position < available:
            self._pending += view[position:]
