"""The number of connections of each front end, in a page of shared memory.

The kernel wakes every front end for a connection that waits at their common listener; by these numbers, the
one with the fewest can go first.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile

_SEAT = struct.Struct("=I")
ABSENT = (1 << 32) - 1
MAX_SEATS = mmap.PAGESIZE // _SEAT.size


class ConnectionCounts:
    """The numbers of ``seats`` front ends, in the file ``descriptor``."""

    def __init__(self, descriptor: int, seats: int) -> None:
        self._map = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._all = struct.Struct(f"={seats}I")
        self.seats = seats

    def put(self, seat: int, connections: int) -> None:
        """Sets the number of connections of the front end in this seat."""
        _SEAT.pack_into(self._map, seat * _SEAT.size, connections)

    def leave(self, seat: int) -> None:
        """Marks the seat as empty, so that the others do not wait for it."""
        self.put(seat, ABSENT)

    def fewest(self) -> int:
        """The smallest number of connections that a front end has."""
        numbers: tuple[int, ...] = self._all.unpack_from(self._map)
        return min(numbers)

    def of(self, seat: int) -> int:
        """The number of connections of the front end in this seat, 0 if it is empty."""
        (number,) = _SEAT.unpack_from(self._map, seat * _SEAT.size)
        return 0 if number == ABSENT else int(number)

    def close(self) -> None:
        self._map.close()


def make_counts(seats: int) -> tuple[int, ConnectionCounts]:
    """The counts of seats that are all empty, and the descriptor of their memory. Raises OSError."""
    descriptor = _anonymous_file()
    os.ftruncate(descriptor, mmap.PAGESIZE)
    counts = ConnectionCounts(descriptor, seats)
    for seat in range(seats):
        counts.leave(seat)
    return descriptor, counts


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("modelserver-counts")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
