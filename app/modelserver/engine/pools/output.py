"""The output of workers: kept for error messages and logged, both within limits."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

from modelserver.engine.wire.messages import without_escapes

# Metrics that a worker prints in the form of TorchServe's workers (reference 15.4).
#
# ``context.metrics`` does not print here, but some handlers, and programs that they start, print such lines.

Measured = Callable[[str, float, str, str, Sequence[tuple[str, str]], str], None]
"""Called with name, value, unit, kind, dimensions and request id."""

_BEGINNINGS = ("[METRICS]", "INFO > [METRICS]")
# Dimensions may be absent; kind, host and time may not, as in TorchServe.
_LINE = re.compile(
    r"(?:INFO > )?\[METRICS\](?P<name>[^|:]+?)\.(?P<unit>[^|:.]*):(?P<value>[^|:]+)"
    r"\|#(?P<dimensions>[^|]*)\|#type:(?P<kind>COUNTER|GAUGE|HISTOGRAM)"
    r"\|#hostname:[^,|]+,\d+(?:,(?P<request_id>[^|]*))?"
)


class PrintedMetric(NamedTuple):
    """One value in a line, with the arguments of ``Measured``."""

    name: str
    value: float
    unit: str
    kind: str
    dimensions: tuple[tuple[str, str], ...]
    request_id: str


def parse_metric(line: str) -> PrintedMetric | None:
    """The metric in a line; None for any other line, even if it resembles a metric."""
    match = _LINE.fullmatch(line) if line.startswith(_BEGINNINGS) else None
    if match is None:
        return None
    try:
        value = float(match["value"])
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    pairs = (item.partition(":") for item in match["dimensions"].split(",") if item)
    return PrintedMetric(
        match["name"],
        value,
        match["unit"],
        match["kind"].lower(),
        tuple((name, text) for name, _, text in pairs),
        match["request_id"] or "",
    )


LINE_LIMIT = 8192
MAX_LINES = 200
_CHUNK = 1 << 16
LINES_A_SECOND = 2000
# After so many lines the server does other work for so many seconds.
LINES_AT_ONCE = 100
_PAUSE = 0.01
# Bytes that may wait for the pause to end.
_BACKLOG = 1 << 20
# While lines are dropped, that pause as a multiple of the time spent.
_OTHERS = 19

_QUOTED = " Its last output was:\n"
# Texts with which torch and vLLM report that the memory of a GPU or of the machine ran out.
_OF_MEMORY = re.compile("out of memory|MemoryError|t allocate|startup is less|available (memory for|KV)")
# vLLM's mark of its engine processes' lines; lines of the worker itself have none.
_PROCESS = re.compile(r"\(\w+ pid=\d+\)")
_NOTHING = " It printed nothing."

_log = logging.getLogger("modelserver.model")


class LineReader:
    """Reads one of a worker's streams. The last lines that are not metrics are kept in ``tail``.

    Lines are cut at ``LINE_LIMIT`` bytes; beyond ``LINES_A_SECOND`` lines are counted instead of logged, and
    large amounts are processed in pieces with pauses, so that user code that prints endlessly cannot keep the
    server busy (F44). Metrics go to ``measured`` instead of the log, within the same limit.
    """

    def __init__(self, source: str, level: int, tail: deque[str], measured: Measured | None = None) -> None:
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
        # What was read but not processed yet, and the pause before it is.
        self._unread = b""
        # What an agent has sent since.
        self._fed: list[bytes] = []
        self._pause: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def attach(self, descriptor: int) -> None:
        """Starts reading the pipe, and owns it. uvloop's pipe transport would close the descriptor twice."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Stops reading."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            if self._pause is None:
                self._loop.remove_reader(descriptor)
            os.close(descriptor)
            self.finish()

    def _read(self) -> None:
        assert self._descriptor is not None  # noqa: S101 - nothing is read once it is closed
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.feed(data)
        else:
            self.close()

    def _take_piece(self, data: bytes) -> float:
        """Processes a limited number of lines, or drops all; returns the pause in seconds."""
        began = time.thread_time()
        pieces = data.split(b"\n", LINES_AT_ONCE) if self._allowance() else []
        self._unread = pieces[-1] if len(pieces) > LINES_AT_ONCE else b""
        self.data_received(data[: len(data) - len(self._unread)])
        if not pieces:
            return _OTHERS * (time.thread_time() - began)
        return _PAUSE if self._unread else 0.0

    def feed(self, data: bytes) -> None:
        """Takes what an agent has read, which limits the bytes per second; lines are processed in pieces."""
        self._fed.append(data)
        if self._pause is None:
            self._digest()

    def _digest(self) -> None:
        """Processes some of what has come, and the rest after a pause, in which the pipe is not read."""
        unread, was_paused = b"".join((self._unread, *self._fed)), self._pause is not None
        self._fed.clear()
        if len(unread) > _BACKLOG:
            # More than can be logged in this second: its lines are only counted.
            self._logged = LINES_A_SECOND
        pause = self._take_piece(unread) if unread else 0.0
        self._pause = self._loop.call_later(pause, self._digest) if pause else None
        if self._descriptor is not None and pause and not was_paused:
            self._loop.remove_reader(self._descriptor)
        elif self._descriptor is not None and was_paused and not pause:
            self._loop.add_reader(self._descriptor, self._read)

    def data_received(self, data: bytes) -> None:
        allowed = self._allowance()
        *lines, rest = (self._partial + data).split(b"\n", allowed)
        for line in lines:
            self._take(line)
        self._logged += len(lines)
        if left_out := rest.count(b"\n"):
            pieces = rest.rsplit(b"\n", MAX_LINES)
            for line in pieces[max(0, len(pieces) - 1 - min(left_out, MAX_LINES - 1)) : -1]:
                self._tail.append(_text(line))
            if not self._left_out:
                # Though nothing more may be printed.
                self._loop.call_at(self._second + 1, self._tell_left_out)
            self._left_out += left_out
            rest = pieces[-1]
        self._partial = rest[:LINE_LIMIT]

    def finish(self) -> None:
        """Processes what remains at the end of the stream."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        unread, self._unread = b"".join((self._unread, *self._fed)), b""
        self._fed.clear()
        self.data_received(unread)
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
            self._log(f"[{self._left_out} lines were dropped: more than {LINES_A_SECOND} in a second]")
            self._left_out = 0

    def _take(self, line: bytes) -> None:
        text = _text(line)
        metric = None if self._measured is None else parse_metric(text)
        if metric is not None and self._measured is not None:
            self._measured(*metric)
        else:
            self._tail.append(text)
            self._log(text)

    def _log(self, text: str) -> None:
        _log.log(self._level, "%s", text, extra={"source": self._source})


def _text(line: bytes) -> str:
    return without_escapes(line[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r"))


class OutputReaders:
    """What a worker prints: ``readers`` of standard output and error, and the last lines of both.

    ``measured`` gets metrics that it prints.
    """

    def __init__(self, measured: Measured | None = None) -> None:
        self._tail: deque[str] = deque(maxlen=MAX_LINES)
        self._measured = measured
        self.readers: tuple[LineReader, ...] = ()

    def name(self, label: str) -> None:
        """Reads from now on what has this label in the log."""
        levels = ((logging.INFO, "stdout"), (logging.WARNING, "stderr"))
        self.readers = tuple(
            LineReader(f"{label}-{name}", level, self._tail, self._measured) for level, name in levels
        )

    def attach(self, descriptors: Sequence[int]) -> None:
        """Starts reading the pipes for standard output and error, and owns them."""
        for descriptor, reader in zip(descriptors, self.readers, strict=True):
            reader.attach(descriptor)

    def last(self, count: int) -> str:
        """The last ``count`` lines as one text."""
        return "\n".join(list(self._tail)[-count:])

    async def finish(self) -> None:
        """Reads the remaining output of an ended process from the pipes."""
        # Descendants in other sessions may keep the streams open: their output is not waited for.
        await asyncio.wait([reader.ended for reader in self.readers], timeout=1.0)
        for reader in self.readers:
            reader.close()


def quote(output: str) -> str:
    """A worker's last output, for the end of an error message."""
    return f"{_QUOTED}{output}" if output.strip() else _NOTHING


def was_out_of_memory(text: str) -> bool:
    """Whether a worker's output, or an error message that ends with it, reports a lack of memory.

    Only the last lines of each process count: the process may have survived earlier errors.
    """
    message, _, output = text.rpartition(_QUOTED)
    last = defaultdict[str, deque[str]](lambda: deque(maxlen=2))
    for line in output.splitlines():
        last[mark[0] if (mark := _PROCESS.match(line)) else ""].append(line)
    return any(map(_OF_MEMORY.search, (message, *chain(*last.values()))))


def without_quote(message: str) -> str:
    """The message without its end by :func:`quote`."""
    return message.partition(_QUOTED)[0].removesuffix(_NOTHING)
