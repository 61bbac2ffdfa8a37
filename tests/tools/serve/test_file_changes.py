"""The files that are watched."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from modelserver.tools.serve.file_changes import changes, folders_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A script with a package, and folders that are none of its."""
    for name in ("package/inner", ".venv/lib", "data", "__pycache__"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("handler.py", "package/__init__.py", "package/inner/__init__.py"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_folders_with_packages_are_watched(folder: Path) -> None:
    """Of a script its own and those of packages beside it, of a folder all that are not hidden."""
    assert set(folders_of(folder / "handler.py")) == {
        folder, folder / "package", folder / "package" / "inner"
    }  # fmt: skip
    assert set(folders_of(folder)) == {
        folder, folder / "package", folder / "package" / "inner", folder / "data"
    }  # fmt: skip
    assert folders_of(folder / "net.pt2") == [folder]


async def test_changes(folder: Path, tmp_path: Path) -> None:
    """Sources and the model file count, other files do not."""
    weights = tmp_path / "weights.pt"
    result = changes(folder / "handler.py", weights)
    coming = asyncio.ensure_future(anext(result))
    await asyncio.sleep(0.5)
    (folder / "notes.txt").write_text("x")
    await asyncio.sleep(0.3)
    assert not coming.done()
    (folder / "package" / "__init__.py").write_text("x = 1")

    assert await asyncio.wait_for(coming, 10) == {folder / "package" / "__init__.py"}
    coming = asyncio.ensure_future(anext(result))
    await asyncio.sleep(0.2)
    weights.write_text("w")
    assert await asyncio.wait_for(coming, 10) == {weights}
    await result.aclose()
