"""What a worker prints: kept for reports, passed on to the log, bounded in both."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

LINE_LIMIT = 8192
LINES_KEPT = 200

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


class LineReader(asyncio.Protocol):
    """Reads one of a worker's streams; a line longer than ``LINE_LIMIT`` bytes is cut, never collected."""

    def __init__(self, source: str, level: int, tail: OutputTail) -> None:
        self._source = source
        self._level = level
        self._tail = tail
        self._partial = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()[:LINE_LIMIT]
        for line in lines:
            self._line(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._partial:
            self._line(self._partial)
        if not self.ended.done():
            self.ended.set_result(None)

    def _line(self, line: bytes) -> None:
        text = line[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r")
        self._tail.add(text)
        _log.log(self._level, "%s", text, extra={"source": self._source})
