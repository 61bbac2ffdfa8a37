import asyncio
import hashlib
import os
import zipfile
from pathlib import Path

import fsspec
import pytest

from modelserver.errors import DownloadFailed, InternalError
from modelserver.ext.stores.address import StoreAddress
from modelserver.ext.stores.cache import Cache
from modelserver.ext.stores.stores import Changed, Item, Store


class Folder(Store):
    """A folder as a store. ``reads`` are the requested ranges; the first ``fails`` reads fail."""

    def __init__(self, path):
        super().__init__(StoreAddress("file", str(path)))
        self.reads: list[tuple[int, int]] = []
        self.fails = 0
        self.wrong: set[str] = set()

    def _open(self):
        return fsspec.filesystem("file")

    @property
    def endpoint(self):
        return "here"

    def _item(self, name, info):
        data = Path(info["name"]).read_bytes()
        digest = "0" * 32 if name in self.wrong else hashlib.md5(data).hexdigest()
        return Item(name, info["name"], info["size"], str(info["mtime"]), ("md5", digest))

    def _range(self, item, start, end):
        self.reads.append((start, end))
        if self.fails:
            self.fails -= 1
            raise OSError("a torn connection")
        return bytes(self._files.cat_file(item.path, start, end))


def held(cache, store, items=None, reports=None):
    got = store.items() if items is None else items
    progress = [] if reports is None else reports
    return asyncio.run(cache.hold(store, got, "s3://b/x", lambda *pair: progress.append(pair), lambda: None))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(os.urandom(9 << 20))
    return path


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", 40 << 20)


def test_archive_is_fetched_once(cache, source, tmp_path):
    store, reports = Folder(source), list[tuple[int, int]]()
    path, use = held(cache, store, reports=reports)

    assert path.read_bytes() == source.read_bytes()
    assert path.parent.name == f"archive-{hashlib.sha256(source.read_bytes()).hexdigest()}"
    assert len(store.reads) == 3
    assert reports[-1] == (9 << 20, 9 << 20)
    again, other_use = held(Cache(tmp_path / "cache", 1 << 30), store)
    assert (again, len(store.reads)) == (path, 3)
    use.end()
    other_use.end()


def test_folder_becomes_a_zip_file(cache, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "MAR-INF").mkdir(parents=True)
        (tmp_path / name / "MAR-INF" / "MANIFEST.json").write_text("{}")
        (tmp_path / name / "handler.py").write_text("pass")
    (first, _), (second, _) = held(cache, Folder(tmp_path / "one")), held(cache, Folder(tmp_path / "two"))

    with zipfile.ZipFile(first) as archive:
        assert archive.namelist() == ["MAR-INF/MANIFEST.json", "handler.py"]
        assert archive.read("handler.py") == b"pass"
    assert first == second


def test_it_goes_on_where_it_was(cache, source, monkeypatch):
    monkeypatch.setattr("modelserver.ext.stores.cache._PAUSE", 0.001)
    store = Folder(source)
    store.fails = 2
    path, _ = held(cache, store)
    assert path.read_bytes() == source.read_bytes()

    source.write_bytes(os.urandom(48 << 18))
    items = store.items()
    broken = Folder(source)
    broken._range = lambda item, start, end: (
        Folder._range(broken, item, start, end) if start < 8 << 20 else _fail()
    )
    with pytest.raises(OSError, match="torn"):
        held(cache, broken, items)
    store.reads.clear()
    path, _ = held(cache, store, items)
    assert (path.read_bytes(), store.reads) == (source.read_bytes(), [(8 << 20, 12 << 20)])


def _fail():
    raise OSError("a torn connection")


def test_changed_object_is_refused(cache, source, tmp_path):
    store = Folder(source)
    items = store.items()
    os.utime(source, (1, 1))

    with pytest.raises(Changed):
        held(cache, store, items)
    source.write_bytes(b"short")
    with pytest.raises(Changed):
        held(cache, store, items)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_wrong_checksum_is_refused(cache, source, tmp_path):
    store = Folder(source)
    store.wrong.add("")
    with pytest.raises(DownloadFailed, match=r"its checksum is wrong: md5 .* instead of 0000"):
        held(cache, store)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []

    store.vouches_for = lambda _: False
    assert held(cache, store)[0].stat().st_size == 9 << 20


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a\\b", "a/../../x", "a//b"])
def test_name_that_leads_elsewhere_is_refused(cache, source, name):
    item = Item(name, str(source), 5, "1")
    store = Folder(source)

    with pytest.raises(DownloadFailed, match="leads elsewhere"):
        held(cache, store, [Item("a", str(source), 0, "1"), item])
    assert store.reads == []


def test_least_recently_used_archives_give_way(cache, source, tmp_path):
    archives = []
    for number in range(5):
        source.write_bytes(bytes([number]) * (9 << 20))
        path, use = held(cache, Folder(source))
        archives.append(path)
        if number:
            use.end()
        else:
            first = use

    assert [path.exists() for path in archives] == [True, False, True, True, True]
    first.end()
    assert len(list((tmp_path / "cache").glob("object-*"))) == 4
    with pytest.raises(InternalError, match="download_cache_size is 1000"):
        held(Cache(tmp_path / "cache", 1000), Folder(source), [Item("", str(source), 1001, "1")])


def test_damaged_archive_is_fetched_again(cache, source):
    store = Folder(source)
    path, use = held(cache, store)
    use.end()
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    store.reads.clear()

    path, _ = held(cache, store)
    assert path.read_bytes() == source.read_bytes()
    assert len(store.reads) == 3


async def test_concurrent_fetches_download_once(cache, source):
    store, waited = Folder(source), list[str]()
    items = store.items()

    async def hold(name):
        path, use = await cache.hold(store, items, "u", lambda *_: None, lambda: waited.append(name))
        use.end()
        return path

    locked = hold("first"), hold("second")
    first, second = await asyncio.gather(*locked)
    assert first == second
    assert len(store.reads) == 3
