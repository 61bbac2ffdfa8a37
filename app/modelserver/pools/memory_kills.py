"""Whether a worker that was killed was killed for want of memory.

The kernel counts such kills per control group, and does not say whom they hit. All workers are in the group
of the server: a kill that was counted shortly before a worker was seen to have ended by SIGKILL is taken for
its end, once. Kills on the machine, but outside of the group, do not count.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from modelserver.resources import memory_kills

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds from a kill, at most, until the end of the process has been noticed.
NOTICED = 10.0


class MemoryKills:
    """Attributes kills to workers. Where none are counted it cannot.

    Args:
        count: kills so far, None where nobody counts.
        clock: seconds.
    """

    def __init__(
        self,
        count: Callable[[], int | None] = memory_kills,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = count
        self._clock = clock
        # Kills that are some other process's: those counted before, and those counted some time before that.
        self._latest = self._before = count()
        self._looked = clock()

    def look(self) -> None:
        """For now and then: kills that were counted, and that no worker has claimed since, were others."""
        now = self._clock()
        if now - self._looked >= NOTICED:
            self._before, self._latest, self._looked = self._latest, self._count(), now

    def claim(self) -> bool | None:
        """Whether the worker that was just found killed was killed for memory; None if that is not known."""
        self.look()
        count = self._count()
        if count is None or self._before is None:
            return None
        if count <= self._before:
            return False
        self._before += 1
        return True


kills = MemoryKills()
