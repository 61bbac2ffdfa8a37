"""The archives and model directories in the model store."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from modelserver.errors import ModelServerError

if TYPE_CHECKING:
    from modelserver.models.archives.object_stores import ObjectStores

# If several files have the same name, the earlier suffix takes precedence.
SUFFIXES = (".mar", ".model", ".tar.gz", ".tgz")


class ModelStore:
    """A folder, or the URL of one in an object store; without either there is nothing in it.

    ``remote`` lists object stores, if there is something that does.
    """

    def __init__(self, place: Path | str | None, remote: ObjectStores | None = None) -> None:
        self._place = place
        self.remote = remote

    async def loadable(self) -> list[str]:
        """The names of archives and model directories, in no order. Raises OSError, ModelServerError."""
        if self._place is None:
            return []
        if isinstance(self._place, Path):
            entries = await asyncio.to_thread(_entries, self._place)
        else:
            entries = [] if self.remote is None else await self.remote.names(self._place)
        return [
            name
            for name, is_folder in ((entry.rstrip("/"), entry.endswith("/")) for entry in entries)
            if not name.startswith(".") and (is_folder or name.endswith(SUFFIXES))
        ]

    async def by_name(self) -> dict[str, str]:
        """File names by the model names of the repository extension, which have no suffixes.

        Empty if there is no readable store.
        """
        try:
            files = await self.loadable()
        except (OSError, ModelServerError):
            return {}
        return {file.removesuffix(_suffix(file)): file for file in sorted(files, key=_rank, reverse=True)}


def _entries(folder: Path) -> list[str]:
    """The names in a folder; those of folders end in a slash."""
    return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in folder.iterdir()]


def file_of(url: str) -> str:
    """The file of the store that a model registered with this URL was loaded from."""
    return PurePosixPath(url.partition("?")[0].rstrip("/")).name


def _suffix(file: str) -> str:
    return next((suffix for suffix in SUFFIXES if file.endswith(suffix)), "")


def _rank(file: str) -> tuple[int, str]:
    suffix = _suffix(file)
    return (SUFFIXES.index(suffix) if suffix else len(SUFFIXES)), file
