"""The models' files on a node: fetched once for all its workers, and kept until there is no more room.

Below the root, ``archive-DIGEST`` are archives, and ``files-…`` the folders of workers. Locks and marks
are those of ``environments/shared_cache.py``: one process fetches and the others wait, an archive is not
used without its mark, and the locks of a process that dies are free. An archive is verified as a whole before
anything is unpacked, and its mark is written when everything else is on the disk.

A handler may write into its model's directory, as on a single machine; so each worker has its own. There,
small files are copies, large ones links to the read-only file of the archive: they take no room, and workers
share their pages in memory. A superuser can write to these too: a changed archive is not used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar
from uuid import uuid4

from modelserver.engine.file_locks import sync
from modelserver.models.environments.cache_folder import cache_folder
from modelserver.models.environments.shared_cache import CacheEntry, SharedCache, Use

Fetch = Callable[[int], AsyncIterator[bytes]]
"""The archive's bytes from an offset. OSError and EOFError: the connection is torn, and another one goes on.

Any other exception ends the attempt to get the archive.
"""

ROOT: Final = "MODELSERVER_NODE_CACHE"
LIMIT: Final = "MODELSERVER_NODE_CACHE_SIZE"
DEFAULT_LIMIT: Final = 20 << 30  # bytes

_T = TypeVar("_T")
_TRIES: Final = 5
_OTHER: Final = "what arrived has another SHA-256"
_OTHER_TRIES: Final = 2
_PATIENCE: Final = 60.0  # seconds without a byte
_BACKOFF: Final = 0.1  # seconds, twice as many after each failure
_WRITTEN: Final = 1 << 20  # bytes at once
_SYNCED: Final = 8  # files at once
_LINKED: Final = 1 << 20  # bytes from which on a file is linked
_TIME: Final = 315_619_200  # 1980-01-02, of all files of an archive; zip files know no earlier year
_SIZE: Final = "asked"  # the bytes of an archive that is being fetched


class ArchiveFailed(Exception):
    """A model's files cannot be brought to this node; the message says why, in one line."""


class TransferFailed(ArchiveFailed):
    """The connection to the server failed again and again."""


class Held:
    """The files of a model at ``path``, below a ``folder`` that is one worker's own, until it is released."""

    def __init__(self, folder: Path, path: Path, held: contextlib.AsyncExitStack) -> None:
        self.folder = folder
        self.path = path
        self._held = held

    async def release(self) -> None:
        """Removes the folder; from now on the archive may give way to others. Idempotent."""
        await self._held.aclose()


class ArchiveCache:
    """The archives of a node, shared by all processes of the user, and of any servers.

    Args:
        root: their folder, made if needed.
        limit: bytes of all archives; beyond that those that no worker uses are removed, the least recently
            used first. A file being fetched needs as much again until it is unpacked.

    Raises ArchiveFailed if others may look into the folder or change it.
    """

    def __init__(self, root: Path, limit: int = DEFAULT_LIMIT) -> None:
        self._root = root
        self._entries = SharedCache(root)
        self._limit = limit
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = root.stat()
        except OSError as error:
            raise ArchiveFailed(f"The folder {root} cannot be used: {error.strerror}.") from error
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ArchiveFailed(
                f"The folder {root} must belong to user {os.getuid()} and be closed to others (mode 700): "
                f"it belongs to {status.st_uid} and has mode {stat.S_IMODE(status.st_mode):o}."
            )

    @classmethod
    def of_node(cls, environment: Mapping[str, str]) -> ArchiveCache:
        """The cache that these environment variables name. Raises ArchiveFailed."""
        folder = environment.get(ROOT)
        root = Path(folder) if folder else cache_folder("archives", environment)
        if root is None or not root.is_absolute():
            raise ArchiveFailed(f"There is no safe folder for models' files: set {ROOT} to an absolute path.")
        limit = environment.get(LIMIT) or str(DEFAULT_LIMIT)
        if not (limit.isascii() and limit.isdecimal() and int(limit)):
            raise ArchiveFailed(f"{LIMIT}={limit}: a positive number of bytes is needed.")
        return cls(root, int(limit))

    async def hold(
        self, digest: str, size: int, fetch: Fetch, tell: Callable[[str], None] | None = None
    ) -> Held:
        """A directory with the files of the archive of ``size`` bytes with this SHA-256 (hexadecimal).

        ``fetch`` is called if the archive is not there; ``tell`` gets the progress, as text.

        Raises:
            ArchiveFailed: the transfer failed several times, other content arrived, or there is no room.
        """
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ArchiveFailed(f"{digest[:80]!r} is not a SHA-256 in hexadecimal digits.")
        place, own = self._root / f"archive-{digest}", self._root / f"files-{uuid4().hex}"
        async with contextlib.AsyncExitStack() as undo:
            try:
                use = await self._use(place, size, fetch, tell or (lambda _: None))
                undo.callback(use.end)
                await undo.enter_async_context(CacheEntry(own).locked(lambda: None))
                undo.push_async_callback(_to_the_end, shutil.rmtree, own, True)
                own.mkdir(mode=0o700)
                await _to_the_end(_furnish, place / "files", own / "model")
                await _to_the_end(self._entries.prune, self._limit)
            except OSError as error:
                raise self._failed(error, size) from error
            held = undo.pop_all()
        return Held(own, own / "model", held)

    async def _use(self, place: Path, size: int, fetch: Fetch, tell: Callable[[str], None]) -> Use:
        if (use := await self._use_of(place)) is not None:
            return use
        waits = partial(tell, "Waiting for another process of this node, which fetches the model's files")
        entry = CacheEntry(place)
        async with entry.locked(waits):
            if (use := await self._use_of(place)) is not None:
                return use
            await _to_the_end(self._begin, place, size)
            tell(f"Fetching the model's files, {size} bytes")
            part = place / "archive.tar"
            try:
                await _receive(part, place.name.partition("-")[2], size, fetch)
                await _to_the_end(_unpack, part, place / "files")
                part.unlink()  # before the disk gets all of it
                await _to_the_end(_sync, place / "files")
                entry.complete("workers of this node", size)
            except (asyncio.CancelledError, TransferFailed):
                raise  # another process may go on from what has arrived, until somebody needs the room
            except BaseException:
                await _to_the_end(entry.clear)
                raise
            use = entry.use()
        if use is None:
            raise ArchiveFailed(f"{place} was removed while it was made.")
        return use

    async def _use_of(self, place: Path) -> Use | None:
        use = CacheEntry(place).use()
        if use is None or await _to_the_end(_is_unchanged, place / "files"):
            return use
        use.end()
        return None

    def _begin(self, place: Path, size: int) -> None:
        """Makes room and the folder, in which an earlier transfer may have left its beginning."""
        if (place / "complete").exists():  # and has been changed: to be removed when nobody uses it any more
            os.utime(place / "complete", (0, 0))
            place.rename(place.with_name(f"{place.name}-changed-{uuid4().hex}"))
        place.mkdir(mode=0o700, exist_ok=True)
        if (place / "files").exists():
            shutil.rmtree(place / "files")
        part = place / "archive.tar"
        needed = 2 * size - (part.stat().st_size if part.exists() else 0)
        with (self._root / "room.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._entries.prune(self._limit)
            others = (each for each in self._root.glob("archive-*") if each != place)
            left = self._limit - sum(map(_size_of, others))
            self._entries.prune(left - size, needed)
            if (used := self._entries.total()) > left - size:
                shutil.rmtree(place)
                raise ArchiveFailed(
                    f"There is no room for the model's files in {self._root}: {size} bytes are needed, "
                    f"{max(left - used, 0)} of {self._limit} ({LIMIT}) are free, and workers use the others."
                )
            if shutil.disk_usage(self._root).free < needed:
                shutil.rmtree(place)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            (place / _SIZE).write_text(str(size), "ascii")

    def _failed(self, error: OSError, size: int) -> ArchiveFailed:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return ArchiveFailed(
                f"The model's files cannot be stored in {self._root}: {error.strerror or error}."
            )
        free = shutil.disk_usage(self._root).free
        return ArchiveFailed(
            f"There is no room for the model's files on the disk of {self._root}: {2 * size} bytes are "
            f"needed, packed and unpacked, {free} are free."
        )


class _Part:
    """The file of a transfer, with what an earlier one left of it. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b", buffering=0)
        self._hashed = hashlib.sha256()
        self._waiting = bytearray()
        self.size = 0

    def resume(self) -> None:
        self._file.seek(0)
        while data := self._file.read(_WRITTEN):
            self._hashed.update(data)
            self.size += len(data)

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def digest(self) -> str:
        return self._hashed.hexdigest()

    async def add(self, piece: bytes) -> None:
        """Appends bytes, small ones together."""
        self._waiting += piece
        self.size += len(piece)
        if len(self._waiting) >= _WRITTEN:
            await _to_the_end(self.write)

    def write(self) -> None:
        self._hashed.update(self._waiting)
        while self._waiting:
            del self._waiting[: self._file.write(self._waiting)]

    def empty(self) -> None:
        self._file.truncate(0)
        self._hashed = hashlib.sha256()
        self.size = 0


async def _receive(part: Path, digest: str, size: int, fetch: Fetch) -> None:
    """Has the file complete and verified, after several tries if needed. Raises TransferFailed, OSError."""
    problems: list[str] = []
    with _Part(part) as got:
        await _to_the_end(got.resume)
        while True:
            if got.size < size and (problem := await _append(got, size, fetch)):
                problems.append(problem)
            await _to_the_end(got.write)
            if got.size == size and got.digest == digest:
                return
            if got.size >= size:
                problems.append(_OTHER)
                await _to_the_end(got.empty)
            if len(problems) == _TRIES or problems.count(_OTHER) == _OTHER_TRIES:
                break
            await asyncio.sleep(_BACKOFF * 2 ** len(problems))
    raise TransferFailed(f"The model's files could not be fetched, {len(problems)} times: {problems[-1]}.")


async def _append(got: _Part, size: int, fetch: Fetch) -> str:
    """Appends what arrives until the archive's end; returns why it ended before that. Raises OSError."""
    pieces = fetch(got.size)
    try:
        while got.size < size:
            try:
                piece = await asyncio.wait_for(anext(pieces), _PATIENCE)
            except StopAsyncIteration:
                return f"the connection ended after {got.size} of {size} bytes"
            except asyncio.TimeoutError:
                return f"nothing arrived for {_PATIENCE:g} s, after {got.size} of {size} bytes"
            except (OSError, EOFError) as error:
                return f"{str(error) or type(error).__name__}, after {got.size} of {size} bytes"
            await got.add(piece)
    finally:
        if (close := getattr(pieces, "aclose", None)) is not None:
            await close()
    return ""


def _unpack(archive: Path, target: Path) -> None:
    """Unpacks a verified archive. Raises ArchiveFailed and OSError."""
    links: set[PurePosixPath] = set()

    def checked(member: tarfile.TarInfo, where: str) -> tarfile.TarInfo:
        """Stricter than Python's filter, which rewrites names, and has had holes."""
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not links.isdisjoint((path, *path.parents)):
            raise ArchiveFailed(f"{member.name[:200]!r} in the model's archive leads elsewhere.")
        if member.type not in (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE) or member.issparse():
            raise ArchiveFailed(f"{member.name[:200]!r} in the model's archive is no file or directory.")
        if member.issym():
            links.add(path)
        safe = tarfile.data_filter(member, where)
        mode = 0o700 if member.isdir() else 0o555 if member.mode & stat.S_IXUSR else 0o444
        return safe.replace(mode=mode, mtime=_TIME, deep=False)

    if not hasattr(tarfile, "data_filter"):
        raise ArchiveFailed("This node's Python cannot unpack safely: 3.10.12, 3.11.4 or later is needed.")
    target.mkdir(mode=0o700)
    try:
        with tarfile.TarFile(archive, copybufsize=_WRITTEN) as opened:
            opened.extractall(target, filter=checked)  # noqa: S202 - it has a filter
    except tarfile.TarError as error:
        raise ArchiveFailed(f"The model's archive cannot be unpacked: {error}.") from error


def _sync(files: Path) -> None:
    """Waits until the disk has all files and folders; it takes several at once. Raises OSError."""
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(files) for name in (*names, ""))
    with ThreadPoolExecutor(_SYNCED) as pool:
        list(pool.map(sync, (path for path in paths if not os.path.islink(path))))


def _furnish(source: Path, target: Path) -> None:
    """Makes a worker's own directory of an archive's. Raises OSError."""
    for folder, folders, files in os.walk(source, onerror=_raise):
        own = target / os.path.relpath(folder, source)
        own.mkdir(mode=0o700)
        for name in folders:
            _copy_link(os.path.join(folder, name), own / name)
        for name in files:
            path = os.path.join(folder, name)
            if not _copy_link(path, own / name):
                _copy(path, own / name)


def _copy_link(path: str, copy: Path) -> bool:
    """Whether it was a link."""
    if not os.path.islink(path):
        return False
    copy.symlink_to(os.readlink(path))
    return True


def _copy(path: str, copy: Path) -> None:
    """Links a large file if the file system can do that, copies others."""
    status = os.stat(path)
    if status.st_size >= _LINKED:
        with contextlib.suppress(OSError):
            os.link(path, copy)
            return
    shutil.copyfile(path, copy)
    copy.chmod(0o700 if status.st_mode & stat.S_IXUSR else 0o600)


def _is_unchanged(files: Path) -> bool:
    """Whether no file was written to since it was unpacked."""
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(files) for name in names)
    return all(int(os.lstat(path).st_mtime) == _TIME or os.path.islink(path) for path in paths)


def _size_of(place: Path) -> int:
    """The bytes of an archive that is being fetched, 0 for another folder."""
    with contextlib.suppress(OSError, ValueError):
        return 0 if (place / "complete").exists() else int((place / _SIZE).read_text("ascii"))
    return 0


def _raise(error: OSError) -> None:
    raise error


async def _to_the_end(function: Callable[..., _T], *arguments: object) -> _T:
    """In a thread. A caller who is cancelled waits for its end, as it holds the lock for it until then."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()
        raise
