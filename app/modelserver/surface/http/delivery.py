"""How much of its answers a client has taken, and since when it takes none."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from modelserver.surface.http.sockets import bytes_in_system

if TYPE_CHECKING:
    import asyncio

    from modelserver.surface.http.outgoing import Outgoing

# The share of its answer that a client must take per ``send_timeout``, and the least bytes of it.
SHARE, LEAST_SHARE = 10, 4096


class Delivery:
    """The answers of one connection, on their way to its client; a holder of :class:`Outgoing`.

    ``written``: bytes of all answers so far.
    """

    __slots__ = ("_outgoing", "_share", "_stalled_since", "_taken", "_transport", "_untaken", "written")

    def __init__(self, transport: asyncio.Transport, outgoing: Outgoing) -> None:
        self._transport = transport
        self._outgoing = outgoing
        self.written = 0
        # Bytes that the client had taken at the last progress, when that was, and how many more are progress.
        self._taken = self._share = 0
        self._stalled_since: float | None = None
        # Bytes that are counted: memory is freed when the client has taken the whole answer.
        self._untaken = 0

    def count(self, size: int) -> None:
        """So many bytes wait for the client."""
        if size > self._untaken:
            begins, self._untaken = not self._untaken, size
            if begins:
                self.waited()
            self._outgoing.count(self, size)

    def forget(self) -> None:
        """The client has taken all, or is gone."""
        if self._untaken:
            self._untaken = 0
            self._outgoing.count(self, 0)

    def waited(self) -> float:
        """Seconds since the client last took a share of its answers; counts none that it has taken whole."""
        return self.stalled(self._transport.get_write_buffer_size(), monotonic())

    def stalled(self, unsent: int, now: float) -> float:
        """What :meth:`waited` returns while the transport holds ``unsent`` bytes."""
        if not unsent:
            self._stalled_since = None
            self.forget()
            return 0.0
        # The system takes bytes from the transport in lumps of up to a megabyte: a steady reader would seem
        # to stand still between two of them.
        taken = self.written - unsent - bytes_in_system(self._transport)
        if self._stalled_since is None or abs(taken - self._taken) >= self._share:
            self._taken, self._stalled_since = taken, now
            self._share = max(LEAST_SHARE, unsent // SHARE)
        return now - self._stalled_since

    def cut(self) -> None:
        """Drops what the client has not taken, and its connection."""
        self._transport.abort()
