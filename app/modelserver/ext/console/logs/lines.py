"""Lines of the log: of the server, of its workers, and of its answers to requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

SERVER: Final = "server"
WORKERS: Final = "workers"
REQUESTS: Final = "requests"
SOURCES: Final = (SERVER, WORKERS, REQUESTS)
LEVELS: Final = ("debug", "info", "warn", "error")

# The characters of a line that are kept.
LONGEST: Final = 4000
_OWN: Final = '"GET /console/logs?'
_ANSWER: Final = re.compile(
    r'(?:(?P<stamp>\S+) - )?/\S* ".*" (?P<status>\d+) \d+'
    r"(?: (?P<id>(?!trace_id=)\S+))?(?: trace_id=(?P<trace>\S+))?"
)


class Block(NamedTuple):
    """A record of the log. That of answers has a line for each, with the id of its request.

    ``first`` is the id of the first line, ``created`` in seconds since 1970, ``origin`` a worker or thread.
    """

    first: int
    created: float
    level: str
    source: str
    origin: str
    text: str
    request_ids: Sequence[str] = ()

    @property
    def last(self) -> int:
        """The id of the last line."""
        return self.first + max(1, len(self.request_ids)) - 1


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A line as the console gets it; ``gap``: lines between this one and the one before are left out."""

    id: int
    time: float
    level: str
    source: str
    origin: str
    text: str
    request: str = ""
    trace: str = ""
    status: int = 0
    gap: bool = False


def lines_of(block: Block) -> Iterator[LogLine]:
    """Its lines, the last one first."""
    if block.source != REQUESTS:
        yield LogLine(*block[:6])
        return
    lines = block.text.split("\n")[: len(block.request_ids)]
    for number in reversed(range(len(lines))):
        yield _answer(lines[number], block, block.first + number, block.request_ids[number])


def _answer(text: str, block: Block, number: int, request_id: str) -> LogLine:
    parts = _ANSWER.fullmatch(text)
    if parts is None:
        return LogLine(number, *block[1:5], text, request_id)
    stamp, status = parts["stamp"], int(parts["status"])
    # The statuses of gRPC are small numbers, and 0 is its success.
    level = "error" if status >= 500 else "warn" if status >= 400 or 0 < status < 100 else "info"
    return LogLine(
        number,
        time_of(stamp, block.created) if stamp else block.created,
        level,
        REQUESTS,
        "",
        text.removeprefix(f"{stamp} - "),
        request_id or parts["id"] or "",
        parts["trace"] or "",
        status,
    )


def time_of(stamp: str, otherwise: float) -> float:
    """The seconds since 1970 of a local time as the log has it."""
    try:
        return datetime.fromisoformat(stamp.replace(",", ".").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return otherwise


def cut(text: str, most: int = LONGEST) -> str:
    """The text without its middle if it is long: what failed is often at the end."""
    left_out, end = len(text) - most, most // 4
    return text if left_out <= 0 else f"{text[: most - end]} ... ({left_out} characters) ... {text[-end:]}"


class LineQuery(msgspec.Struct, frozen=True):
    """Which lines: newer than ``since`` and older than ``before`` (ids), of this level or above.

    ``versions`` are those of ``model``.
    """

    since: int = 0
    before: int | None = None
    sources: tuple[str, ...] = SOURCES
    model: str = ""
    versions: tuple[str, ...] = ()
    level: str = "debug"
    text: str = ""

    def chosen(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yields the lines that match, whatever their id."""
        least, text = LEVELS.index(self.level), self.text.lower()
        in_text, in_origin = _patterns(self.model, self.versions)
        for line in lines:
            # A search would find itself.
            if LEVELS.index(line.level) < least or (line.source == REQUESTS and _OWN in line.text):
                continue
            if self.model and not (
                in_origin.fullmatch(line.origin) if line.source == WORKERS else in_text.search(line.text)
            ):
                continue
            if not text or text in f"{line.origin} {line.text} {line.request} {line.trace}".lower():
                yield line


def _patterns(model: str, versions: Iterable[str]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What a text about this model has in it, and how its workers are named."""
    version = "|".join([*map(re.escape, versions), r"[^_\s]+"])
    name = re.escape(model)
    in_text = rf"(?<![\w.-])(?:W-\d+-{name}_(?:{version})|{name}|{re.escape(quote(model, safe=''))})(?![\w-])"
    return re.compile(in_text), re.compile(rf"W-\d+-{name}_(?:{version})(?:-.*)?")
