"""The files of a model as one stream of bytes, named by its SHA-256, for workers on other machines.

The stream is a tar archive that is never stored: its headers are kept in memory, contents are read from the
model's directory when they are sent. So a model takes no further room on disk, and a lost connection can go
on at any byte. In return the files must not change after the digest was computed, which each read checks.

Equal contents have equal digests: entries are sorted, have neither times nor owners, and say of a file's mode
only whether it may be executed. Compiled modules in ``__pycache__`` are left out: workers write them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import stat
import tarfile
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Final, cast

_log = logging.getLogger("modelserver.workers")

PIECE: Final = 256 << 10
"""Bytes that a piece of the stream has at most."""

_END: Final = bytes(2 * tarfile.BLOCKSIZE)
_LEFT_OUT: Final = "__pycache__"


class PackingFailed(OSError):
    """A model's files cannot be sent to other machines; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of the archive; ``state`` tells whether the file at ``path`` is still as it was hashed."""

    header: bytes
    path: str = ""
    size: int = 0
    state: tuple[int, ...] = ()

    @property
    def padded(self) -> int:
        return len(self.header) + self.size + -self.size % tarfile.BLOCKSIZE

    def read(self, offset: int, most: int) -> bytes:
        """Some bytes from there, at least one. Raises PackingFailed."""
        if offset < len(self.header):
            return self.header[offset : offset + most]
        offset -= len(self.header)
        if offset < self.size:
            return self._content(offset, min(most, self.size - offset))
        return bytes(min(most, self.size + -self.size % tarfile.BLOCKSIZE - offset))

    def _content(self, offset: int, most: int) -> bytes:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                unchanged = _state(os.fstat(descriptor)) == self.state
                data = os.pread(descriptor, most, offset) if unchanged else b""
            finally:
                os.close(descriptor)
        except OSError as error:
            raise PackingFailed(f"The model's file {self.path} cannot be read: {error.strerror}.") from error
        if not data:
            raise PackingFailed(f"The model's file {self.path} has changed since the model was loaded.")
        return data


@dataclass(frozen=True, slots=True)
class Packed:
    """A model's directory as a stream of ``size`` bytes with this SHA-256, in hexadecimal."""

    path: Path
    digest: str
    size: int
    _entries: tuple[_Entry, ...] = field(repr=False)
    _starts: tuple[int, ...] = field(repr=False)

    async def read(self, offset: int = 0) -> AsyncIterator[bytes]:
        """The stream from there, in pieces of at most ``PIECE`` bytes, read in a thread.

        Raises PackingFailed if a file has changed or cannot be read.
        """
        while piece := await asyncio.to_thread(_piece, self._entries, self._starts, offset):
            yield piece
            offset += len(piece)


class Packer:
    """Packs directories, and remembers their digests until they change or are gone."""

    def __init__(self) -> None:
        self._packed: dict[Path, Packed] = {}
        self._running: dict[Path, asyncio.Task[Packed]] = {}
        self._hashing = asyncio.Lock()

    async def pack(self, model_dir: Path) -> Packed:
        """The directory as a stream. All who ask at the same time wait for the same work, done in a thread.

        Links that lead out of the directory are followed: of a script, what is beside it, of a hub model, its
        files in the hub's cache; archives have none. Raises PackingFailed for what cannot be sent: links in a
        circle, devices and other special files, files that cannot be read or that change meanwhile.
        """
        running = self._running.get(model_dir)
        if running is None:
            running = self._running[model_dir] = asyncio.create_task(self._pack(model_dir))
            running.add_done_callback(lambda done: self._ended(model_dir, done))
        return await asyncio.shield(running)

    async def _pack(self, model_dir: Path) -> Packed:
        entries = await asyncio.to_thread(_entries, model_dir)
        async with self._hashing:  # the disk is busy with one
            packed = self._packed.get(model_dir)
            if packed is None or packed._entries != entries:
                await asyncio.to_thread(self._forget_removed)
                packed = self._packed[model_dir] = await asyncio.to_thread(_hashed, model_dir, entries)
        return packed

    def _ended(self, model_dir: Path, done: asyncio.Task[Packed]) -> None:
        del self._running[model_dir]
        if not done.cancelled():
            done.exception()  # nobody may be waiting any more

    def _forget_removed(self) -> None:
        for path in [path for path in self._packed if not path.exists()]:
            del self._packed[path]


def _hashed(model_dir: Path, entries: tuple[_Entry, ...]) -> Packed:
    *starts, size = accumulate((entry.padded for entry in entries), initial=0)
    hashed, offset = hashlib.sha256(), 0
    while piece := _piece(entries, starts, offset):
        hashed.update(piece)
        offset += len(piece)
    return Packed(model_dir, hashed.hexdigest(), size, entries, tuple(starts))


def _piece(entries: tuple[_Entry, ...], starts: list[int] | tuple[int, ...], offset: int) -> bytes:
    """The bytes from an offset, ``PIECE`` unless the stream ends; none at its end. Raises PackingFailed."""
    piece = bytearray()
    index = bisect_right(starts, offset) - 1
    while len(piece) < PIECE and index < len(entries):
        within = offset + len(piece) - starts[index]
        if within < entries[index].padded:
            piece += entries[index].read(within, PIECE - len(piece))
        else:
            index += 1
    return bytes(piece)


def _entries(model_dir: Path) -> tuple[_Entry, ...]:
    """All entries of the archive in their order. Raises PackingFailed."""
    try:
        root = Path(os.path.realpath(model_dir))
        return (*_below((root,), "", root), _Entry(_END))
    except PackingFailed:
        raise
    except OSError as error:
        place = error.filename or model_dir
        raise PackingFailed(f"The model's files cannot be read: {place}: {error.strerror}.") from error


def _below(roots: tuple[Path, ...], prefix: str, folder: Path) -> Iterator[_Entry]:
    """The entries of a folder, with names that begin with ``prefix``.

    ``roots`` are the model's directory and those outside that links have led into; the last has the folder.
    """
    with os.scandir(folder) as entries:
        children = sorted(entries, key=lambda child: os.fsencode(child.name))
    for child in children:
        info, path, below = tarfile.TarInfo(f"{prefix}{child.name}"), Path(child.path), roots
        if child.is_symlink():
            path = Path(os.path.realpath(path))
            if path.is_relative_to(roots[-1]):
                info.type, info.linkname = tarfile.SYMTYPE, os.path.relpath(path, folder)
                yield _Entry(_header(info))
                continue
            below = (*roots, path)
            if not path.exists():
                continue
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            _check_circle(info.name, path, below)
            if child.name != _LEFT_OUT:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                yield _Entry(_header(info))
                yield from _below(below, f"{info.name}/", path)
        elif stat.S_ISREG(status.st_mode):
            info.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
            info.size = status.st_size
            yield _Entry(_header(info), str(path), status.st_size, _state(status))
        elif len(below) == 1:
            kind = "neither a file nor a directory"
            raise PackingFailed(f"The model cannot be sent to other machines: {info.name!r} is {kind}.")


def _check_circle(name: str, path: Path, roots: tuple[Path, ...]) -> None:
    """Raises PackingFailed for a link into a directory that has the link itself."""
    if path == roots[-1] and any(each.is_relative_to(path) for each in roots[:-1]):
        circle = f"the link {name!r} leads to {str(path)!r}, which has it"
        raise PackingFailed(f"The model cannot be sent to other machines: {circle}.")


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Differs if a file was changed or replaced."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class ArchiveSender(asyncio.Protocol):
    """Sends a model's stream from ``offset`` to its end to an agent, and closes the connection."""

    def __init__(self, packed: Packed, offset: int) -> None:
        self._packed = packed
        self._offset = offset
        self._room = asyncio.Event()
        self._room.set()
        self._sending: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._sending = asyncio.create_task(self._send(cast("asyncio.Transport", transport)))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sending is not None:
            self._sending.cancel()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def _send(self, transport: asyncio.Transport) -> None:
        try:
            async for piece in self._packed.read(self._offset):
                transport.write(piece)
                await self._room.wait()
        except PackingFailed as error:
            # The agent notices that bytes are missing.
            _log.error("%s", error)
        transport.close()
