"""Values by key that outlive the server, in a file of its cache folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from modelserver.engine.file_locks import replace_file
from modelserver.models.environments.cache_folder import cache_folder

T = TypeVar("T")

_log = logging.getLogger("modelserver.models")


class StoredValues(Generic[T]):
    """The last ``most`` values that were set. :meth:`load` and :meth:`save` access the disk, and are for
    another thread.

    ``what``: the values, as the subject of messages.
    """

    def __init__(self, what: str, file: str, kind: type[T], most: int, folder: Path | None) -> None:
        self._what = what
        self._file = file
        self._kind = kind
        self._most = most
        self._folder = folder
        self._values: dict[str, T] = {}
        self._changed = self._warned = False

    def load(self) -> None:
        """Reads what earlier servers have stored; what cannot be read counts as nothing."""
        self._folder = self._folder or cache_folder("parking")
        if self._folder is None:
            return
        try:
            content = (self._folder / self._file).read_bytes()
            self._values = msgspec.json.decode(content, type=dict[str, self._kind])  # type: ignore[name-defined]
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s cannot be read: %s", self._what, error)

    def get(self, key: str) -> T | None:
        return self._values.get(key)

    def learn(self, key: str, value: T) -> None:
        """Sets a value, which is stored with the next :meth:`save`."""
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]
        self._changed = True

    def save(self) -> None:
        """Writes what is new; a failure, as of a full disk, is logged once, and the next call tries again."""
        if self._folder is None or not self._changed:
            return
        self._changed = False
        try:
            replace_file(self._folder / self._file, msgspec.json.encode(self._values.copy()))
        except OSError as error:
            if not self._warned:
                _log.warning("%s cannot be kept: %s", self._what, error)
            self._changed = self._warned = True
        else:
            self._warned = False
