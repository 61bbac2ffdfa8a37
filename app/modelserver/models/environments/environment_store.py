"""The folder of installed environments, or of fetched archives: which are complete, in use, or to be removed.

Beside an environment is its lock file, locked while a server creates or removes it; in it is its mark, which
exists once it is complete, and on which each user holds a shared lock. The system frees the locks of a server
that dies. Unfinished installations are removed, and while the total size is over the limit, unused
environments too, the least recently used first.
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

LIMIT = 16 << 30  # bytes of all environments that are kept
KINDS = ("packages", "venv", "archive", "files")  # how names begin; the last two are of nodes of a cluster

_MARK = "complete"
_LOCK = ".lock"
_POLL = 0.1  # seconds


class Use:
    """A server's shared lock on an environment, until ``end`` or until the object is deleted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def end(self) -> None:
        """From now on the environment may be removed. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.end()


def use(place: Path) -> Use | None:
    """A shared lock on the complete environment, marked as used now; None if it does not exist."""
    mark = place / _MARK
    descriptor = open_locked(mark, os.O_RDONLY, fcntl.LOCK_SH)
    if descriptor is None:
        return None
    with contextlib.suppress(OSError):
        os.utime(mark)
    return Use(descriptor)


def begin(place: Path) -> None:
    """Makes an empty folder, whose lock is held, for an installation; removes an unfinished one. OSError."""
    clear(place)
    place.mkdir(mode=0o700)


def complete(place: Path, owner: str, size: int) -> None:
    """Marks an environment, whose lock is held, as complete; ``owner`` is for people who read the mark."""
    replace_file(place / _MARK, f"made for {owner}\nbytes: {size}\n".encode())


def size_of(place: Path) -> int:
    """Bytes on disk; links are not followed."""
    total = 0
    for folder, _, files in os.walk(place):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def clear(place: Path) -> None:
    """Removes an environment, whose lock is held, the mark first. Raises OSError."""
    (place / _MARK).unlink(missing_ok=True)
    if place.exists():
        shutil.rmtree(place)


@contextlib.asynccontextmanager
async def locked(place: Path, waits: Callable[[], None]) -> AsyncIterator[int]:
    """Waits for the lock of an environment; ``waits`` is called if it is not free at once.

    Yields its descriptor: a child that inherits it holds the lock too, as long as it lives.
    """
    path = _lock_of(place)
    has_waited = False
    while (descriptor := open_locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)) is None:
        if not has_waited:
            has_waited = True
            waits()
        await asyncio.sleep(_POLL)
    try:
        yield descriptor
    finally:
        _free(place, descriptor)


def total(folder: Path) -> int:
    """Bytes of all complete environments."""
    return sum(size for _, size, _ in _complete(folder))


def prune(folder: Path, limit: int = LIMIT, free: int = 0) -> list[Path]:
    """Removes unfinished installations, and the least recently used environments down to ``limit`` bytes.

    It goes on until ``free`` bytes of the disk are free. Keeps what any server uses, creates or removes.
    Returns what was removed; the next call tries again what could not be.
    """
    removed = []
    for place in _places(folder):
        with contextlib.suppress(OSError):
            if not (place / _MARK).exists():
                removed += [place] if _removed(place) else []
    environments = _complete(folder)
    total = sum(size for _, size, _ in environments)
    for _, size, place in sorted(environments):
        if total <= limit and (not free or shutil.disk_usage(folder).free >= free):
            break
        with contextlib.suppress(OSError):
            if _removed(place):
                removed.append(place)
                total -= size
    return removed


def _complete(folder: Path) -> list[tuple[int, int, Path]]:
    """When each was last used, its bytes, and its place."""
    environments = []
    for place in _places(folder):
        with contextlib.suppress(OSError):
            environments.append(((place / _MARK).stat().st_mtime_ns, _known_bytes(place), place))
    return environments


def _places(folder: Path) -> Iterator[Path]:
    """Environments and what is left of them, even if only the lock."""
    names = {path.name.removesuffix(_LOCK) for path in folder.iterdir()}
    return (folder / name for name in sorted(names) if name.startswith(tuple(f"{kind}-" for kind in KINDS)))


def _removed(place: Path) -> bool:
    """Removes an environment that no server creates or uses; False if one does. Raises OSError."""
    lock = open_locked(_lock_of(place), os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
    if lock is None:
        return False
    try:
        mark = place / _MARK
        alone = open_locked(mark, os.O_RDWR, fcntl.LOCK_EX) if mark.exists() else None
        if alone is None and mark.exists():
            return False
        try:
            clear(place)
        finally:
            if alone is not None:
                os.close(alone)
    finally:
        _free(place, lock)
    return True


def _lock_of(place: Path) -> Path:
    return place.with_name(place.name + _LOCK)


def _free(place: Path, descriptor: int) -> None:
    """Releases a lock; removes its file if there is no environment."""
    with contextlib.suppress(OSError):
        if not place.exists():
            _lock_of(place).unlink(missing_ok=True)
    os.close(descriptor)


def _known_bytes(place: Path) -> int:
    """The size in the mark, or as counted."""
    size = (place / _MARK).read_text("utf-8", "replace").rpartition("bytes: ")[2].strip()
    return int(size) if size.isascii() and size.isdecimal() else size_of(place)
