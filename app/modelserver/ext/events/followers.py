"""Those who wait for the next event."""

from __future__ import annotations

import asyncio
import contextlib


class Followers:
    """Any number of tasks; ``loop`` runs them, and :meth:`wake` may be called in any thread."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closed = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_called = False

    def next_event(self) -> asyncio.Future[None]:
        """Done when there is a new event from now on, or all streams are to end."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.closed:
            waiting.set_result(None)
        else:
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)
        return waiting

    def wake(self) -> None:
        """There is a new event; a storm wakes once in a turn of the loop."""
        if self.loop is None or self._is_called:
            return
        self._is_called = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_called = False
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_result(None)

    def close(self) -> None:
        """Ends all streams."""
        self.closed = True
        self._wake()
