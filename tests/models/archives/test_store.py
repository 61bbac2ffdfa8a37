"""What lies in the model store."""

import pytest

from modelserver.models.archives.store import ModelStore, file_of


async def test_what_is_loadable(tmp_path):
    """Archives and directories, by their names without suffix; hidden and other files are none."""
    for file in ("a.mar", "a.tgz", "b-1.0.tar.gz", "c.tgz", "d.txt", ".e.mar", "f.model"):
        (tmp_path / file).touch()
    for folder in ("a", "g"):
        (tmp_path / folder).mkdir()
    loadable = ["a", "a.mar", "a.tgz", "b-1.0.tar.gz", "c.tgz", "f.model", "g"]

    assert sorted(await ModelStore(tmp_path).loadable()) == loadable
    names = {"a": "a.mar", "b-1.0": "b-1.0.tar.gz", "c": "c.tgz", "f": "f.model", "g": "g"}
    assert await ModelStore(tmp_path).by_name() == names
    assert await ModelStore(None).by_name() == await ModelStore(tmp_path / "absent").by_name() == {}


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("a.mar", "a.mar"),
        ("/store/a/", "a"),
        ("https://host/path/a.mar?version=1", "a.mar"),
        ("file:///store/a.mar", "a.mar"),
    ],
)
def test_file_of_a_url_is_its_last_segment(url, file):
    assert file_of(url) == file
