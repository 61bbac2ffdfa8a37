from modelserver.models.archives.store import ModelStore


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
