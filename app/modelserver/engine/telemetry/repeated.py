"""Limits tracebacks in the log that clients may cause, so that they cannot fill a disk."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Tracebacks from one place in the code that are logged within so many seconds.
MOST, SECONDS = 5, 60.0
# The loggers of what handles connections and requests; asyncio reports errors of protocols.
LOGGERS = ("asyncio", "modelserver.api", "modelserver.frontend", "modelserver.grpc")


class FewTracebacks(logging.Filter):
    """Drops records whose traceback has been logged often enough; the next one says how many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # By place: the time of the first one, and how many there were since.
        self._counts: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        trace = record.exc_info[2] if record.exc_info else None
        if trace is None:
            return True
        while trace.tb_next is not None:
            trace = trace.tb_next
        place, now = (trace.tb_frame.f_code.co_filename, trace.tb_lineno), self._clock()
        since, count = self._counts.get(place, (now, 0))
        if now - since >= SECONDS:
            if count > MOST:
                record.msg = f"{record.getMessage()} ({count - MOST} more of these were not logged)"
                record.args = None
            since, count = now, 0
        self._counts[place] = since, count + 1
        return count < MOST


_few = FewTracebacks()


def limit_tracebacks() -> None:
    """Limits those of ``LOGGERS``, whatever handles their records."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_few)
