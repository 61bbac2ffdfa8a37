"""Snapshot files: `<folder>/<yyyyMMddHHmmssSSS>-<startup|snapshot|shutdown>.cfg` (reference 17).

Files are written atomically: to a temporary file that is synced and renamed. The first line is a checksum of
the rest; a damaged or incomplete file is skipped for the previous one (F54). TorchServe's files have no
checksum and are accepted too.

Unlike in TorchServe, files that are not snapshots are ignored, the newest 50 files are kept, and the time in
a name never goes back, even if the clock does (F35).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from modelserver.engine.file_locks import replace_file
from modelserver.errors import ConfigError
from modelserver.ext.snapshots.document import Saved, check_routes, parse_snapshot
from modelserver.models.settings.properties import dump, parse

Kind = Literal["startup", "snapshot", "shutdown"]

MOST_FILES = 50
STATE_KEY = "model_snapshot"
_NAME = re.compile(r"(\d{17})-(startup|snapshot|shutdown)\.cfg")
_PARTIAL = re.compile(r"\.\d{17}-(startup|snapshot|shutdown)\.cfg(\.[0-9a-f]+)?\.part")
_CHECKSUM = re.compile(rb"# sha256: ([0-9a-f]{64})\n")
_STAMP = "%Y%m%d%H%M%S%f"
_LARGEST = 64 << 20  # bytes

_log = logging.getLogger("modelserver.models")


class SnapshotFolder:
    """The snapshots of one server; every method blocks on the disk.

    The folder ``path`` is created with the first file. ``properties`` are written to each file before the
    state; ``now`` returns the local time.
    """

    def __init__(
        self, path: Path, properties: Mapping[str, str], now: Callable[[], datetime] = datetime.now
    ) -> None:
        self.path = path
        self._properties = dict(properties)
        self._now = now
        self._last = ""

    def newest(self, check: Callable[[Any], None] = lambda _: None) -> tuple[Path, Saved] | None:
        """The newest valid snapshot and what is in it; invalid ones are logged.

        ``check`` is that of the router.
        """
        for path in reversed(self._files()):
            try:
                saved = read_snapshot(path)
                check_routes(saved, check)
            except ConfigError as error:  # noqa: PERF203 - the first valid one ends the loop
                _log.warning("Skipping snapshot %s: %s", path, error)
            else:
                return path, saved
        return None

    def write(self, kind: Kind, document: Mapping[str, Any]) -> Path:
        """Writes the document with the file's name; if it raises OSError, no file is left."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = self.next_name(kind)
        content = file_content(self._properties, {"name": name, **document})
        replace_file(self.path / name, content, mode=0o600, synced=True)
        self._sweep()
        return self.path / name

    def next_name(self, kind: Kind) -> str:
        """A name later than all existing ones."""
        files = self._files()
        last = max(self._last, files[-1].name[:17] if files else "")
        stamp = _stamp(self._now())
        if stamp <= last:
            stamp = _after(last)
        self._last = stamp
        return f"{stamp}-{kind}.cfg"

    def _files(self) -> list[Path]:
        """The snapshot files, the newest last."""
        try:
            names = sorted(name for name in os.listdir(self.path) if _NAME.fullmatch(name))
        except OSError:
            return []
        return [self.path / name for name in names]

    def _sweep(self) -> None:
        """Deletes the oldest files, and partial files of servers killed while writing."""
        partial = [n for n in os.listdir(self.path) if _PARTIAL.fullmatch(n)]
        old = self._files()[:-MOST_FILES]
        for path in (*old, *(self.path / name for name in partial)):
            with contextlib.suppress(OSError):
                path.unlink()


def file_content(properties: Mapping[str, str], document: Mapping[str, Any]) -> bytes:
    """The content of a snapshot file: checksum, settings, state."""
    body = dump({**properties, STATE_KEY: _indented(document)}).encode("ascii")
    return b"# sha256: " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _indented(document: Mapping[str, Any]) -> str:
    text = json.dumps(document)
    try:
        # When indenting, the standard library leaves a reference cycle behind at each call.
        return msgspec.json.format(text)
    except msgspec.DecodeError:
        # Half of a surrogate pair.
        return json.dumps(document, indent=2)


def read_snapshot(path: Path) -> Saved:
    """The state in a file. Raises ConfigError if it cannot be read or was modified."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"it cannot be read ({error.strerror})") from None
    if len(data) > _LARGEST:
        raise ConfigError(f"it is larger than {_LARGEST} bytes")
    return parse_file(data)


def had_all(path: Path) -> bool:
    """Whether the server that wrote this file was started with ``load_models=all``."""
    try:
        return parse(path.read_bytes()).get("load_models", "").strip().lower() == "all"
    except OSError:
        return False


def parse_file(data: bytes) -> Saved:
    """The state in a file's content. Raises ConfigError."""
    checksum = _CHECKSUM.match(data)
    if checksum is not None and hashlib.sha256(data[checksum.end() :]).hexdigest().encode() != checksum[1]:
        raise ConfigError("it does not match its checksum, so it was modified or is incomplete")
    text = parse(data).get(STATE_KEY)
    if text is None:
        raise ConfigError(f"it has no {STATE_KEY}")
    return parse_snapshot(text)


def _stamp(moment: datetime) -> str:
    return moment.strftime(_STAMP)[:17]


def _after(stamp: str) -> str:
    """The next millisecond; a stamp that is not a valid time is incremented as a number."""
    try:
        return _stamp(datetime.strptime(stamp + "000", _STAMP) + timedelta(milliseconds=1))  # noqa: DTZ007 - local
    except (ValueError, OverflowError):
        return f"{int(stamp) + 1:017d}"[:17]


def newest_configuration(folder: Path) -> Path | None:
    """The path of the newest valid snapshot in the folder."""
    newest = SnapshotFolder(folder, {}).newest()
    return None if newest is None else newest[0]
