"""Writes log files in a separate thread (``async_logging``), so that a slow disk does not block the server.

When the queue is full, lines are dropped and counted.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import queue
import threading
import time

# Records that may wait to be written; those of the access log have many lines.
MAX_WAITING = 20_000
# Seconds that closing waits for unwritten records.
PATIENCE = 5.0

_Item = tuple[logging.Handler, logging.LogRecord]


class LogWriter:
    """The thread and its queue; ended by :meth:`close`."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self._waiting: queue.Queue[_Item | None] = queue.Queue(limit)
        self._dropped = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def put(self, handler: logging.Handler, record: logging.LogRecord) -> None:
        """Queues a record; never blocks."""
        try:
            self._waiting.put_nowait((handler, record))
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Returns when all is written, or after ``PATIENCE`` seconds. Idempotent."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=PATIENCE)
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            handler, record = item
            handler.handle(record)
            if self._dropped and self._waiting.empty():
                self._report_dropped(handler)

    def _report_dropped(self, handler: logging.Handler) -> None:
        dropped, self._dropped = self._dropped, 0
        text = "%d log records were dropped because they could not be written fast enough"
        logger = logging.getLogger(__name__)
        handler.handle(logger.makeRecord(logger.name, logging.WARNING, __file__, 0, text, (dropped,), None))


class InBackground(logging.Handler):
    """Passes records to the writer; ``target`` formats and writes them in its thread."""

    def __init__(self, target: logging.Handler, writer: LogWriter) -> None:
        super().__init__()
        self._target = target
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        """Formats message and traceback now, as their arguments may change later."""
        taken = copy.copy(record)
        taken.msg, taken.args = record.getMessage(), None
        if taken.exc_info and not taken.exc_text:
            taken.exc_text = logging.Formatter().formatException(taken.exc_info)
        taken.exc_info = None
        self._writer.put(self._target, taken)

    def close(self) -> None:
        """Closes the target too, once everything is written."""
        self._writer.close()
        self._target.close()
        super().close()
