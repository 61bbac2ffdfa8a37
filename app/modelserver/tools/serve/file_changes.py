"""The files that ``--reload`` watches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from watchfiles import Change, awatch

# The most folders that are watched; a handler has fewer.
_MOST_FOLDERS: Final = 1000
# Milliseconds in which the writes of one save arrive.
_SAVE_MS: Final = 100


async def changes(file: Path, model_file: Path | None) -> AsyncIterator[set[Path]]:
    """The files that have changed, each time some have.

    Of a script, the sources beside it and in packages there count, of a folder all files.
    """
    folders = await asyncio.to_thread(folders_of, file)
    folders += [] if model_file is None else [model_file.parent]
    exact = {path for path in (file, model_file) if path is not None}
    is_folder = file in folders

    def counts(_change: Change, name: str) -> bool:
        path = Path(name)
        return path in exact or is_folder or (file.suffix == ".py" and path.suffix == ".py")

    async for batch in awatch(
        *dict.fromkeys(folders), watch_filter=counts, debounce=_SAVE_MS, step=20, recursive=False
    ):
        yield {Path(name) for _, name in batch}


def folders_of(file: Path) -> list[Path]:
    """The folders to watch: for a script its own and the packages in it, for a folder all inside."""
    if file.is_dir():
        return [file, *_below(file, packages=False)]
    return [file.parent, *_below(file.parent, packages=True)] if file.suffix == ".py" else [file.parent]


def _below(folder: Path, *, packages: bool) -> Iterator[Path]:
    count = 0
    for root, names, _ in os.walk(folder):
        names[:] = [
            name
            for name in names
            if not name.startswith((".", "__pycache__"))
            and (not packages or os.path.isfile(os.path.join(root, name, "__init__.py")))
        ]
        for name in names:
            count += 1
            if count > _MOST_FOLDERS:
                return
            yield Path(root, name)
