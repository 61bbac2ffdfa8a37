"""Whether the event loop has time to spare for work of low priority.

A loop that always has something to do answers fewer requests for whatever else it does. Time in which it
waits for a processor counts as well: then no core is free.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds between looks, and the share of time from which a loop has none to spare.
EVERY = 0.1
BUSY = 0.8
_SCHEDULED = Path("/proc/thread-self/schedstat")


def seconds_busy() -> float:
    """Seconds for which this thread has run or waited for a processor."""
    try:
        ran, waited, _ = _SCHEDULED.read_bytes().split()
        return (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):
        return time.thread_time()


class Spare:
    """Of the running thread's loop.

    Args:
        clock: seconds.
        busy_seconds: the seconds for which the loop had something to do so far.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, busy_seconds: Callable[[], float] = seconds_busy
    ) -> None:
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._since, self._before = clock(), busy_seconds()
        # As of the last look.
        self.busy = False

    def left(self) -> bool:
        """Whether there is time for one piece of work; of a busy loop, for one at each look."""
        now = self._clock()
        if (passed := now - self._since) < EVERY:
            return not self.busy
        busy_seconds = self._busy_seconds()
        self.busy = busy_seconds - self._before >= BUSY * passed
        self._since, self._before = now, busy_seconds
        return True
