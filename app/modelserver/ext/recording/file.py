"""The file of a recording: a header, then frames that are only ever appended.

The header is ``MSRECORD`` and the version of the format as four bytes. A frame is the length of its content
and the CRC-32 of that, each four bytes, and the content: a zstandard frame with a msgpack list of entries.
All numbers are little-endian. What follows the last whole frame, after a crash or on a full disk, is ignored.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec
import zstandard

from modelserver.errors import ConfigError
from modelserver.ext.recording.entries import Beginning, Call, Ended, Entry, Lost, unpack

FORMAT: Final = 1
_MAGIC: Final = b"MSRECORD"
_HEADER: Final = struct.Struct("<8sI")
_FRAME: Final = struct.Struct("<II")
# Bytes of one frame, before and after compression: more than a server sends.
_LARGEST: Final = 1 << 30


class Writer:
    """Appends frames to a new unbuffered file; after an OSError that ends with its last whole frame."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        # The fastest: the command often shares its processors with the server that it records.
        self._compress = zstandard.ZstdCompressor(level=1).compress
        self._append(_HEADER.pack(_MAGIC, FORMAT))

    def write(self, content: bytes) -> None:
        """Appends a frame of entries in msgpack. Raises OSError."""
        packed = self._compress(content)
        self._append(_FRAME.pack(len(packed), zlib.crc32(packed)) + packed)

    def _append(self, data: bytes) -> None:
        start = self._output.tell()
        try:
            view = memoryview(data)
            while view:
                view = view[self._output.write(bytes(view)) :]
        except OSError:
            with contextlib.suppress(OSError):  # of what is no file
                self._output.truncate(start)
            raise


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole recording: ``calls`` by the time of their arrival. ``fault`` says why the file ends early."""

    began: Beginning | None
    calls: list[Call]
    lost: Lost
    ended: str
    fault: str


class RecordedRequest(NamedTuple):
    """A request of a recording. ``time``: its arrival, in seconds since the recording began; ``path``: with
    its query.
    """

    time: float
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


def requests_of(path: Path) -> Iterator[RecordedRequest]:
    """The requests of a recording, by the time of their arrival. Raises ConfigError as :func:`read` does."""
    yield from map(request_of, read(path).calls)


def request_of(call: Call) -> RecordedRequest:
    """The request of a recorded call."""
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in call.headers)
    return RecordedRequest(call.at / 1e9, call.method.decode("latin-1"), call.target, headers, call.body)


def read(path: Path) -> Recording:
    """Reads a recording up to its last whole frame.

    Raises ConfigError if the file cannot be read, is no recording, or has another version of the format.
    """
    began: Beginning | None = None
    calls: list[Call] = []
    lost, ended = Lost(), ""
    frames = _Frames(path)
    for entry in frames.entries():
        if isinstance(entry, Call):
            calls.append(entry)
        elif isinstance(entry, Lost):
            lost = entry
        elif isinstance(entry, Ended):
            ended = entry.reason
        else:
            began = entry
    calls.sort(key=lambda call: (call.at, call.number))
    return Recording(began, calls, lost, ended, frames.fault)


class _Frames:
    """The frames of a file; ``fault`` says afterwards what is wrong with its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decompress = zstandard.ZstdDecompressor().decompress
        self.fault = ""

    def entries(self) -> Iterator[Entry]:
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._check(file.read(_HEADER.size))
                while content := self._content(file, size):
                    yield from unpack(content)
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror}") from error
        except (msgspec.MsgspecError, zstandard.ZstdError) as error:
            self.fault = f"a frame cannot be read: {error}"

    def _check(self, header: bytes) -> None:
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise ConfigError(f"{self._path}: this is not a recording")
        version = _HEADER.unpack(header)[1]
        if version != FORMAT:
            raise ConfigError(
                f"{self._path}: the recording has version {version} of the format, {FORMAT} is supported; "
                "record it again, or use the modelserver that recorded it"
            )

    def _content(self, file: BinaryIO, size: int) -> bytes:
        head = file.read(_FRAME.size)
        if not head:
            return b""
        length, checksum = _FRAME.unpack(head) if len(head) == _FRAME.size else (size, 0)
        if length > size - file.tell():
            self.fault = "it was cut off in the middle"
            return b""
        packed = file.read(length)
        if zlib.crc32(packed) != checksum:
            self.fault = "the checksum of a frame is wrong"
            return b""
        if zstandard.get_frame_parameters(packed).content_size > _LARGEST:
            self.fault = "a frame is too large"
            return b""
        return self._decompress(packed)
