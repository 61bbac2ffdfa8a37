"""What models need, learned when they were loaded: memory, and seconds. Kept in the server's cache folder."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from modelserver.engine.file_locks import replace_file
from modelserver.models.environments.cache_folder import cache_folder

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("modelserver.models")

FILE = "needs.json"
# Models that are kept, the most recent ones; each is about 100 bytes.
MOST = 20_000


class Need(msgspec.Struct, frozen=True):
    """Bytes of the worker's own memory, seconds until it has loaded, and bytes of each GPU, if known."""

    memory: int
    seconds: float
    device: int | None = None


class Needs:
    """The needs by key. :meth:`load` and :meth:`save` access the disk, and are for another thread."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._needs: dict[str, Need] = {}
        self._changed = self._warned = False

    def load(self) -> None:
        """Reads what earlier servers have learned; what cannot be read counts as nothing."""
        self._folder = self._folder or cache_folder("parking")
        if self._folder is None:
            return
        try:
            self._needs = msgspec.json.decode((self._folder / FILE).read_bytes(), type=dict[str, Need])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("What models need cannot be read: %s", error)

    def get(self, key: str) -> Need | None:
        return self._needs.get(key)

    def learn(self, key: str, need: Need) -> None:
        """Keeps what a load has shown."""
        self._needs.pop(key, None)
        self._needs[key] = need
        if len(self._needs) > MOST:
            del self._needs[next(iter(self._needs))]
        self._changed = True

    def save(self) -> None:
        """Writes what is new; a failure, as of a full disk, is logged once."""
        if self._folder is None or not self._changed:
            return
        self._changed = False
        try:
            replace_file(self._folder / FILE, msgspec.json.encode(self._needs.copy()))
        except OSError as error:
            if not self._warned:
                _log.warning("What models need cannot be kept: %s", error)
            self._warned = True
        else:
            self._warned = False
