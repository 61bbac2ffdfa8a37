"""The archives and model directories in the model store."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# If several files have the same name, the earlier suffix takes precedence.
SUFFIXES = (".mar", ".model", ".tar.gz", ".tgz")


def loadable(store: Path) -> list[str]:
    """The names of archives and model directories, in no order. Raises OSError."""
    return [
        entry.name
        for entry in store.iterdir()
        if not entry.name.startswith(".") and (entry.is_dir() or entry.name.endswith(SUFFIXES))
    ]


def by_name(store: Path | None) -> dict[str, str]:
    """File names by the model names of the repository extension, which have no suffixes.

    Empty if there is no readable store.
    """
    if store is None:
        return {}
    try:
        files = loadable(store)
    except OSError:
        return {}
    return {file.removesuffix(_suffix(file)): file for file in sorted(files, key=_rank, reverse=True)}


def file_of(url: str) -> str:
    """The file of the store that a model registered with this URL was loaded from."""
    return PurePosixPath(url.partition("?")[0].rstrip("/")).name


def _suffix(file: str) -> str:
    return next((suffix for suffix in SUFFIXES if file.endswith(suffix)), "")


def _rank(file: str) -> tuple[int, str]:
    suffix = _suffix(file)
    return (SUFFIXES.index(suffix) if suffix else len(SUFFIXES)), file
