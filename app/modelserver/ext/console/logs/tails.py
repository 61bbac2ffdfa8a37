"""The ends of log files that a server before has written. However large a file is, little of it is read."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from modelserver.ext.console.logs.lines import REQUESTS, SERVER, WORKERS, Block, cut, time_of

# Bytes of each file.
TAIL: Final = 1 << 17

_FILES: Final = {SERVER: "ts_log.log", WORKERS: "model_log.log", REQUESTS: "access_log.log"}
_LINE: Final = re.compile(r"(\d{4}-\S+) \[(\w+) *\] (.+?) (\S+) - (.*)")
_LEVELS: Final = {"DEBUG": "debug", "INFO": "info", "WARN": "warn", "ERROR": "error", "FATAL": "error"}


class Tail(NamedTuple):
    """A file as it was: ``number`` is its inode."""

    source: str
    path: Path
    size: int
    number: int


def tails_in(folder: Path) -> tuple[Tail, ...]:
    """The log files of this folder, as they are now."""
    tails = []
    for source, name in _FILES.items():
        with contextlib.suppress(OSError):
            status = (folder / name).stat()
            tails.append(Tail(source, folder / name, status.st_size, status.st_ino))
    return tuple(tails)


def read_tails(tails: tuple[Tail, ...], before: int, most: int) -> list[Block]:
    """Their lines, at most so many of each, the last one first; ids end below ``before``."""
    blocks = [block for tail in tails for block in list(_blocks(tail))[-most:]]
    blocks.sort(key=lambda block: block.created)
    return [block._replace(first=before - number) for number, block in enumerate(reversed(blocks), 1)]


def _blocks(tail: Tail) -> Iterator[Block]:
    """Yields the blocks that the file had at that time, without ids."""
    first: Block | None = None
    texts: list[str] = []
    for text in [*_read(tail).decode("utf-8", "replace").split("\n"), ""]:
        if text.startswith("    ") and first is not None:
            texts.append(text[4:])
            continue
        if first is not None:
            yield first._replace(text=cut("\n".join([first.text, *texts])))
        first, texts = _block(tail.source, text), []


def _read(tail: Tail) -> bytes:
    """The end of what the file had then, from its first whole line on; it may have been rotated since."""
    for path in (tail.path, tail.path.with_name(f"{tail.path.name}.1")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if os.fstat(file.fileno()).st_ino == tail.number:
                start = max(0, tail.size - TAIL)
                file.seek(start)
                content = file.read(tail.size - start)
                return content if start == 0 else content.partition(b"\n")[2]
    return b""


def _block(source: str, text: str) -> Block | None:
    """The record that this line begins; None for one that is none."""
    if text.startswith("{"):
        return _from_json(source, text)
    if source == REQUESTS:
        stamp = text.partition(" ")[0]
        return Block(0, time_of(stamp, 0.0), "info", source, "", text, ("",)) if text else None
    parts = _LINE.fullmatch(text)
    if parts is None:
        return None
    stamp, level, origin, _, message = parts.groups()
    return Block(0, time_of(stamp, 0.0), _LEVELS.get(level, "info"), source, origin, message)


def _from_json(source: str, text: str) -> Block | None:
    try:
        values = json.loads(text)
        time, level, origin, message = (str(values[key]) for key in ("time", "level", "source", "message"))
    except (ValueError, KeyError, TypeError):
        return None
    if trace := values.get("trace"):
        message = f"{message}\n{trace}"
    ids = ("",) if source == REQUESTS else ()
    return Block(0, time_of(time, 0.0), _LEVELS.get(level, "info"), source, origin, message, ids)
