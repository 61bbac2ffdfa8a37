"""Tensors in shared memory of this machine, registered by name (Triton's shared memory extension).

Nothing stays mapped or open: a client may shorten its memory at any time, and access to a mapping without
memory behind it ends the process. Each use opens the memory by its name, and makes sure that it is still what
was registered.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from modelserver.engine.tensors.weight import TooHeavy
from modelserver.errors import BadRequest, PayloadTooLarge

REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"

# Bytes that are read on the event loop.
LIGHT_SHARED = 8 << 20
_LONGEST = 255


class Region(msgspec.Struct, frozen=True):
    """Bytes ``offset`` to ``offset + size`` of the memory ``key``; ``file`` tells device and inode."""

    name: str
    key: str
    path: str
    offset: int
    size: int
    file: tuple[int, int]

    def part(self, parameters: dict[str, Any], where: str) -> RegionPart:
        """The part that a tensor's parameters name; they are removed. Raises BadRequest."""
        size, offset = parameters.pop(SIZE, None), parameters.pop(OFFSET, 0)
        for name, value in ((SIZE, size), (OFFSET, offset)):
            if type(value) is not int or value < 0:
                raise BadRequest(f"{where}: {name} is {value!r}, a number of bytes is needed")
        if offset + size > self.size:
            raise BadRequest(
                f"{where}: shared memory '{self.name}' has {self.size} bytes, "
                f"which {size} from byte {offset} on exceed"
            )
        return RegionPart(self, offset, size)

    @contextlib.contextmanager
    def opened(self, flags: int) -> Iterator[int]:
        """A descriptor of the whole memory. Raises BadRequest if it is not what was registered."""
        descriptor, status = _open(self.path, flags, f"shared memory '{self.name}'")
        try:
            if (status.st_dev, status.st_ino) != self.file:
                raise BadRequest(f"shared memory '{self.name}': {self.key} is no longer what was registered")
            yield descriptor
        finally:
            os.close(descriptor)


class RegionPart(msgspec.Struct, frozen=True):
    """Bytes ``offset`` to ``offset + size`` of a region, for one tensor."""

    region: Region
    offset: int
    size: int

    def read(self) -> memoryview:
        """A copy of the bytes. Raises BadRequest if the memory has become shorter, or is gone."""
        data = bytearray(self.size)
        view, begin, position = memoryview(data), self.region.offset + self.offset, 0
        with self.region.opened(os.O_RDONLY) as descriptor:
            while position < self.size:
                count = os.preadv(descriptor, [view[position:]], begin + position)
                if not count:
                    raise BadRequest(
                        f"shared memory '{self.region.name}' has become shorter than it was registered with"
                    )
                position += count
        return view

    def write(self, pieces: Sequence[bytes | memoryview], where: str) -> None:
        """Writes an output. Raises BadRequest as :meth:`read`, or if it is too large."""
        size = sum(map(len, pieces))
        if size > self.size:
            raise BadRequest(f"{where}: it has {size} bytes, its part of the shared memory {self.size}")
        position = self.region.offset + self.offset
        with self.region.opened(os.O_WRONLY) as descriptor:
            if os.fstat(descriptor).st_size < position + size:
                raise BadRequest(
                    f"shared memory '{self.region.name}' has become shorter than it was registered with"
                )
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    written = _written(descriptor, left, position, self.region.name)
                    left, position = left[written:], position + written


def _written(descriptor: int, data: memoryview, position: int, name: str) -> int:
    try:
        return os.pwrite(descriptor, data, position)
    except OSError as error:
        raise BadRequest(f"shared memory '{name}' cannot be written: {error.strerror}") from error


class Memory(msgspec.Struct, frozen=True):
    """The registered regions by name, of which the inputs of a request may have ``most`` bytes together.

    ``allowed``: regions may be registered at all.
    """

    regions: Mapping[str, Region] = {}
    most: int = 0
    allowed: bool = False

    def find(self, parameters: dict[str, Any], where: str) -> RegionPart | None:
        """The part that a tensor's parameters name, which are removed; None if they name none.

        Raises BadRequest.
        """
        name = parameters.pop(REGION, None)
        if name is None:
            return None
        self.check_allowed(f"{where}: ")
        region = self.regions.get(name) if isinstance(name, str) else None
        if region is None:
            raise BadRequest(f"{where}: no shared memory is registered as '{str(name)[:_LONGEST]}'")
        return region.part(parameters, where)

    @staticmethod
    def is_named(parameters: Container[str]) -> bool:
        """Whether a tensor's parameters name a part of it."""
        return REGION in parameters

    def read(self, parameters: dict[str, Any], where: str, before: int, *, light: bool) -> memoryview:
        """The bytes of an input whose parameters name them, after ``before`` bytes of others.

        Raises:
            BadRequest: the memory is not what was registered.
            PayloadTooLarge: they are too many together.
            TooHeavy: only if ``light``: reading them would take long.
        """
        part = self.find(parameters, where)
        assert part is not None  # noqa: S101 - the parameters name one
        self.check(before + part.size)
        if light and before + part.size > LIGHT_SHARED:
            raise TooHeavy
        return part.read()

    def check_allowed(self, where: str = "") -> None:
        """Raises BadRequest unless regions may be registered."""
        if not self.allowed:
            raise BadRequest(
                f"{where}shared memory is not allowed: the server's operator has set no shared_memory_prefix"
            )

    def adding(self, name: str, key: str, path: str, offset: int, size: int) -> Memory:
        """Returns a copy with one more region. Raises BadRequest if its memory is not there, or shorter."""
        where = f"shared memory '{name}'"
        descriptor, status = _open(path, os.O_RDWR, where)
        os.close(descriptor)
        if offset + size > status.st_size:
            raise BadRequest(
                f"{where}: {key} has {status.st_size} bytes, which {size} from byte {offset} on exceed"
            )
        region = Region(name, key, path, offset, size, (status.st_dev, status.st_ino))
        return Memory({**self.regions, name: region}, self.most, self.allowed)

    def for_helper(self, body: bytes) -> Memory:
        """Returns a copy for a process that reads this body, without regions (perhaps many) unless the body
        can name one.
        """
        # In JSON, letters may be escaped.
        names = not self.regions or REGION.encode() in body or b"\\u" in body
        return self if names else Memory({}, self.most, self.allowed)

    def check(self, size: int) -> None:
        """Raises PayloadTooLarge for the size of all inputs of a request."""
        if size > self.most:
            raise PayloadTooLarge(
                f"The inputs in shared memory have {size} bytes, max_request_size={self.most} are allowed."
            )


NO_MEMORY = Memory()


class SharedMemory:
    """What requests may name now: ``memory`` is replaced when clients register regions.

    ``allowed``: they may. ``most``: bytes of all inputs of a request.
    """

    def __init__(self, *, allowed: bool, most: int) -> None:
        self.memory = Memory({}, most, allowed)


def _open(path: str, flags: int, where: str) -> tuple[int, os.stat_result]:
    """A descriptor and what it is of. Raises BadRequest unless it is shared memory that may be used."""
    try:
        # A queue would wait for its other end.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadRequest(f"{where} cannot be opened: {reason}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise BadRequest(f"{where} is not shared memory")
    return descriptor, status
