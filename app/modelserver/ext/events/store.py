"""The latest events, in memory and in a file of bounded size."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from modelserver.ext.events.records import ServerEvent, event_of, kind_of, subject_of
from modelserver.surface.api.describe import moment

MOST: Final = 10_000
# Events at once, and in a second on the whole; more are counted.
BURST: Final = 500
RATE: Final = 50.0
# Bytes of the file; then it is renamed, in the place of the one before.
FILE_BYTES: Final = 4_000_000
FILE: Final = "events.jsonl"
OLD_FILE: Final = "events.1.jsonl"

LEVELS: Final = ("info", "warn", "error")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ServerEvent).decode


class Query(msgspec.Struct, frozen=True):
    """Which events: newer than ``since``, older than ``before`` (ids; times of UTC in ``since_time``)."""

    since: int | None = None
    before: int | None = None
    since_time: str = ""
    model: str = ""
    kind: str = ""
    level: str = "info"
    text: str = ""

    def fits(self, event: ServerEvent) -> bool:
        """Whether it is one of them, whatever its id."""
        return (
            (not self.model or event.model == self.model)
            and (not self.kind or event.kind == self.kind)
            and LEVELS.index(event.level) >= LEVELS.index(self.level)
            and event.time >= self.since_time
            and (not self.text or self.text in f"{event.kind} {event.model} {event.message}".lower())
        )


class EventStore(logging.Handler):
    """Keeps the records of the log that are events.

    ``folder``: of the file, None for none. ``has``: whether there is a version of this name. ``on_change`` is
    called, in any thread, when an event was added.
    """

    def __init__(
        self,
        folder: Path | None,
        has: Callable[[str, str], bool],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.left_out = 0
        self._folder = folder
        self._has = has
        self._on_change = on_change
        self._clock = clock
        self._events: deque[ServerEvent] = deque(maxlen=MOST)
        self._unwritten: deque[ServerEvent] = deque(maxlen=MOST)
        self._writing = threading.Lock()
        self._last = 0
        self._tokens, self._filled_at = float(BURST), clock()
        self._left_out_since = 0
        self._write_failed = self._has_written = False

    # -- adding

    def emit(self, record: logging.LogRecord) -> None:
        try:
            kind = kind_of(record)
            if kind is None:
                return
            if not self._has_room():
                self.left_out += 1
                self._left_out_since += 1
                return
            if self._left_out_since:
                count, self._left_out_since = self._left_out_since, 0
                message = f"{count} events were left out: there were more than {RATE:g} a second"
                self._note("events_left_out", message)
            self._add(event_of(record, self._last + 1, kind, subject_of(record, self._has)))
        except Exception:  # noqa: BLE001 - as logging's own handlers
            self.handleError(record)

    def _has_room(self) -> bool:
        now = self._clock()
        self._tokens = min(float(BURST), self._tokens + (now - self._filled_at) * RATE)
        self._filled_at = now
        # Room for a second's events, so that a long storm is told of once a second.
        if self._tokens < (RATE if self._left_out_since else 1):
            return False
        self._tokens -= 1
        return True

    def _note(self, kind: str, message: str) -> None:
        """Adds an event that no record tells of."""
        self._add(ServerEvent(self._last + 1, moment(time.time()), "warn", kind, message))

    def _add(self, event: ServerEvent) -> None:
        self._last = event.id
        self._events.append(event)
        self._unwritten.append(event)
        self._on_change()

    # -- reading

    @property
    def last(self) -> int:
        """The id of the newest."""
        return self._last

    def page(self, query: Query, limit: int) -> list[ServerEvent]:
        """In the order of their ids: the first ones after ``since``; without it, the last ones."""
        if query.since is not None:
            return list(islice((each for each in self._after(query.since) if query.fits(each)), limit))
        events = reversed(self._copy())
        older = (each for each in events if query.before is None or each.id < query.before)
        return list(islice((each for each in older if query.fits(each)), limit))[::-1]

    def _after(self, since: int) -> Iterator[ServerEvent]:
        events = self._copy()
        if events:
            # Ids have no gaps.
            yield from islice(events, max(0, since - events[0].id + 1), None)

    def _copy(self) -> list[ServerEvent]:
        with self.lock or contextlib.nullcontext():
            return list(self._events)

    # -- the file

    def read(self) -> None:
        """Reads the events of the server before; those since its start follow them."""
        if self._folder is None:
            return
        before: deque[ServerEvent] = deque(maxlen=MOST)
        for name in (OLD_FILE, FILE):
            with contextlib.suppress(OSError):
                before.extend(_events_in(self._folder / name))
        if not before:
            return
        with self.lock or contextlib.nullcontext():
            first = before[-1].id + 1
            new = [msgspec.structs.replace(each, id=at) for at, each in enumerate(self._events, first)]
            # What a damaged file has lost leaves no gaps.
            old = [
                msgspec.structs.replace(each, id=first - at) for at, each in enumerate(reversed(before), 1)
            ]
            self._last = first + len(new) - 1
            self._events = deque([*reversed(old), *new], MOST)
            self._unwritten = deque(new, MOST)

    def write(self) -> None:
        """Writes the new ones; an error counts as an event, once."""
        with self._writing:
            events = [self._unwritten.popleft() for _ in range(len(self._unwritten))]
            if self._folder is None or not events:
                return
            try:
                lines = b"".join(_encode(each) + b"\n" for each in events)
                # The server before may have ended in the middle of a line.
                self._append(lines if self._has_written else b"\n" + lines)
                self._has_written = True
                self._write_failed = False
            except OSError as error:
                if not self._write_failed:
                    self._write_failed = True
                    with self.lock or contextlib.nullcontext():
                        self._note("disk_full", f"Events cannot be written: {error}")

    def _append(self, lines: bytes) -> None:
        assert self._folder is not None  # noqa: S101 - checked by the caller
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / FILE
        if path.exists() and path.stat().st_size + len(lines) > FILE_BYTES:
            path.replace(self._folder / OLD_FILE)
        with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o640)) as file:
            file.write(lines)


def _events_in(path: Path) -> Iterator[ServerEvent]:
    """Yields the events of a file that can be read: a crash may have cut one off."""
    for line in path.read_bytes()[-2 * FILE_BYTES :].splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            event = _decode(line)
            if event.level in LEVELS:
                yield event
