"""The archives of a node: fetched once, whole or not at all, and bounded."""

import asyncio
import contextlib
import errno
import hashlib
import io
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from modelserver.ext.cluster.node import archives
from modelserver.ext.cluster.node.archives import ArchiveCache, ArchiveFailed, TransferFailed
from modelserver.models.environments.shared_cache import CacheEntry

MIB = 1 << 20


def member(name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def tar(*members):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as opened:
        for info, content in members:
            opened.addfile(info, io.BytesIO(content))
    return made.getvalue()


def model(seed=0, large=3 * MIB):
    """A model's archive: a large file, small ones, a program, and links, also to a folder and to nothing."""
    return tar(
        member("handler.py", f"SEED = {seed}\n".encode()),
        member("weights.pt", bytes([seed]) * large),
        member("bin", type=tarfile.DIRTYPE, mode=0o755),
        member("bin/run.sh", b"#!/bin/sh\n", mode=0o755),
        member("link", type=tarfile.SYMTYPE, linkname="bin/run.sh"),
        member("folder", type=tarfile.SYMTYPE, linkname="bin"),
        member("nowhere", type=tarfile.SYMTYPE, linkname="missing"),
    )


def digest(data):
    return hashlib.sha256(data).hexdigest()


@dataclass
class Server:
    """Sends an archive, and counts who asked from which offset."""

    data: bytes
    offsets: list[int] = field(default_factory=list)

    async def fetch(self, offset):
        self.offsets.append(offset)
        for start in range(offset, len(self.data), MIB // 2):
            await asyncio.sleep(0)
            yield self.data[start : start + MIB // 2]


async def hold(cache, data, server=None, *rest):
    """What a worker of the model gets, from this server."""
    return await cache.hold(digest(data), len(data), (server or Server(data)).fetch, *rest)


def raising(error):
    """What fails when it is called."""
    return Mock(side_effect=error)


def names(root):
    """What a cache has, by kind."""
    return sorted(path.name.partition("-")[0] for path in root.iterdir() if not path.name.endswith(".lock"))


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "archives"


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch):
    monkeypatch.setattr(archives, "_BACKOFF", 0.0)


async def test_second_worker_reuses_the_files(root):
    reports = []
    data, cache = model(), ArchiveCache(root)
    server = Server(data)
    first = await hold(cache, data, server, reports.append)
    second = await hold(ArchiveCache(root), data, server, reports.append)

    assert server.offsets == [0]
    assert reports == [f"Fetching the model's files, {len(data)} bytes"]
    for held in (first, second):
        assert content(held.path)["weights.pt"] == bytes(3 * MIB)
        assert os.access(held.path / "bin" / "run.sh", os.X_OK)
        links = [os.readlink(held.path / name) for name in ("link", "folder", "nowhere")]
        assert links == ["bin/run.sh", "bin", "missing"]
    assert first.path != second.path
    await first.release()
    await first.release()
    await second.release()
    assert names(root) == ["archive"]


async def test_a_workers_directory_is_its_own(root):
    data, cache = model(), ArchiveCache(root)
    first, second = await hold(cache, data), await hold(cache, data)
    (first.path / "handler.py").write_text("changed")
    (first.path / "new").mkdir()
    (first.path / "bin" / "run.sh").unlink()
    third = await hold(cache, data)

    for held in (second, third):
        assert sorted(content(held.path)) == ["bin/run.sh", "handler.py", "link", "weights.pt"]
        assert (held.path / "handler.py").read_text() == "SEED = 0\n"
    weights = [held.path / "weights.pt" for held in (first, second, third)]
    assert len({path.stat().st_ino for path in weights}) == 1
    assert weights[0].stat().st_mode & 0o777 == 0o444


async def test_files_are_copied_where_links_are_impossible(root, monkeypatch):
    monkeypatch.setattr(os, "link", raising(OSError(errno.EPERM, "Operation not permitted")))
    held = await hold(ArchiveCache(root), model())

    assert (held.path / "weights.pt").stat().st_nlink == 1
    assert content(held.path)["weights.pt"] == bytes(3 * MIB)


async def test_a_changed_archive_is_fetched_anew(root):
    data, cache = model(), ArchiveCache(root)
    first = await hold(cache, data)
    os.chmod(first.path / "weights.pt", 0o600)
    with (first.path / "weights.pt").open("r+b") as file:
        file.write(b"changed")
    server = Server(data)
    second = await hold(cache, data, server)

    assert server.offsets == [0]
    assert content(second.path)["weights.pt"] == bytes(3 * MIB)
    assert content(first.path)["weights.pt"].startswith(b"changed")
    assert names(root) == ["archive", "archive", "files", "files"]
    await first.release()
    await hold(ArchiveCache(root, len(data)), data)
    assert names(root).count("archive") == 1


# Transfers


def torn(data, *ends):
    """A server whose first connections end like this after a MiB each."""

    class Torn(Server):
        async def fetch(self, offset):
            if len(self.offsets) >= len(ends):
                async for piece in super().fetch(offset):
                    yield piece
                return
            self.offsets.append(offset)
            yield self.data[offset : offset + MIB // 2]
            yield self.data[offset + MIB // 2 : offset + MIB]
            ends[len(self.offsets) - 1]()

    return Torn(data)


async def test_torn_transfer_goes_on(root):
    data = model()
    server = torn(data, raising(ConnectionResetError("reset")), lambda: None)
    held = await hold(ArchiveCache(root), data, server)

    assert server.offsets == [0, MIB, 2 * MIB]
    assert content(held.path)["weights.pt"] == bytes(3 * MIB)


async def test_silent_server_gets_the_request_on_another_connection(root, monkeypatch):
    monkeypatch.setattr(archives, "_PATIENCE", 0.05)
    data, offsets = model(), []

    async def fetch(offset):
        offsets.append(offset)
        yield data[offset : offset + 2 * MIB]
        if len(offsets) == 1:
            await asyncio.sleep(100)
        yield data[offset + 2 * MIB :]

    await ArchiveCache(root).hold(digest(data), len(data), fetch)

    assert offsets == [0, 2 * MIB]


async def test_unreachable_server_is_abandoned_after_several_tries(root):
    data, cache = model(large=8 * MIB), ArchiveCache(root)
    server = torn(data, *[raising(ConnectionResetError("Connection reset by peer"))] * 5)
    words = f"could not be fetched, 5 times: Connection reset by peer, after {5 * MIB} of {len(data)} bytes"
    with pytest.raises(TransferFailed, match=words):
        await hold(cache, data, server)
    again = Server(data)
    held = await hold(cache, data, again)

    assert again.offsets == [5 * MIB]
    assert content(held.path)["weights.pt"] == bytes(8 * MIB)


async def test_what_the_connection_says_otherwise_is_final(root):
    data = model()
    server = torn(data, raising(ArchiveFailed("the model is gone")))

    with pytest.raises(ArchiveFailed, match="the model is gone"):
        await hold(ArchiveCache(root), data, server)
    assert server.offsets == [0]
    assert names(root) == []


@pytest.mark.parametrize("sent", [model(1), model() + b"more", model(large=2 * MIB) + bytes(2 * MIB)])
async def test_other_content_is_refused(root, sent):
    data = model()
    server = Server(sent)

    with pytest.raises(ArchiveFailed, match="2 times: what arrived has another SHA-256"):
        await hold(ArchiveCache(root), data, server)
    assert server.offsets == [0, 0]
    with pytest.raises(TransferFailed):
        await hold(ArchiveCache(root), data, server)


async def test_other_content_is_fetched_once_more(root):
    data = model()
    place = root / f"archive-{digest(data)}"
    cache = ArchiveCache(root)
    place.mkdir()
    (place / "archive.tar").write_bytes(b"\0" * MIB + b"\1")
    server = Server(data)
    held = await hold(cache, data, server)

    assert server.offsets == [MIB + 1, 0]
    assert content(held.path)["weights.pt"] == bytes(3 * MIB)


@pytest.mark.parametrize("name", ["", "../../etc", "A" * 64, "0" * 63, f"{'0' * 64}/"])
async def test_digests_are_names(root, name):
    """Nothing else becomes a path."""
    with pytest.raises(ArchiveFailed, match="is not a SHA-256"):
        await ArchiveCache(root).hold(name, 1, Server(b"").fetch)


# Evil archives


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([member("/tmp/evil", b"x")], "leads elsewhere"),
        ([member("../evil", b"x")], "leads elsewhere"),
        ([member("a/../../evil", b"x")], "leads elsewhere"),
        ([member("out", type=tarfile.SYMTYPE, linkname="/etc/passwd")], "cannot be unpacked.*absolute path"),
        ([member("out", type=tarfile.SYMTYPE, linkname="../x")], "cannot be unpacked.*outside"),
        (
            [member("in", type=tarfile.SYMTYPE, linkname="sub"), member("in/evil", b"x")],
            "'in/evil' in the model's archive leads elsewhere",
        ),
        ([member("in", type=tarfile.SYMTYPE, linkname="sub"), member("in", b"x")], "leads elsewhere"),
        ([member("a", b"x"), member("hard", type=tarfile.LNKTYPE, linkname="a")], "no file or directory"),
        ([member("device", type=tarfile.CHRTYPE)], "no file or directory"),
        ([member("device", type=tarfile.BLKTYPE)], "no file or directory"),
        ([member("pipe", type=tarfile.FIFOTYPE)], "no file or directory"),
        (b"no archive" * 100, "The model's archive cannot be unpacked"),
        (model()[: 2 * MIB], "The model's archive cannot be unpacked"),
    ],
)
async def test_archive_with_other_members_than_files_is_refused(root, members, words):
    data = members if isinstance(members, bytes) else tar(member("good", b"x"), *members)

    with pytest.raises(ArchiveFailed, match=words):
        await hold(ArchiveCache(root), data)
    assert names(root) == []
    assert not (root.parent / "evil").exists()


def test_modes_are_the_nodes(tmp_path):
    """No file is writable, set-user-ID or open to others because the archive says so."""
    data = tar(member("a", b"x", mode=0o6777), member("b", b"x", mode=0), member("d", type=tarfile.DIRTYPE))
    (tmp_path / "tar").write_bytes(data)
    archives._unpack(tmp_path / "tar", tmp_path / "files")

    modes = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "files").iterdir()}
    assert modes == {"a": 0o555, "b": 0o444, "d": 0o700}


# Several processes

SCRIPT = """
import asyncio, sys, time
from pathlib import Path
from modelserver.ext.cluster.node import archives
data = Path(sys.argv[2]).read_bytes()

def stop(*_):
    print("here", flush=True)
    time.sleep(1000)

async def fetch(offset):
    print("fetching", offset, flush=True)
    for start in range(offset, len(data), 1 << 19):
        yield data[start : start + (1 << 19)]
        BETWEEN

PATCH
async def main():
    held = await archives.ArchiveCache(Path(sys.argv[1])).hold(sys.argv[3], len(data), fetch)
    print("held", held.path, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@contextlib.contextmanager
def process(root, data, patch="", between="pass"):
    """Another process of the node that holds the archive."""
    (root.parent / "data").write_bytes(data)
    code = SCRIPT.replace("PATCH", textwrap.dedent(patch)).replace("BETWEEN", between)
    command = [sys.executable, "-c", code, str(root), str(root.parent / "data"), digest(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line(started):
    return started.stdout.readline().strip()


@pytest.mark.parametrize(
    ("patch", "between", "then"),
    [
        ("", "if start >= 2 << 20: stop()", [2 * MIB]),
        ("archives._unpack = stop", "pass", []),
        ("archives._sync = stop", "pass", [0]),
        ("archives._copy = stop", "pass", None),
    ],
    ids=["fetching", "verified", "unpacked", "in use"],
)
async def test_a_killed_process_leaves_nothing_half(root, patch, between, then):
    data, waits = model(), asyncio.Event()
    with process(root, data, patch, between) as other:
        assert line(other) == "fetching 0"
        assert line(other) == "here"
        server = Server(data)
        held = asyncio.create_task(
            ArchiveCache(root).hold(
                digest(data), len(data), server.fetch, lambda text: waits.set() if "Waiting" in text else None
            )
        )
        if then is not None:
            await asyncio.wait_for(waits.wait(), 20)
        other.kill()
        other.wait()
        result = await asyncio.wait_for(held, 20)

    assert server.offsets == (then or [])
    assert content(result.path) == {
        "handler.py": b"SEED = 0\n",
        "weights.pt": bytes(3 * MIB),
        "bin/run.sh": b"#!/bin/sh\n",
        "link": b"#!/bin/sh\n",
    }
    await result.release()
    await (await hold(ArchiveCache(root), data)).release()
    assert names(root) == ["archive"]
    assert sorted(path.name for path in (root / f"archive-{digest(data)}").glob("*")) == [
        "asked",
        "complete",
        "files",
    ]


async def test_the_disk_has_all_before_the_mark(root, monkeypatch):
    synced = []
    sync, complete = os.fsync, CacheEntry.complete

    def noted(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def marked(entry, *rest):
        synced.append("mark")
        complete(entry, *rest)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(CacheEntry, "complete", marked)
    data = model()
    await hold(ArchiveCache(root), data)

    files = root / f"archive-{digest(data)}" / "files"
    paths = ["", "handler.py", "weights.pt", "bin", "bin/run.sh"]
    assert synced[-1] == "mark"
    assert set(synced[:-1]) == {str(files / path) for path in paths}


async def test_two_processes_fetch_once(root):
    data = model()
    with process(root, data, between="await asyncio.sleep(0.02)") as other:
        assert line(other) == "fetching 0"
        server = Server(data)
        held = await hold(ArchiveCache(root), data, server)
        word, _, path = line(other).partition(" ")

        assert word == "held"
        assert server.offsets == []
        assert content(held.path) == content(Path(path))


# Bounds


async def test_the_least_recently_used_give_way(root):
    one, two, three = model(1), model(2), model(3)
    cache = ArchiveCache(root, 2 * len(one))
    for data in (one, two, one):
        await (await hold(cache, data)).release()
    await (await hold(cache, three)).release()

    remaining = [(root / f"archive-{digest(data)}").exists() for data in (one, two, three)]
    assert remaining == [True, False, True]


async def test_what_is_held_stays(root):
    one, two, three = model(1), model(2), model(3)
    cache = ArchiveCache(root, 2 * len(one))
    mine = await hold(cache, one)
    with process(root, two) as other:
        assert line(other) == "fetching 0"
        assert line(other).startswith("held")
        words = (
            rf"{len(three)} bytes are needed, 0 of {2 * len(one)} \(MODELSERVER_NODE_CACHE_SIZE\) are free"
        )
        with pytest.raises(ArchiveFailed, match=words):
            await hold(cache, three)
        assert names(root) == ["archive", "archive", "files", "files"]
        other.kill()
        other.wait()
    await hold(cache, three)

    assert content(mine.path)["weights.pt"] == bytes([1]) * 3 * MIB
    assert names(root) == ["archive", "archive", "files", "files"]


async def test_what_is_being_fetched_counts(root):
    one, two = model(1), model(2)
    cache = ArchiveCache(root, 2 * len(one) - 1)
    with process(root, one, between="stop()") as other:
        assert line(other) == "fetching 0"
        assert line(other) == "here"
        with pytest.raises(ArchiveFailed, match=rf"{len(two)} bytes are needed, {len(one) - 1} of"):
            await hold(cache, two)
        other.kill()
        other.wait()

    await hold(cache, two)
    assert names(root) == ["archive", "files"]


async def test_archive_without_room_on_the_disk_is_refused(root, monkeypatch):
    one, two = model(1), model(2)
    cache = ArchiveCache(root)
    await (await hold(cache, one)).release()
    free = len(two)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    server = Server(two)

    with pytest.raises(
        ArchiveFailed,
        match=rf"no room .* {2 * len(two)} bytes are needed, packed and unpacked, {free} are free",
    ):
        await hold(cache, two, server)
    assert server.offsets == []
    assert names(root) == []


@pytest.mark.parametrize("step", ["write", "unpack", "furnish"])
async def test_full_disk_is_reported_and_cleared(root, step, monkeypatch):
    """At whatever step it is full, the words are the same, and nothing stays that takes room."""

    where = "_Part.write" if step == "write" else f"_{step}"
    monkeypatch.setattr(
        f"modelserver.ext.cluster.node.archives.{where}", raising(OSError(errno.ENOSPC, "full"))
    )
    server = Server(model())

    with pytest.raises(ArchiveFailed, match="There is no room for the model's files on the disk of"):
        await hold(ArchiveCache(root), server.data, server)
    assert server.offsets == [0]
    assert names(root) == (["archive"] if step == "furnish" else [])


# The folder


@pytest.mark.parametrize(
    ("mode", "other_user", "reason"),
    [
        (0o770, 0, r"closed to others \(mode 700\): .* has mode 770"),
        (0o755, 0, "has mode 755"),
        (0o701, 0, "has mode 701"),
        (0o700, 1, "must belong to user {user} .* belongs to {owner}"),
        (None, 0, "cannot be used: File exists"),
    ],
)
def test_unsafe_folder_is_refused(root, monkeypatch, mode, other_user, reason):
    """Models may be secret: the folder is closed to others, and a folder that is not is refused."""
    owner = os.getuid()
    ArchiveCache(root)
    assert root.stat().st_mode & 0o777 == 0o700

    root.rmdir()
    if mode is None:
        root.touch()
    else:
        root.mkdir()
        root.chmod(mode)
    monkeypatch.setattr(os, "getuid", lambda: owner + other_user)
    with pytest.raises(ArchiveFailed, match=reason.format(user=owner + 1, owner=owner)):
        ArchiveCache(root)


def test_the_environment_names_folder_and_limit(tmp_path):
    """By default the folder is in the user's cache, with 20 GiB; what cannot be is refused in words."""
    caches = {"XDG_CACHE_HOME": str(tmp_path)}
    default = ArchiveCache.of_node(caches)
    set_ = ArchiveCache.of_node(
        {archives.ROOT: str(tmp_path / "mine"), "MODELSERVER_NODE_CACHE_SIZE": "1000"}
    )

    assert (default._root, default._limit) == (tmp_path / "modelserver" / "archives", 20 << 30)
    assert (set_._root, set_._limit) == (tmp_path / "mine", 1000)
    for size in ("0", "-1", "20GiB"):
        with pytest.raises(ArchiveFailed, match=f"MODELSERVER_NODE_CACHE_SIZE={size}: a positive number"):
            ArchiveCache.of_node({**caches, archives.LIMIT: size})
    for nowhere in ({"MODELSERVER_CACHE": "off"}, {archives.ROOT: "relative"}):
        with pytest.raises(ArchiveFailed, match="set MODELSERVER_NODE_CACHE to an absolute path"):
            ArchiveCache.of_node(nowhere)


async def test_memory_is_level(root):
    """100 MB arrive, are verified, unpacked and held without growth of the process."""
    info, _ = member("weights.pt")
    info.size = 100_000_000
    rest = bytes(-info.size % 512 + 1024)
    header = info.tobuf()
    piece = bytes(MIB)
    hashed = hashlib.sha256(header)
    for start in range(0, info.size, MIB):
        hashed.update(piece[: info.size - start])
    hashed.update(rest)

    async def fetch(offset):
        assert offset == 0
        yield header
        for start in range(0, info.size, MIB):
            yield piece[: info.size - start]
        yield rest

    cache = ArchiveCache(root)
    await (await hold(cache, model())).release()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = await cache.hold(hashed.hexdigest(), len(header) + info.size + len(rest), fetch)

    assert (held.path / "weights.pt").stat().st_size == info.size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 24 << 10  # KiB
