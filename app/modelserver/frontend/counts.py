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


class Board:
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

    def close(self) -> None:
        self._map.close()


def make_board(seats: int) -> tuple[int, Board]:
    """A board with empty seats, and the descriptor of its memory. Raises OSError."""
    descriptor = _anonymous_file()
    os.ftruncate(descriptor, mmap.PAGESIZE)
    board = Board(descriptor, seats)
    for seat in range(seats):
        board.leave(seat)
    return descriptor, board


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("modelserver-board")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
