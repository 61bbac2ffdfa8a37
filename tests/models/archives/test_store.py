"""What lies in the model store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelserver.models.archives.store import ModelStore, file_of

if TYPE_CHECKING:
    from pathlib import Path


async def test_what_is_loadable(tmp_path: Path) -> None:
    """Archives and directories, by their names without suffix; hidden and other files are none."""
    for file in ("a.mar", "b-1.0.tar.gz", "c.tgz", "d.txt", ".e.mar", "f.model"):
        (tmp_path / file).touch()
    (tmp_path / "g").mkdir()

    assert sorted(await ModelStore(tmp_path).loadable()) == ["a.mar", "b-1.0.tar.gz", "c.tgz", "f.model", "g"]
    assert await ModelStore(tmp_path).by_name() == {
        "a": "a.mar", "b-1.0": "b-1.0.tar.gz", "c": "c.tgz", "f": "f.model", "g": "g"
    }  # fmt: skip


async def test_one_name_of_several_files(tmp_path: Path) -> None:
    """The .mar is meant."""
    (tmp_path / "a").mkdir()
    for file in ("a.tgz", "a.mar"):
        (tmp_path / file).touch()

    assert await ModelStore(tmp_path).by_name() == {"a": "a.mar"}


async def test_missing_store_is_empty(tmp_path: Path) -> None:
    """A store that is not there has no models."""
    assert await ModelStore(None).by_name() == {}
    assert await ModelStore(tmp_path / "absent").by_name() == {}


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("a.mar", "a.mar"),
        ("/store/a/", "a"),
        ("https://host/path/a.mar?version=1", "a.mar"),
        ("file:///store/a.mar", "a.mar"),
    ],
)
def test_file_of_a_url_is_its_last_segment(url: str, file: str) -> None:
    """The file is the last segment of the path."""
    assert file_of(url) == file
