"""Work of the event loop that gives way to other work."""

from __future__ import annotations

import asyncio
import time
from typing import Final

# Seconds at a stretch; then the event loop does other work.
STRETCH: Final = 0.004


class Stopwatch:
    """Counts the processor seconds of work that gives way now and then."""

    def __init__(self) -> None:
        self._before = 0.0
        self._began = time.thread_time()

    @property
    def total(self) -> float:
        """The seconds so far."""
        return self._before + time.thread_time() - self._began

    async def give_way(self) -> None:
        """Lets the event loop do other work if it has not for some milliseconds."""
        if time.thread_time() - self._began > STRETCH:
            self._before = self.total
            await asyncio.sleep(0)
            self._began = time.thread_time()
