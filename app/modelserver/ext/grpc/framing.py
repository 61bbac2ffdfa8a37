"""Messages in the body of a call: each has a flag, a length and its bytes (gRPC over HTTP/2)."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from typing import Final

from modelserver.ext.grpc.statuses import StatusCode

# The method of requests over gRPC, for those who watch them.
GRPC: Final = b"gRPC"
PREFIX = 5
# Smaller pieces are joined, as a piece has some bytes of its own.
_SMALL = 4096
# For zlib: the largest window, and the format around the data.
_BITS = {"gzip": 31, "deflate": 15}
# Bytes that are unpacked on the event loop.
_AT_ONCE = 64 << 10


def message_framed(message: bytes) -> bytes:
    """A message of gRPC as it is sent."""
    return b"\0%b%b" % (len(message).to_bytes(4, "big"), message)


class CallRefused(Exception):
    """A message that is not served: what the call ends with."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Inbox:
    """Takes a body in pieces and gives its messages; ``held`` is how many bytes it has."""

    __slots__ = ("_at", "_flag", "_largest", "_length", "_pieces", "held")

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._pieces: deque[bytes] = deque()
        # Offset of the next byte to read from the first piece.
        self._at = 0
        self.held = 0
        # Flag and length of the next message, once its prefix has come.
        self._flag = 0
        self._length: int | None = None

    def add(self, piece: bytes) -> None:
        if not piece:
            return
        self.held += len(piece)
        if self._pieces and len(self._pieces[-1]) + len(piece) <= _SMALL:
            self._pieces[-1] += piece
        else:
            self._pieces.append(piece)

    @property
    def is_complete(self) -> bool:
        """Whether a whole message is here. Raises CallRefused if it is too large, or not one."""
        if self._length is None:
            if self.held < PREFIX:
                return False
            prefix = self._cut(PREFIX)
            self._flag, self._length = prefix[0], int.from_bytes(prefix[1:], "big")
        if self._flag > 1:
            raise CallRefused(StatusCode.INTERNAL, f"A message has the unknown flags {self._flag}.")
        if self._length > self._largest:
            text = f"Received message larger than max ({self._length} vs. {self._largest})"
            raise CallRefused(StatusCode.RESOURCE_EXHAUSTED, text)
        return self.held >= self._length

    @property
    def is_partial(self) -> bool:
        """Whether a message has begun to come, and is not whole. Raises as :attr:`is_complete`."""
        return (self._length is not None or self.held > 0) and not self.is_complete

    @property
    def has_more(self) -> bool:
        """Whether anything follows on a complete message."""
        return self._length is not None and self.held > self._length

    def next(self) -> tuple[int, bytes]:
        """The flag and the bytes of a complete message."""
        length, self._length = self._length or 0, None
        return self._flag, self._cut(length)

    def clear(self) -> None:
        self._pieces.clear()
        self._at = self.held = 0
        self._length = None

    def _cut(self, size: int) -> bytes:
        """The first bytes, as many as are here at least."""
        self.held -= size
        parts: list[bytes] = []
        while size:
            first = self._pieces[0]
            part = first[self._at : self._at + size]
            parts.append(part)
            size -= len(part)
            self._at += len(part)
            if self._at == len(first):
                self._pieces.popleft()
                self._at = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


async def unpacked(message: bytes, encoding: str, largest: int) -> bytes:
    """A message without its compression; large ones are unpacked in a thread. Raises CallRefused."""
    bits = _BITS.get(encoding)
    if encoding == "identity":
        raise CallRefused(StatusCode.INTERNAL, "A message is compressed, and the call does not say how.")
    if bits is None:
        raise CallRefused(StatusCode.UNIMPLEMENTED, f"Messages cannot be compressed by {encoding!r}.")
    unpacker = zlib.decompressobj(bits)
    try:
        plain = unpacker.decompress(message, min(_AT_ONCE, largest + 1))
        if unpacker.unconsumed_tail and len(plain) <= largest:
            rest, most = unpacker.unconsumed_tail, largest + 1 - len(plain)
            plain += await asyncio.to_thread(unpacker.decompress, rest, most)
    except zlib.error as error:
        text = f"The message cannot be decompressed: {error}"
        raise CallRefused(StatusCode.INTERNAL, text) from error
    if len(plain) > largest:
        text = f"Received message larger than max (decompressed, more than {largest})"
        raise CallRefused(StatusCode.RESOURCE_EXHAUSTED, text)
    if not unpacker.eof:
        raise CallRefused(StatusCode.INTERNAL, "The compressed message ends too early.")
    return plain
