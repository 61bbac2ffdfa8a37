"""A folder of entries that servers share: installed environments of models, or fetched archives.

Beside an entry is its lock file, locked while a server creates or removes it; in it is its mark, which exists
once it is complete, and on which each user holds a shared lock. The system frees the locks of a server that
dies. Unfinished entries are removed, and while the total size is over the limit, unused entries too, the
least recently used first.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from modelserver.engine.file_locks import open_locked, replace_file

_BEGINNINGS = ("packages-", "venv-", "archive-", "files-")  # of entries; other names are left alone
_LOCK = ".lock"
_POLL = 0.1  # seconds


class Use:
    """A server's shared lock on an entry, until ``end`` or until the object is deleted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def end(self) -> None:
        """From now on the entry may be removed. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.end()


class CacheEntry:
    """The folder of an environment or archive at ``place``, which may not exist yet, or not any more."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._mark = place / "complete"
        self._lock = place.with_name(place.name + _LOCK)

    def use(self) -> Use | None:
        """A shared lock on the complete entry, marked as used now; None if it does not exist."""
        descriptor = open_locked(self._mark, os.O_RDONLY, fcntl.LOCK_SH)
        if descriptor is None:
            return None
        with contextlib.suppress(OSError):
            os.utime(self._mark)
        return Use(descriptor)

    @contextlib.asynccontextmanager
    async def locked(self, waits: Callable[[], None]) -> AsyncIterator[int]:
        """Waits for the lock of the entry; calls ``waits`` if it is not free at once.

        Yields its descriptor: a child that inherits it holds the lock too, as long as it lives.
        """
        if (descriptor := self._open_lock()) is None:
            waits()
        while descriptor is None:
            await asyncio.sleep(_POLL)
            descriptor = self._open_lock()
        try:
            yield descriptor
        finally:
            self._free(descriptor)

    def begin(self) -> None:
        """Makes the folder, empty, while the lock is held; removes an unfinished one. Raises OSError."""
        self.clear()
        self.place.mkdir(mode=0o700)

    def complete(self, owner: str, size: int) -> None:
        """Marks the entry, whose lock is held, as complete, of ``size`` bytes; people read the ``owner``."""
        replace_file(self._mark, f"made for {owner}\nbytes: {size}\n".encode())

    def clear(self) -> None:
        """Removes the entry, whose lock is held, the mark first. Raises OSError."""
        self._mark.unlink(missing_ok=True)
        if self.place.exists():
            shutil.rmtree(self.place)

    def remove(self) -> bool:
        """Removes the entry; False if a server creates or uses it, or if it cannot be removed."""
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            if (lock := self._open_lock()) is None:
                return False
            held.callback(self._free, lock)
            if (alone := open_locked(self._mark, os.O_RDWR, fcntl.LOCK_EX)) is not None:
                held.callback(os.close, alone)
            elif self.is_complete:
                return False
            self.clear()
            return True
        return False

    @property
    def is_complete(self) -> bool:
        return os.path.exists(self._mark)

    def last_use(self) -> int:
        """When the complete entry was last used, in nanoseconds. Raises OSError."""
        return self._mark.stat().st_mtime_ns

    def size(self) -> int:
        """Its bytes according to the mark, or else as measured. Raises OSError if it is not complete."""
        size = self._mark.read_text("utf-8", "replace").rpartition("bytes: ")[2].strip()
        return int(size) if size.isascii() and size.isdecimal() else self.measure()

    def measure(self) -> int:
        """The bytes that its files take on the disk; links are not followed."""
        total = 0
        for folder, _, files in os.walk(self.place):
            for name in files:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
        return total

    def _open_lock(self) -> int | None:
        return open_locked(self._lock, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)

    def _free(self, descriptor: int) -> None:
        """Releases the lock; removes its file if there is no entry."""
        with contextlib.suppress(OSError):
            if not self.place.exists():
                self._lock.unlink(missing_ok=True)
        os.close(descriptor)


class SharedCache:
    """All entries in a folder that servers share."""

    LIMIT = 16 << 30  # bytes that are kept by default

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def total(self) -> int:
        """Bytes of all complete entries. Raises OSError."""
        return sum(size for _, size, _ in self._complete())

    def prune(self, limit: int = LIMIT, free: int = 0) -> list[Path]:
        """Removes unfinished entries, and the least recently used ones down to ``limit`` bytes.

        It goes on until ``free`` bytes of the disk are free. Keeps what any server uses, creates or removes.
        Returns what was removed; the next call tries again what could not be. Raises OSError.
        """
        removed = [entry.place for entry in self._entries() if not entry.is_complete and entry.remove()]
        complete = self._complete()
        total = sum(size for _, size, _ in complete)
        for _, size, place in sorted(complete):
            if total <= limit and (not free or shutil.disk_usage(self._folder).free >= free):
                break
            if CacheEntry(place).remove():
                removed.append(place)
                total -= size
        return removed

    def _complete(self) -> list[tuple[int, int, Path]]:
        """When each complete entry was last used, its bytes, and its place."""
        entries = []
        for entry in self._entries():
            with contextlib.suppress(OSError):
                entries.append((entry.last_use(), entry.size(), entry.place))
        return entries

    def _entries(self) -> Iterator[CacheEntry]:
        """All, and what is left of them, even if only the lock."""
        names = {path.name.removesuffix(_LOCK) for path in self._folder.iterdir()}
        return (CacheEntry(self._folder / name) for name in sorted(names) if name.startswith(_BEGINNINGS))
