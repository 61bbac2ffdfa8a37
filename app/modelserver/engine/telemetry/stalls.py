"""Measures how long the event loop is blocked at a time, by how late a timer fires.

Only the loop's own CPU time counts, as timers are also late on a busy machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

_log = logging.getLogger("modelserver.telemetry")

# Seconds: between checks under load and when idle, the shortest stall counted, and the shortest logged.
EVERY: Final = 0.01
IDLE: Final = 0.05
LEAST: Final = 0.01
LOGGED: Final = 0.1
# Checks without a request after which a loop is idle: in its longer wait, a stall may end unseen.
QUIET: Final = 100


class LastRequest:
    """The last request the loop served; as text, its method and route."""

    request: object = None


served = LastRequest()
"""A process has one event loop."""


class LoopWatch:
    """Watches the running loop until it is closed.

    Args:
        count: called with the seconds of each stall.
        whose: the process, as the log names it.
    """

    def __init__(self, count: Callable[[float], None], whose: str = "the server") -> None:
        self._count = count
        self._whose = whose
        self._loop = asyncio.get_running_loop()
        self._quiet = 0
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
        self._quiet = self._quiet + 1 if served.request is None else 0
        served.request = None
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
                served.request or "none",
            )

    def close(self) -> None:
        self._timer.cancel()
