"""The last lines of the log, in memory: a record is only kept, and read when somebody looks."""

from __future__ import annotations

import contextlib
import heapq
import logging
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

import msgspec

from modelserver.ext.console.logs.lines import (
    REQUESTS,
    SERVER,
    SOURCES,
    WORKERS,
    Block,
    LineQuery,
    LogLine,
    cut,
    lines_of,
)
from modelserver.ext.console.logs.tails import Tail, read_tails, tails_in

# Of each source: lines, and bytes of memory.
MOST: Final = 2000
MOST_BYTES: Final = 1 << 20
# Characters of a record with many lines; each line of a longer one is cut to so many.
_MUCH: Final = 1 << 17
_SHORT: Final = 1000
# The ids of lines from files are smaller.
FIRST: Final = len(SOURCES) * MOST + 1

_SOURCES: Final = {"modelserver.access": REQUESTS, "modelserver.model": WORKERS}
_METRICS: Final = {"modelserver.metrics", "modelserver.model_metrics"}
_formatter = logging.Formatter()


class LogRing(logging.Handler):
    """Keeps the last records of the log.

    ``folder`` is that of the log files, None for none: the first look begins with their ends, as they are
    now.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self._shelves = {source: _Shelf() for source in SOURCES}
        self._next = FIRST
        self._tails: tuple[Tail, ...] = () if folder is None else tails_in(folder)
        self._looking = threading.Lock()

    def attach(self) -> None:
        """Listens to all loggers; call it after logging is set up."""
        for logger in _loggers():
            logger.addHandler(self)

    def detach(self) -> None:
        """Ends that."""
        for logger in _loggers():
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.name in _METRICS:
                return
            source = _SOURCES.get(record.name, SERVER)
            text = record.getMessage()
            request_ids: Sequence[str] = ()
            if source is not REQUESTS:
                text = cut(_with_trace(text, record))
            else:
                request_ids = getattr(record, "request_ids", None) or ("",)
                if len(text) > _MUCH:
                    text = "\n".join(cut(line, _SHORT) for line in text.split("\n"))
            origin = str(getattr(record, "source", None) or record.threadName)
            block = Block(self._next, record.created, _level_of(record), source, origin, text, request_ids)
            self._next = block.last + 1
            self._shelves[source].append(block)
        except Exception:  # noqa: BLE001 - as logging's own handlers
            self.handleError(record)

    @property
    def last(self) -> int:
        """The id of the newest line."""
        return self._next - 1

    def page(self, query: LineQuery, limit: int) -> list[LogLine]:
        """The newest lines that fit, in the order of their ids. Reads files at the first call."""
        with self._looking:
            if self._tails:
                tails, self._tails = self._tails, ()
                self._begin_with(read_tails(tails, FIRST, MOST))
        with self.lock or contextlib.nullcontext():
            shelves = [self._shelves[source] for source in query.sources]
            blocks = [list(shelf.blocks) for shelf in shelves]
            dropped = max((shelf.dropped for shelf in shelves), default=0)
        newest = heapq.merge(*(reversed(each) for each in blocks), key=lambda block: -block.first)
        lines = (
            line
            for block in takewhile(lambda block: block.last > query.since, newest)
            for line in lines_of(block)
            if line.id > query.since and (query.before is None or line.id < query.before)
        )
        page = list(islice(query.chosen(lines), limit + 1))
        has_gap = query.since > 0 and (len(page) > limit or dropped > query.since)
        page = page[:limit][::-1]
        return [msgspec.structs.replace(page[0], gap=True), *page[1:]] if page and has_gap else page

    def _begin_with(self, before: Iterable[Block]) -> None:
        with self.lock or contextlib.nullcontext():
            for block in before:
                self._shelves[block.source].prepend(block)


class _Shelf:
    """The last blocks of one source; ``dropped`` is the id of the newest line that is no longer here."""

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque()
        self.dropped = 0
        self._lines = 0
        self._bytes = 0

    def append(self, block: Block) -> None:
        self._count(block, 1)
        self.blocks.append(block)
        while self._is_full() and len(self.blocks) > 1:
            oldest = self.blocks.popleft()
            self._count(oldest, -1)
            self.dropped = oldest.last

    def prepend(self, block: Block) -> None:
        """Adds one that is older than all others, while there is room."""
        if self.dropped:
            return
        self._count(block, 1)
        if self._is_full():
            self._count(block, -1)
            self.dropped = block.last
        else:
            self.blocks.appendleft(block)

    def _count(self, block: Block, sign: int) -> None:
        self._lines += sign * (block.last - block.first + 1)
        self._bytes += sign * (sys.getsizeof(block.text) + 100 * (1 + len(block.request_ids)))

    def _is_full(self) -> bool:
        return self._lines > MOST or self._bytes > MOST_BYTES


def _loggers() -> list[logging.Logger]:
    """The root, and those whose records do not reach it."""
    return [logging.root, *(each for each in map(logging.getLogger, _SOURCES) if not each.propagate)]


def _level_of(record: logging.LogRecord) -> str:
    level = record.levelno
    if level >= logging.WARNING:
        return "error" if level >= logging.ERROR else "warn"
    return "info" if level >= logging.INFO else "debug"


def _with_trace(text: str, record: logging.LogRecord) -> str:
    trace = record.exc_text or (_formatter.formatException(record.exc_info) if record.exc_info else "")
    return f"{text}\n{trace}" if trace else text
