"""Measures how long the event loop is blocked at a time, by how late a timer fires.

Only the loop's own CPU time counts, as timers are also late on a busy machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from modelserver.engine.telemetry.logs import limit_tracebacks

_log = logging.getLogger("modelserver.telemetry")

# Seconds: between checks under load and when idle, the shortest stall counted, and the shortest logged.
EVERY: Final = 0.01
IDLE: Final = 0.05
LEAST: Final = 0.01
LOGGED: Final = 0.1
# Checks without a request after which a loop is idle: in its longer wait, a stall may end unseen.
QUIET: Final = 100


class LoopWatch:
    """Watches the running event loop from :meth:`start` to :meth:`close`.

    ``request`` is the last one that the loop served; as text, its method and route.
    """

    request: object = None

    def start(self, count: Callable[[float], None], whose: str = "the server") -> None:
        """Calls ``count`` with the seconds of each stall of the process, which the log names ``whose``.

        What clients cause on the loop fills no disk: few tracebacks of one place are logged from now on.
        """
        self._count = count
        self._whose = whose
        self._loop = asyncio.get_running_loop()
        self._quiet = 0
        limit_tracebacks()
        self._arm(time.monotonic(), time.thread_time(), EVERY)

    def _arm(self, now: float, used: float, pause: float) -> None:
        self._pause, self._due, self._used = pause, now + pause, used
        self._timer = self._loop.call_later(pause, self._check)

    def _check(self) -> None:
        now, used = time.monotonic(), time.thread_time()
        late = now - self._due
        if late >= LEAST:
            # The stall may have begun before the timer was due.
            self._note(min(late + self._pause, used - self._used))
        self._quiet = self._quiet + 1 if self.request is None else 0
        self.request = None
        self._arm(now, used, IDLE if self._quiet >= QUIET else EVERY)

    def _note(self, held: float) -> None:
        if held < LEAST:
            return
        self._count(held)
        if held >= LOGGED:
            _log.warning(
                "The event loop of %s was blocked for %.0f ms of CPU time; the last request was %s",
                self._whose,
                held * 1e3,
                self.request or "none",
            )

    def close(self) -> None:
        self._timer.cancel()


loop_watch = LoopWatch()
"""A process has one event loop."""
