"""Memory that the server and one worker share, for the bytes of large frames.

A socket pair transfers a large body in many small writes and reads, each a context switch. A body in an arena
is written by one system call, and only its place is sent in the frame. There is one in-memory file per
worker, half of it for each direction; unused parts take no memory.

The writer of a half allocates blocks in it, each with a header whose first byte marks it as in use. The
reader clears that byte when done, and the writer checks it when it needs room; no messages are needed for
that. If there is no room, bytes are sent through the socket: nobody ever waits.

A worker cannot harm the server through the memory. The file is sealed against changes of its size, and the
server accesses it by system calls, which fail where access to mapped memory would crash it. Places are
checked, and copied bytes can no longer change. Workers map the memory, which is faster.

At the end are two numbers. The worker writes how many batches it has begun, which remains readable after its
end, however it ended, so that the server knows which were never begun. The server writes up to where it takes
batches back: those with a smaller sequence that have not begun must no longer begin.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import fcntl
import mmap
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Sequence

# Bytes of rows from which the arena is used; below it, a copy through the socket costs less.
LARGE = 1 << 17
# Bytes of each direction.
HALF = 1 << 26

_PAGE = 4096
# Where the numbers are; in separate cache lines, as different processes write them.
_STARTED = 2 * HALF
_RECALLED = _STARTED + 64
# Bytes of the file.
SIZE = _STARTED + _PAGE
_NUMBER = struct.Struct("=Q")
# Seconds until a worker's write is visible to all CPUs, with a large margin.
_VISIBLE = 5e-5
# Its size does not change, and neither does this.
_SEALS = (
    getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)
)
_DESCRIPTOR = re.compile(r"/proc/[0-9]+/fd/[0-9]+")
_FULL = b"\1" + bytes(63)
_FREE = b"\0"
_MAX_PIECES = 512
# Programs that a worker starts must not inherit the memory.
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class ProtocolError(Exception):
    """The peer sent something other than a frame, or named a place that is not within its half."""


class _Half:
    """``size`` bytes of the file from ``base``."""

    def __init__(self, descriptor: int, base: int, size: int = HALF) -> None:
        self._descriptor = descriptor
        self._base = base
        self._size = size


class IncomingHalf(_Half):
    """The half that the other side writes."""

    def take(self, place: int, size: int) -> memoryview:
        """The ``size`` bytes of a block, valid until it is freed. Raises ProtocolError."""
        raise NotImplementedError

    def free(self, place: int) -> None:
        """Lets the other side use the block again."""
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, _FREE, self._base + place)

    def trim(self) -> None:
        """Gives back what is kept for the next block, if anything is."""

    def _checked(self, place: int, size: int) -> int:
        """Where the bytes of a block begin. Raises ProtocolError."""
        start = place + len(_FULL)
        if place < 0 or place % _PAGE or start + size > self._size:
            raise ProtocolError(f"no block: {size} bytes at {place}")
        return start


class OutgoingHalf(_Half):
    """The half that this side writes. Not thread-safe.

    This is the server's side, by system calls.
    """

    def __init__(self, descriptor: int, base: int, size: int = HALF) -> None:
        super().__init__(descriptor, base, size)
        self._blocks: list[tuple[int, int]] = []
        self._used = 0

    def put(self, pieces: Sequence[bytes], size: int) -> int | None:
        """Writes pieces of ``size`` bytes in all; returns their place, or None if there is no room."""
        room = -(-(len(_FULL) + size) // _PAGE) * _PAGE
        place = self._gap(room)
        if place is None:
            return None
        end = place + room
        try:
            self._write(place, end, [_FULL, *pieces])
        except OSError:
            # Memory is short, or files may not be as large as this.
            return None
        finally:
            self._used = max(self._used, end)
        bisect.insort(self._blocks, (place, end))
        return place

    def _write(self, place: int, end: int, pieces: Sequence[bytes]) -> None:
        """Writes the pieces one after another. Raises OSError if there is no memory for them."""
        position = self._base + place
        for start in range(0, len(pieces), _MAX_PIECES):
            some = pieces[start : start + _MAX_PIECES]
            written = os.pwritev(self._descriptor, some, position)
            if written != sum(map(len, some)):
                raise OSError("no memory is left")
            position += written

    def trim(self) -> None:
        """Gives the memory back to the system if no block is in use."""
        if not self._used:
            return
        self._forget_free()
        if self._blocks:
            return
        with contextlib.suppress(OSError), mmap.mmap(self._descriptor, self._size, offset=self._base) as half:
            half.madvise(mmap.MADV_REMOVE)
            self._used = 0

    def _gap(self, room: int) -> int | None:
        """The lowest free place: what was used before is still in the processor's cache."""
        self._forget_free()
        position = 0
        for start, end in self._blocks:
            if start - position >= room:
                return position
            position = end
        return position if self._size - position >= room else None

    def _forget_free(self) -> None:
        self._blocks = [b for b in self._blocks if os.pread(self._descriptor, 1, self._base + b[0]) != _FREE]


class MappedOutgoing(OutgoingHalf):
    """The worker's side. The memory is mapped when the first block is written."""

    _view: memoryview | None = None

    def _write(self, place: int, end: int, pieces: Sequence[bytes]) -> None:
        if end > self._used:
            # Without memory this raises an error, where writing below would crash the process.
            os.posix_fallocate(self._descriptor, self._base + self._used, end - self._used)
        if self._view is None:
            self._view = memoryview(mmap.mmap(self._descriptor, self._size, offset=self._base))
        position = place
        for piece in pieces:
            self._view[position : position + len(piece)] = piece
            position += len(piece)


class CopiedIncoming(IncomingHalf):
    """The server's side: blocks are copied, so later changes by the worker have no effect."""

    def __init__(self, descriptor: int, base: int, size: int = HALF) -> None:
        super().__init__(descriptor, base, size)
        self._copy = bytearray()

    def take(self, place: int, size: int) -> memoryview:
        start = self._checked(place, size)
        if len(self._copy) < size:
            self._copy = bytearray(size)
        view = memoryview(self._copy)[:size]
        try:
            taken = os.preadv(self._descriptor, [view], self._base + start)
        except OSError as error:
            raise ProtocolError(f"a block cannot be read: {error}") from error
        if taken != size:
            raise ProtocolError(f"a block of {size} bytes has only {taken}")
        return view

    def trim(self) -> None:
        self._copy = bytearray()


class MappedIncoming(IncomingHalf):
    """The worker's side: blocks are read in place. The memory is mapped when the first one comes."""

    _view: memoryview | None = None

    def take(self, place: int, size: int) -> memoryview:
        start = self._checked(place, size)
        if self._view is None:
            self._view = memoryview(
                mmap.mmap(self._descriptor, self._size, prot=mmap.PROT_READ, offset=self._base)
            )
        return self._view[start : start + size]


class Arena:
    """One side's view of the shared memory. It owns ``descriptor``."""

    def __init__(self, descriptor: int, outgoing: OutgoingHalf, incoming: IncomingHalf) -> None:
        self.descriptor = descriptor
        self.outgoing = outgoing
        self.incoming = incoming

    @classmethod
    def create(cls, *, trusting: bool = False) -> Arena | None:
        """A new arena as the server sees it, or None where the system has no such memory.

        ``trusting``: the other side runs no user code, so what it writes is read in place. It takes a few
        system calls and no memory: the system allocates pages when they are written.
        """
        if sys.platform != "linux":
            return None
        try:
            descriptor = os.memfd_create("modelserver", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return None
        try:
            os.ftruncate(descriptor, SIZE)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:
            os.close(descriptor)
            return None
        arena = cls._of_server(descriptor)
        if trusting:
            arena.incoming = MappedIncoming(descriptor, HALF)
        return arena

    @classmethod
    def open(cls, path: str) -> Arena:
        """An arena that another process of this user created, as the server sees it.

        ``path`` is below /proc. Raises OSError if there is none.
        """
        if not _DESCRIPTOR.fullmatch(path):
            raise OSError(f"{path} is no descriptor of a process")
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            is_arena = (
                os.fstat(descriptor).st_size == SIZE and fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == _SEALS
            )
        except OSError:
            is_arena = False
        if not is_arena:
            os.close(descriptor)
            raise OSError(f"{path} is no memory for sharing")
        return cls._of_server(descriptor)

    @classmethod
    def adopt(cls, descriptor: int) -> Arena:
        """An arena that the server created, as its worker sees it."""
        return cls(descriptor, MappedOutgoing(descriptor, HALF), MappedIncoming(descriptor, 0))

    @classmethod
    def receive(cls, connection: socket.socket, size: int) -> tuple[bytes, Arena | None]:
        """At most ``size`` of the first bytes of a connection, and the arena that came beside them."""
        # Not socket.recv_fds, which ignores its flags (Python 3.11).
        descriptors = array.array("i")
        data, ancillary, _, _ = connection.recvmsg(size, socket.CMSG_SPACE(descriptors.itemsize), _FLAGS)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: descriptors.itemsize])
        return data, cls.adopt(descriptors[0]) if descriptors else None

    @staticmethod
    def send(connection: socket.socket, data: bytes, arena: Arena | None) -> None:
        """Sends the first bytes of a new connection, and the arena beside them.

        Raises:
            OSError: they do not fit into the connection's buffer, or it is closed.
        """
        descriptors = [arena.descriptor] if arena is not None else []
        if socket.send_fds(connection, [data], descriptors) != len(data):
            raise OSError("the first message does not fit into the connection's buffer")

    @classmethod
    def _of_server(cls, descriptor: int) -> Arena:
        return cls(descriptor, OutgoingHalf(descriptor, 0), CopiedIncoming(descriptor, HALF))

    def duplicate(self) -> Arena:
        """Opens the server's view of the same memory again; it stays when this one is closed."""
        return self._of_server(os.dup(self.descriptor))

    def batches_started(self) -> int:
        """How many batches the worker has begun. Raises OSError."""
        (count,) = _NUMBER.unpack(os.pread(self.descriptor, _NUMBER.size, _STARTED))
        return int(count)

    def recall(self, sequence: int) -> int:
        """Takes back what the worker has not begun of batches below ``sequence``; returns how many it has
        begun.

        Raises OSError.
        """
        os.pwrite(self.descriptor, _NUMBER.pack(sequence), _RECALLED)
        # A worker that has not seen this has already written that it begins, which is read below.
        time.sleep(_VISIBLE)
        return self.batches_started()

    def turns(self) -> Turns:
        """Opens the worker's side of the record that says whether worker or server has a batch."""
        return Turns(mmap.mmap(self.descriptor, _PAGE, offset=_STARTED))

    def trim(self) -> None:
        """Gives back unused memory; for idle times."""
        self.outgoing.trim()
        self.incoming.trim()

    def close(self) -> None:
        """Releases the memory; it is freed when the other side has, too."""
        os.close(self.descriptor)


class Turns:
    """The worker's side of deciding who has a batch: the worker once it has begun it, otherwise the server.

    Each side writes its number before reading the other's, so that at most one takes a batch. If both write
    at the same moment neither does, and the worker reports it.
    """

    def __init__(self, page: mmap.mmap) -> None:
        view = memoryview(page)
        self._started = view[: _NUMBER.size].cast("Q")
        self._recalled = view[_RECALLED - _STARTED :][: _NUMBER.size].cast("Q")

    def begin(self, sequence: int) -> bool | None:
        """Whether the worker may begin the batch; None: no, and the server may not know."""
        if self._started[0] > sequence:
            return True
        if self._recalled[0] > sequence:
            return False
        self._started[0] = sequence + 1
        return None if self._recalled[0] > sequence else True
