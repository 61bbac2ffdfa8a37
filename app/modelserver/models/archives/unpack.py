"""Unpacking archives that may be hostile: everything is checked before anything is written (F58).

Zip (``.mar``) and gzipped tar are distinguished by content, not by suffix. Only regular files and directories
are allowed, with names that stay below the destination on every file system. Declared sizes are checked
before writing, and actual sizes while writing, because declarations can be wrong.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final, cast

from modelserver.errors import InvalidModel
from modelserver.models.archives.manifest import MANIFEST_PATH

_CHUNK: Final = 1 << 20
_MAX_PADDING: Final = 16 << 20
_MAX_NAME_BYTES: Final = 255
_MAX_PATH_BYTES: Final = 1024
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ENCRYPTED: Final = 0x1 | 0x40  # classic and strong encryption bits
_ZIP_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those of TorchServe
_TAR_TYPES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)
_UNREADABLE: Final = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much an archive may expand to; sizes in bytes.

    ``max_ratio`` compares the unpacked size with the archive's, from ``ratio_floor`` unpacked bytes on: small
    archives of zeros are harmless.
    """

    max_entries: int = 20_000
    max_total_bytes: int = 128 << 30
    max_ratio: int = 100
    ratio_floor: int = 256 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry as declared; ``parts`` are the components of its checked name."""

    name: str
    parts: tuple[str, ...]
    is_directory: bool
    size: int
    open: Callable[[], IO[bytes]]


class UnsafeEntryError(ValueError):
    """A name that must not be written; the message is the rule."""


def unpack(archive: Path, destination: Path, limits: Limits | None = None) -> None:
    """Unpack a zip or gzipped tar into ``destination``, which must be absent or empty.

    Directories get mode 0700, files 0600. The first component of a gzipped tar's names is dropped (reference
    10.3), unless the manifest is already in its place. Raises ``InvalidModel`` naming archive, entry and rule
    and leaves nothing behind; ``OSError`` if the destination cannot be written.
    """
    limits = limits or Limits()
    allowed = min(limits.max_total_bytes, max(limits.ratio_floor, limits.max_ratio * archive.stat().st_size))
    with contextlib.ExitStack() as cleanup:
        with archive.open("rb") as file, _reading(archive.name, file, limits, allowed) as entries:
            _check_paths(archive.name, entries)
            destination.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(destination.iterdir()):
                raise FileExistsError(f"{destination} is not empty")
            cleanup.callback(shutil.rmtree, destination, ignore_errors=True)
            _write(archive.name, entries, destination, allowed)
        cleanup.pop_all()


def safe_parts(name: str) -> tuple[str, ...]:
    """The components of an entry's name, ``.`` left out; may be empty.

    Raises ``UnsafeEntryError`` for a name that could be written elsewhere or not at all.
    """
    if not name:
        raise UnsafeEntryError("an empty name is not allowed")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise UnsafeEntryError("NUL, control characters and invalid Unicode are not allowed")
    if name.startswith("/") or _DRIVE.match(name):
        raise UnsafeEntryError("absolute names are not allowed")
    if "\\" in name:
        raise UnsafeEntryError("backslashes are not allowed")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise UnsafeEntryError("'..' is not allowed")
    if len(name.encode()) > _MAX_PATH_BYTES or any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        raise UnsafeEntryError(f"a name may have {_MAX_NAME_BYTES} bytes, a path {_MAX_PATH_BYTES}")
    return parts


def refused(archive: str, rule: str, entry: str | None = None) -> InvalidModel:
    """The error that names archive, entry and rule; names are escaped and truncated."""
    where = f", entry {entry[:200]!r}" if entry is not None else ""
    return InvalidModel(f"Invalid archive {archive!r}{where}: {rule}.")


@contextlib.contextmanager
def _reading(archive: str, file: IO[bytes], limits: Limits, allowed: int) -> Iterator[list[_Entry]]:
    """The entries of an open archive, checked one by one and in total; to be read inside the context."""
    magic = file.read(4)
    file.seek(0)
    with contextlib.ExitStack() as stack:
        if magic in _ZIP_MAGIC:
            with _unreadable(archive):
                source = stack.enter_context(zipfile.ZipFile(file))
                entries = _bounded(archive, _zip_entries(archive, source), limits, allowed)
            yield entries
        elif magic.startswith(_GZIP_MAGIC):
            with _unreadable(archive):
                plain = stack.enter_context(_GzipInPieces(fileobj=file))
                tar = stack.enter_context(tarfile.TarFile(fileobj=plain))
                entries = _bounded(archive, _tar_entries(archive, tar), limits, allowed)
            yield _without_first_component(entries)
            with _unreadable(archive):
                _read_padding(plain)
        else:
            raise refused(archive, "it is neither a zip file (.mar) nor a gzipped tar file (.tar.gz)")


@contextlib.contextmanager
def _unreadable(archive: str, entry: str | None = None) -> Iterator[None]:
    """Turn the parsers' exceptions for broken archives into our errors."""
    try:
        yield
    except _UNREADABLE as error:
        raise refused(archive, f"it cannot be read ({_reason(error)})", entry) from error


def _read_padding(plain: gzip.GzipFile) -> None:
    """Reach the end of the gzip stream, where its checksum is compared."""
    for _ in range(_MAX_PADDING // _CHUNK):
        if not plain.read(_CHUNK):
            return
    raise tarfile.ReadError("too much data follows the end of the archive")


def _bounded(archive: str, declared: Iterable[_Entry], limits: Limits, allowed: int) -> list[_Entry]:
    """All entries, after checking their number and declared sizes."""
    entries: list[_Entry] = []
    total = 0
    for entry in declared:
        entries.append(entry)
        total += entry.size
        if len(entries) > limits.max_entries:
            raise refused(archive, f"it has more than {limits.max_entries} entries")
        if total > allowed:
            raise refused(archive, _too_large(allowed), entry.name)
    return entries


def _zip_entries(archive: str, source: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in source.infolist():
        parts = _checked_parts(archive, info.orig_filename)
        if info.filename != info.orig_filename:  # a second name, from the Unicode path field
            parts = _checked_parts(archive, info.filename)
        if info.flag_bits & _ENCRYPTED:
            raise refused(archive, "encrypted entries are not allowed", info.filename)
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise refused(archive, "links, devices and other special files are not allowed", info.filename)
        if info.compress_type not in _ZIP_METHODS:
            raise refused(archive, "only stored and deflated entries are allowed", info.filename)
        yield _Entry(info.filename, parts, info.is_dir(), info.file_size, partial(source.open, info))


def _tar_entries(archive: str, source: tarfile.TarFile) -> Iterator[_Entry]:
    for member in source:
        parts = _checked_parts(archive, member.name)
        if member.type not in _TAR_TYPES or member.sparse is not None:
            raise refused(archive, "links, devices and other special files are not allowed", member.name)
        if member.size < 0:
            raise refused(archive, "its size is negative", member.name)
        # It is None for what is no file, which nobody opens.
        opened = cast("Callable[[], IO[bytes]]", partial(source.extractfile, member))
        yield _Entry(member.name, parts, member.isdir(), member.size, opened)


def _checked_parts(archive: str, name: str) -> tuple[str, ...]:
    try:
        return safe_parts(name)
    except UnsafeEntryError as error:
        raise refused(archive, str(error), name) from error


def _without_first_component(entries: list[_Entry]) -> list[_Entry]:
    """Strip the top folder of a model's tar archive; a file beside it keeps its name."""
    if any("/".join(entry.parts) == MANIFEST_PATH for entry in entries):
        return entries
    return [
        _Entry(entry.name, entry.parts[1:], entry.is_directory, entry.size, entry.open)
        if entry.is_directory or len(entry.parts) > 1
        else entry
        for entry in entries
    ]


def _check_paths(archive: str, entries: list[_Entry]) -> None:
    """Refuse names that would collide on disk, also if the file system ignores case or Unicode form."""
    seen: dict[str, tuple[tuple[str, ...], bool]] = {}
    for entry in entries:
        if not entry.parts and not entry.is_directory:
            raise refused(archive, "a file needs a name", entry.name)
        for depth in range(1, len(entry.parts) + 1):
            path, is_directory = entry.parts[:depth], depth < len(entry.parts) or entry.is_directory
            key = _same_on_disk(path)
            if key not in seen:
                seen[key] = (path, is_directory)
                continue
            other_path, other_is_directory = seen[key]
            if other_path != path:
                rule = f"it differs from {'/'.join(other_path)[:200]!r} only in upper and lower case"
                raise refused(archive, rule, entry.name)
            if not (is_directory and other_is_directory):
                raise refused(archive, "the name occurs twice", entry.name)


def _same_on_disk(parts: tuple[str, ...]) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", "/".join(parts)).casefold())


def _write(archive: str, entries: list[_Entry], destination: Path, allowed: int) -> None:
    left = allowed
    for entry in entries:
        path = destination.joinpath(*entry.parts)
        folder = path if entry.is_directory else path.parent
        _make_folders(destination, folder)
        if entry.is_directory:
            continue
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as target:
            for chunk in _chunks(archive, entry):
                left -= len(chunk)
                if left < 0:
                    raise refused(archive, _too_large(allowed), entry.name)
                target.write(chunk)


def _make_folders(destination: Path, folder: Path) -> None:
    """Like ``mkdir(parents=True)``, but with this mode for the parents too."""
    current = destination
    for part in folder.relative_to(destination).parts:
        current /= part
        current.mkdir(mode=0o700, exist_ok=True)


def _chunks(archive: str, entry: _Entry) -> Iterator[bytes]:
    size = 0
    with _unreadable(archive, entry.name), entry.open() as content:
        while chunk := content.read(_CHUNK):
            size += len(chunk)
            yield chunk
    if size != entry.size:
        raise refused(archive, f"it has {size} bytes instead of {entry.size}", entry.name)


def _too_large(allowed: int) -> str:
    return f"unpacked it would have more than the {allowed} bytes allowed for an archive of its size"


def _reason(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text or type(error).__name__).splitlines()[0][:200]


class _GzipInPieces(gzip.GzipFile):
    """A gzip file that refuses large reads: the tar parser reads an extended header of any size at once."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _CHUNK:
            raise tarfile.ReadError("a header is too large")
        return super().read(size)
