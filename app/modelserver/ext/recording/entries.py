"""The entries of a recording, as the server sends them and as the file holds them.

Entries are arrays in msgpack whose first item is the kind. They travel in frames, each with a list of
entries: the length of its content as four bytes, little-endian, then the content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

_LENGTH: Final = 4
_TIMING: Final = re.compile(rb"server-timing: queue;dur=([\d.]+)(?:, inference;dur=([\d.]+))?")
_CODE: Final = re.compile(rb"grpc-status: (\d+)")
_BATCH: Final = re.compile(rb"x-batch-id: ([!-~]*)\r\nx-batch-size: (\d+)")


class Beginning(msgspec.Struct, tag="began", array_like=True, frozen=True):
    """The first entry. ``wall``: seconds since 1970; ``models``: empty for all; ``sample``: the share."""

    wall: float
    server: str
    models: list[str]
    headers: list[str]
    sample: float


CALL: Final = "call"


class Call(msgspec.Struct, tag=CALL, array_like=True, frozen=True):
    """A request and its answer.

    ``number`` is the place in the order in which requests were queued, so that of the rows in a batch.
    ``at`` is when it arrived, in nanoseconds since the recording began, ``took`` how long its answer took.
    ``target`` is path and query, ``version`` the one that was named. ``status`` is 0 if the client left
    before the answer. ``lines`` are header lines of the answer: batch and timing. ``parts``: how many parts
    the answer came in, 0 if it came whole; ``complete`` is false for one that broke off.

    Of a call over gRPC, ``method`` is ``gRPC``, ``target`` its path, ``body`` its message, and ``answer``
    the messages as they are sent, each with its prefix, or the text of a failure. ``status`` is the HTTP
    status of the same meaning; the call's own code is in ``lines``.
    """

    number: int
    at: int
    took: int
    method: bytes
    target: str
    model: str | None
    version: str | None
    headers: list[tuple[bytes, bytes]]
    body: bytes
    status: int
    content_type: str
    lines: bytes
    answer: bytes
    parts: int
    complete: bool

    @property
    def batch(self) -> str:
        """The id of its batch, the first one if it was cut; empty if it was in none."""
        return batch_of(self.lines)[0]

    @property
    def batch_size(self) -> int:
        """The instances in its batch, 0 if it was in none."""
        return batch_of(self.lines)[1]

    @property
    def timing(self) -> tuple[float, float]:
        """Milliseconds in the queue and in the handler, 0 where not known."""
        return timing_of(self.lines)


class Lost(msgspec.Struct, tag="lost", array_like=True, frozen=True):
    """Calls that are missing so far: ``full``: the client read too slowly; ``large``: the call was too
    large.
    """

    full: int = 0
    large: int = 0

    def __str__(self) -> str:
        counts = {
            "found the buffer full, as the recording was read too slowly": self.full,
            "were too large": self.large,
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


class Ended(msgspec.Struct, tag="ended", array_like=True, frozen=True):
    """The last entry of a recording that was not cut off; ``reason``: why it ended."""

    reason: str


Entry: TypeAlias = Beginning | Call | Lost | Ended

pack = msgspec.msgpack.Encoder().encode
"""The content of a frame with these entries."""
unpack = msgspec.msgpack.Decoder(list[Entry]).decode
"""The entries of a frame. Raises msgspec.MsgspecError."""
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode = msgspec.msgpack.Decoder(Entry).decode
_CALL: Final = pack(CALL)
_START: Final = 8  # bytes: the head of an entry's list, and its kind


def unpack_others(content: bytes) -> tuple[int, list[Entry]]:
    """How many calls a frame has, which are not decoded, and its other entries.

    Raises msgspec.MsgspecError.
    """
    entries = _split(content)
    others = [entry for entry in entries if _CALL not in memoryview(entry)[:_START].tobytes()]
    return len(entries) - len(others), [_decode(entry) for entry in others]


def timing_of(lines: bytes) -> tuple[float, float]:
    """Milliseconds in the queue and in the handler, from header lines of a response; 0 where they are
    missing.
    """
    match = _TIMING.search(lines)
    return (float(match[1]), float(match[2] or 0)) if match else (0.0, 0.0)


def code_of(lines: bytes) -> int | None:
    """The code of a call over gRPC, None for other requests."""
    match = _CODE.search(lines)
    return int(match[1]) if match else None


def lines_of_call(code: int, others: str = "") -> bytes:
    """The recorded lines of a call's head and trailers; ``others`` are those about batch and timing."""
    return f"grpc-status: {code}\r\n{others}".encode("latin-1")


def batch_of(lines: bytes) -> tuple[str, int]:
    """Id and size of the batch, from header lines of a response; of the first one if it was cut, an empty id
    and 0 if they are missing.
    """
    match = _BATCH.search(lines)
    return (match[1].decode("ascii"), int(match[2])) if match else ("", 0)


def framed(content: bytes) -> bytes:
    """The frame that is sent."""
    return len(content).to_bytes(_LENGTH, "little") + content


def framed_list(entries: Sequence[bytes]) -> bytes:
    """The frame of entries that are encoded already; copies them once."""
    head = b"\xdd" + len(entries).to_bytes(4, "big")
    size = len(head) + sum(map(len, entries))
    return b"".join((size.to_bytes(_LENGTH, "little"), head, *entries))


class Frames:
    """Splits received bytes into frames."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Adds bytes; returns the content of each frame that they complete."""
        received = self._received
        received += data
        frames: list[bytes] = []
        start = 0
        while len(received) - start >= _LENGTH:
            end = start + _LENGTH + int.from_bytes(received[start : start + _LENGTH], "little")
            if end > len(received):
                break
            frames.append(bytes(received[start + _LENGTH : end]))
            start = end
        del received[:start]
        return frames
