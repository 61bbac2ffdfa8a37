"""Finds out whether a killed worker was killed for lack of memory.

The kernel counts such kills per control group, without saying which process was killed. All workers are in
the server's group: a kill counted shortly before a worker was found to have ended by SIGKILL is attributed to
it, once. Kills outside the group do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from modelserver.engine.resources import memory_kills

# The most seconds between a kill and noticing the end of the process.
NOTICED = 10.0


class MemoryKills:
    """Attributes kills to workers. ``count`` returns the kills so far, None if they are not counted."""

    def __init__(
        self, count: Callable[[], int | None] = memory_kills, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._clock = clock
        # Kills of other processes: as last counted, and as counted before that.
        self._latest = self._before = count()
        self._looked = clock()

    def look(self) -> None:
        """To be called from time to time: older kills that no worker has claimed were of other processes."""
        now = self._clock()
        if now - self._looked >= NOTICED:
            self._before, self._latest, self._looked = self._latest, self._count(), now

    def claim(self) -> bool | None:
        """Whether a worker just found killed was killed for memory; None if unknown."""
        self.look()
        count = self._count()
        if count is None or self._before is None:
            return None
        if count <= self._before:
            return False
        self._before += 1
        return True


kills = MemoryKills()
