"""A hash of an archive's requirements file and of the local files that it names."""

from __future__ import annotations

import hashlib
import re
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# `-r other.txt` and `-c limits.txt`, in all their spellings.
_FURTHER = re.compile(r"(?:-r|-c|--requirement|--constraint)[ =]*(\S+)")
_OPTION = re.compile(r"(?:-\S|--[\w-]+)[ =]+(\S+)")
_EDITABLE = re.compile(r"-e\b|--editable\b")
_MAX_FILES = 10_000


def digest(requirements: Path | None, folder: Path, *further: str) -> str:
    """A hash of the file, of the local files that it names, and of ``further`` texts.

    For files outside ``folder``, the archive, size and time replace the content. Answers of a package index
    are not included: requirements without a version are not looked up again. Raises OSError and
    UnicodeDecodeError.
    """
    folder = folder.resolve()
    hashed = hashlib.sha256()
    for text in further:
        _add(hashed, text.encode())
    lists: set[Path] = set()
    named = set() if requirements is None else _named(requirements.resolve(), folder, lists)
    for path in sorted(named):
        within = path.is_relative_to(folder)
        _add(hashed, str(path.relative_to(folder) if within else path).encode())
        status = path.stat()
        _add(hashed, _content(path) if within else f"{status.st_size} {status.st_mtime_ns}".encode())
    if any(_EDITABLE.match(line) for path in lists for line in _lines(path)):
        # Such a package is not copied: the environment is valid for this folder only.
        _add(hashed, str(folder).encode())
    return hashed.hexdigest()[:32]


def _content(path: Path) -> bytes:
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hashed.update(chunk)
    return hashed.digest()


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text("utf-8-sig").splitlines()]


def _add(hashed: hashlib._Hash, data: bytes) -> None:
    hashed.update(len(data).to_bytes(8, "little"))
    hashed.update(data)


def _named(file: Path, folder: Path, seen: set[Path]) -> set[Path]:
    """The file, and the local files that it refers to."""
    if file in seen:
        return set()
    seen.add(file)
    files = {file}
    for line in _lines(file):
        text = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()
        if further := _FURTHER.match(text):
            # pip resolves it relative to the file.
            if (other := (file.parent / further[1]).resolve()).is_file():
                files |= _named(other, folder, seen)
            continue
        option = _OPTION.match(text)
        name = (option[1] if option else text.partition(" ")[0]).removeprefix("file://").partition("[")[0]
        if name and "://" not in name:
            files |= set(_files((folder / name).resolve(), folder))
    return files


def _files(path: Path, folder: Path) -> Iterator[Path]:
    """The file, or those in the directory; outside the archive without subdirectories."""
    if path.is_file():
        yield path
    elif path.is_dir():
        inner = path.rglob("*") if path.is_relative_to(folder) else path.glob("*")
        yield from (file for file in islice(inner, _MAX_FILES) if file.is_file())
