"""What a worker prints: kept for reports, passed on to the log, bounded in both."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from typing import TYPE_CHECKING

from modelserver.workers.printed_metrics import parse_metric

if TYPE_CHECKING:
    from modelserver.workers.printed_metrics import Measured

LINE_LIMIT = 8192
LINES_KEPT = 200
_CHUNK = 1 << 16
LINES_A_SECOND = 2000

_log = logging.getLogger("modelserver.model")


class OutputTail:
    """The last lines of a worker's standard streams."""

    def __init__(self, kept: int = LINES_KEPT) -> None:
        self._lines: deque[str] = deque(maxlen=kept)

    def add(self, line: str) -> None:
        self._lines.append(line)

    def last(self, count: int) -> str:
        """The last ``count`` lines as one text."""
        lines = list(self._lines)
        return "\n".join(lines[-count:])


class LineReader:
    """Reads one of a worker's streams.

    A line longer than ``LINE_LIMIT`` bytes is cut, never collected; of more than ``LINES_A_SECOND`` lines in
    a second the rest is counted instead of logged, so that user code that prints without end cannot keep the
    server busy (F44). Lines that report a metric go to ``measured`` instead of the log, within the same
    bound.
    """

    def __init__(self, source: str, level: int, tail: OutputTail, measured: Measured | None = None) -> None:
        self._source = source
        self._measured = measured
        self._level = level
        self._tail = tail
        self._partial = b""
        self._loop = asyncio.get_running_loop()
        self._second = 0
        self._logged = 0
        self._left_out = 0
        self._descriptor: int | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def attach(self, descriptor: int) -> None:
        """Reads the pipe from now on, and owns it.

        Not by a pipe transport: uvloop's closes the descriptor twice, then perhaps somebody else's.
        """
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Reads no more."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            self._ended()

    def _read(self) -> None:
        assert self._descriptor is not None  # noqa: S101 - nothing is read once it is closed
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.data_received(data)
        else:
            self.close()

    def data_received(self, data: bytes) -> None:
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()[:LINE_LIMIT]
        allowed = self._allowance()
        for line in lines[:allowed]:
            self._take(line)
        for line in lines[allowed:][-LINES_KEPT:]:
            self._tail.add(_text(line))
        self._logged += min(len(lines), allowed)
        self._left_out += max(0, len(lines) - allowed)

    def _ended(self) -> None:
        if self._partial:
            self._take(self._partial)
        self._tell_left_out()
        if not self.ended.done():
            self.ended.set_result(None)

    def _allowance(self) -> int:
        """How many lines may still be logged in this second."""
        second = int(self._loop.time())
        if second != self._second:
            self._second, self._logged = second, 0
            self._tell_left_out()
        return LINES_A_SECOND - self._logged

    def _tell_left_out(self) -> None:
        if self._left_out:
            self._log(f"[{self._left_out} lines were left out: more than {LINES_A_SECOND} came in a second]")
            self._left_out = 0

    def _take(self, line: bytes) -> None:
        text = _text(line)
        metric = None if self._measured is None else parse_metric(text)
        if metric is not None and self._measured is not None:
            metric.tell(self._measured)
        else:
            self._tail.add(text)
            self._log(text)

    def _log(self, text: str) -> None:
        _log.log(self._level, "%s", text, extra={"source": self._source})


def _text(line: bytes) -> str:
    return line[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r")
