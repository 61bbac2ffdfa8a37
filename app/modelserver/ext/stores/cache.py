"""The archives that were fetched from object stores, by their content; only in the process that fetches.

All servers of a user on this machine share the folder, with the locks and marks of
``environments/shared_cache.py``. In it, ``archive-SHA256`` has an archive, ``object-ID`` says which one
a version of an object is, and ``files-ID`` is where one is being fetched; if that is interrupted, the next
one goes on from there, until somebody needs the room. A folder of a store becomes one archive, a zip file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import zipfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, Final

from modelserver.engine.file_locks import replace_file
from modelserver.errors import DownloadFailed, InternalError
from modelserver.ext.stores.stores import Changed, Item, Store
from modelserver.models.environments.shared_cache import CacheEntry, SharedCache, Use

Progress = Callable[[int, int], None]
"""Gets the bytes that have arrived, and all."""

_RANGE: Final = 4 << 20  # bytes of a request
_AT_ONCE: Final = 8  # requests
_TRIES: Final = 3
_PAUSE: Final = 0.5  # seconds, twice as many after each failure
_FILE: Final = "archive"
_PIECE: Final = 1 << 20
_TIME: Final = 315_619_200  # 1980-01-02, of all archives, and of all files in zip files


class Cache:
    """The folder ``root``, with at most ``limit`` bytes of archives; those in use are not removed."""

    def __init__(self, root: Path, limit: int) -> None:
        self._root = root
        self._entries = SharedCache(root)
        self._limit = limit
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def hold(
        self, opened: Store, items: list[Item], url: str, progress: Progress, waits: Callable[[], None]
    ) -> tuple[Path, Use]:
        """The archive of these objects, which stays until its use ends; people read the ``url`` in its mark.

        Raises ``DownloadFailed``, ``InternalError`` if there is no room, ``OSError``, and what stores raise.
        """
        size = sum(item.size for item in items)
        versions = [(item.name, item.path, item.version, item.size) for item in items]
        description = json.dumps([type(opened).__name__, opened.endpoint, versions]).encode()
        identity = hashlib.sha256(description).hexdigest()
        known = self._root / f"object-{identity}"
        if (held := self._held(known)) is not None:
            return held
        async with CacheEntry(part := self._root / f"files-{identity}").locked(waits):
            if (held := self._held(known)) is not None:
                return held
            part.mkdir(mode=0o700, exist_ok=True)
            self._make_room(part, size, packed=len(items) > 1)
            try:
                complete = _fetch_all(opened, items, part, progress)
                _check_unchanged(opened, items)
            except (Changed, DownloadFailed):
                shutil.rmtree(part)
                raise
            digest = _digest(complete, "sha256")
            use = await self._keep(complete, digest, url)
            replace_file(known, digest.encode())
            shutil.rmtree(part)
        self._prune()
        return self._root / f"archive-{digest}" / _FILE, use

    def _held(self, known: Path) -> tuple[Path, Use] | None:
        """The archive of a version of an object, if it is there."""
        try:
            entry = CacheEntry(self._root / f"archive-{known.read_text('ascii')}")
        except (OSError, ValueError):
            return None
        use = _used(entry)
        return None if use is None else (entry.place / _FILE, use)

    async def _keep(self, complete: Path, digest: str, url: str) -> Use:
        """Moves a verified archive to its place, unless the same content is there."""
        entry = CacheEntry(self._root / f"archive-{digest}")
        async with entry.locked(lambda: None):
            if (use := _used(entry)) is not None:
                return use
            _move(complete, entry, url)
            use = entry.use()
        if use is None:
            raise InternalError(f"{entry.place} was removed while it was made.")
        return use

    def _make_room(self, part: Path, size: int, *, packed: bool) -> None:
        """Raises ``InternalError`` if the archive does not fit into the cache or on the disk."""
        if size > self._limit:
            raise InternalError(f"it has {size} bytes, and download_cache_size is {self._limit}")
        here = sum(path.stat().st_size for path in part.iterdir())
        needed = max(0, size * (2 if packed else 1) - here)
        with (self._root / "room.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._entries.prune(self._limit - size, needed)
        free = shutil.disk_usage(self._root).free
        if free < needed:
            raise InternalError(f"there is no room for it: {needed} bytes are needed, {free} are free")

    def _prune(self) -> None:
        self._entries.prune(self._limit)
        for known in self._root.glob("object-*"):
            try:
                digest = known.read_text("ascii")
            except (OSError, UnicodeDecodeError):
                digest = ""
            if not (self._root / f"archive-{digest}").exists():
                known.unlink(missing_ok=True)


def _used(entry: CacheEntry) -> Use | None:
    """The use of an archive that is there, and was not written to since."""
    if (use := entry.use()) is None:
        return None
    try:
        if int((entry.place / _FILE).stat().st_mtime) == _TIME:
            return use
    except OSError:
        pass
    use.end()
    return None


def _move(complete: Path, entry: CacheEntry, origin: str) -> None:
    entry.begin()
    size = complete.stat().st_size
    complete.chmod(0o400)
    os.utime(complete, (_TIME, _TIME))
    complete.rename(entry.place / _FILE)
    entry.complete(origin, size)


def _fetch_all(opened: Store, items: list[Item], part: Path, progress: Progress) -> Path:
    """The archive: the only object, or a zip file of all those of a folder."""
    total, before = sum(item.size for item in items), 0
    for number, item in enumerate(items):
        _check_name(item.name)
        file = part / str(number)
        start = before
        _fetch(opened, item, file, lambda got, start=start: progress(start + got, total))  # type: ignore[misc]
        before += item.size
    if not items[0].name:
        return (part / "0").rename(part / _FILE)
    packed = part / _FILE
    with zipfile.ZipFile(packed, "w") as archive:
        for number, item in enumerate(items):
            entry = zipfile.ZipInfo(item.name, (1980, 1, 2, 0, 0, 0))
            entry.file_size = item.size
            with (part / str(number)).open("rb") as got, archive.open(entry, "w") as into:
                shutil.copyfileobj(got, into, _PIECE)
            (part / str(number)).unlink()
    return packed


def _check_unchanged(opened: Store, items: list[Item]) -> None:
    """Raises :class:`Changed`."""
    if not opened.has_still(items):
        raise Changed


def _check_name(name: str) -> None:
    """Raises ``DownloadFailed`` for an object whose name leads out of its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or "//" in name:
        raise DownloadFailed(f"the name of {name[:200]!r} leads elsewhere")


def _fetch(opened: Store, item: Item, file: Path, progress: Callable[[int], None]) -> None:
    """Completes the file, and verifies it. Raises ``DownloadFailed``."""
    with file.open("ab") as into, ThreadPoolExecutor(_AT_ONCE) as threads:
        if into.tell() > item.size:
            into.truncate(0)
        done = ahead = into.tell()
        waiting: deque[Future[bytes]] = deque()
        while done < item.size:
            while ahead < item.size and len(waiting) < _AT_ONCE:
                end = min(ahead + _RANGE, item.size)
                waiting.append(threads.submit(_read, opened, item, ahead, end))
                ahead = end
            try:
                data = waiting.popleft().result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
            into.write(data)
            done += len(data)
            progress(done)
    algorithm, expected = item.checksum
    if not algorithm:
        return
    digest = _digest(file, algorithm, item.size)
    if digest != expected and opened.vouches_for(item):
        raise DownloadFailed(f"its checksum is wrong: {algorithm} {digest} instead of {expected}")


def _read(opened: Store, item: Item, start: int, end: int) -> bytes:
    """A range, after a few tries. Raises what the store raises."""
    for attempt in range(_TRIES):
        try:
            return opened.read(item, start, end)
        except Exception as error:  # noqa: PERF203 - a few times
            if isinstance(error, (Changed, PermissionError)) or attempt == _TRIES - 1:
                raise
            time.sleep(_PAUSE * 2**attempt)
    raise AssertionError


def _digest(path: Path, algorithm: str, size: int = 0) -> str:
    """The digest of a file in hexadecimal; ``git`` is the id of a blob of ``size`` bytes."""
    if algorithm == "crc32c":
        hasher: Any = import_module("google_crc32c").Checksum()
    elif algorithm == "git":
        hasher = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    else:
        hasher = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(_PIECE):
            hasher.update(data)
    return str(hasher.digest().hex())
