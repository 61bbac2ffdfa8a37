"""Limits the bytes of requests that are incomplete, or were received by gRPC and not read yet, over all
connections, and gives their memory back once they are gone (F31).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelserver.errors import ServiceUnavailable
from modelserver.surface.http.head import HEADER_LIMIT

if TYPE_CHECKING:
    from modelserver.models.settings.settings import Settings


# Bytes that leave behind memory worth giving back. It is given back once no such bytes have come for some
# seconds, as it would be used again, and after twice, four times ... as long: requests may keep bodies. From
# then on it is given back in equal intervals, as workers that come and go leave gaps between what stays.
MUCH = 4 << 20
_QUIET, _LONGEST = 1.0, 64.0

_libc = ctypes.CDLL(None)


@dataclass(slots=True)
class Intake:
    """Shared by the connections of a process: they hold ``held`` bytes, and at most ``limit``.

    ``largest`` is the size of the largest request.
    """

    limit: int
    held: int = 0
    largest: int = 0
    _much_at: float = 0.0
    _pause: float = 0.0
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, settings: Settings) -> Intake:
        """The server's, with room for at least one request."""
        largest = settings.max_request_size + HEADER_LIMIT
        return cls(max(settings.max_incoming_bytes, largest), largest=largest)

    def share(self, processes: int) -> int:
        """The limit of one of several processes: its share, but room for at least one request."""
        return max(self.limit // processes, self.largest)

    @property
    def is_over(self) -> bool:
        """Whether the connections hold more than they may."""
        return self.held > self.limit

    def refusal(self) -> ServiceUnavailable:
        """The error for what is too much."""
        return ServiceUnavailable(
            f"More than max_incoming_bytes={self.limit} bytes of requests are coming in at this time; "
            "try later."
        )

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Counts ``size`` bytes while in the context. Raises ServiceUnavailable."""
        self.add(size)
        try:
            if self.is_over:
                raise self.refusal()
            yield
        finally:
            self.add(-size)

    def add(self, size: int) -> None:
        """Counts bytes that have come, or of a negative size, that are no longer held."""
        self.held += size
        if max(self.held, self.held - size) >= MUCH:
            self.give_back()

    def freed(self, size: int) -> None:
        """So many bytes are not used any more: memory is given back if they are many."""
        if size >= MUCH:
            self.give_back()

    def give_back(self) -> None:
        """Much memory is used, or was until now: it is to be given back."""
        self._much_at = asyncio.get_running_loop().time()
        if self._timer is None or self._pause > _QUIET:
            self._look_in(_QUIET)

    def _look_in(self, pause: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pause = pause
        self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if self.held >= MUCH or loop.time() < self._much_at + self._pause:
            self._look_in(self._pause)
            return
        # In a thread, as it takes a tenth of a second per gigabyte.
        loop.run_in_executor(None, trim)
        self._look_in(min(2 * self._pause, _LONGEST))


def trim() -> None:
    """Gives freed memory back to the system, which glibc does late or never; others do it themselves."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)
