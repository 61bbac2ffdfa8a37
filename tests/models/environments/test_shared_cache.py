"""A folder that servers share: what is in use stays, what nobody uses gives way."""

import asyncio
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

from modelserver.models.environments.shared_cache import CacheEntry, SharedCache

MIB = 1 << 20


def made(folder, name, size=MIB, *, used=0):
    """A complete environment of that many bytes, used last ``used`` seconds after the epoch."""
    place = folder / name
    entry = CacheEntry(place)
    entry.begin()
    (place / "packages").mkdir()
    (place / "packages" / "data").write_bytes(os.urandom(size))
    entry.complete("m 1.0", entry.measure())
    os.utime(place / "complete", (used, used))
    return place


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def never():
    raise AssertionError("the lock is held")


def test_the_longest_unused_give_way(tmp_path):
    for number in (3, 1, 4, 2):
        made(tmp_path, f"venv-{number}", used=number)

    assert SharedCache(tmp_path).prune(5 * MIB) == []
    assert SharedCache(tmp_path).prune(2 * MIB + MIB // 2) == [tmp_path / "venv-1", tmp_path / "venv-2"]
    assert names(tmp_path) == ["venv-3", "venv-4"]


def test_full_disk_removes_environments(tmp_path, monkeypatch):
    """If the disk must have a number of free bytes, more is removed than the limit requires."""
    for number in (1, 2, 3):
        made(tmp_path, f"archive-{number}", used=number)

    def usage(folder):
        return SimpleNamespace(free=(10 - len(list(folder.iterdir()))) * MIB)

    cache = SharedCache(tmp_path)
    total = cache.total()
    monkeypatch.setattr(shutil, "disk_usage", usage)

    assert total >= 3 * MIB
    assert cache.prune(free=7 * MIB) == []
    assert cache.prune(free=9 * MIB) == [tmp_path / "archive-1", tmp_path / "archive-2"]
    assert cache.prune(free=11 * MIB) == [tmp_path / "archive-3"]
    assert cache.total() == 0


def test_what_is_used_stays(tmp_path):
    """An environment that a server uses is not removed, whatever the limit, until its use ends."""
    cache, place = SharedCache(tmp_path), made(tmp_path, "packages-1")
    made(tmp_path, "packages-2", used=5)
    first, second = CacheEntry(place).use(), CacheEntry(place).use()
    assert first is not None
    assert second is not None

    assert cache.prune(0) == [tmp_path / "packages-2"]
    first.end()
    first.end()
    assert cache.prune(0) == []
    second.end()
    assert cache.prune(0) == [place]
    assert names(tmp_path) == []
    assert CacheEntry(place).use() is None

    place = made(tmp_path, "venv-1")
    use = CacheEntry(place).use()
    assert cache.prune(0) == []
    del use

    assert cache.prune(0) == [place]


def test_using_counts_as_a_use(tmp_path):
    used = made(tmp_path, "venv-used", used=1)
    made(tmp_path, "venv-not", used=2)
    result = CacheEntry(used).use()
    result.end()

    assert SharedCache(tmp_path).prune(MIB + MIB // 2) == [tmp_path / "venv-not"]


def test_a_use_ends_with_its_process(tmp_path):
    """A server that is killed holds nothing (F48)."""
    place = made(tmp_path, "venv-1")
    code = (
        "import sys, pathlib; from modelserver.models.environments.shared_cache import CacheEntry\n"
        "use = CacheEntry(pathlib.Path(sys.argv[1])).use(); print('used', flush=True); sys.stdin.read()"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", code, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with user:
        assert user.stdout.readline() == b"used\n"
        assert SharedCache(tmp_path).prune(0) == []
        user.kill()
        user.wait()

        assert SharedCache(tmp_path).prune(0) == [place]


async def test_leftovers_go(tmp_path):
    """Of a killed installation, and locks of nothing; what goes on, or is none of ours, is left alone."""
    (tmp_path / "venv-left" / "lib").mkdir(parents=True)
    (tmp_path / "packages-failed.lock").touch()
    (tmp_path / "of somebody").mkdir()
    entry = CacheEntry(tmp_path / "venv-making")
    async with entry.locked(never):
        entry.begin()
        removed = await asyncio.to_thread(SharedCache(tmp_path).prune)
        assert names(tmp_path) == ["of somebody", "venv-making", "venv-making.lock"]

    assert removed == [tmp_path / "packages-failed", tmp_path / "venv-left"]


async def test_second_installation_waits(tmp_path):
    """The second one waits and logs it, also when the first leaves nothing and the lock's file goes."""
    place = tmp_path / "venv-1"
    order = []
    waiting = asyncio.Event()

    async def second():
        async with CacheEntry(place).locked(waiting.set):
            order.append("second")
            assert names(tmp_path) == ["venv-1.lock"]

    async with CacheEntry(place).locked(never):
        task = asyncio.create_task(second())
        await waiting.wait()
        order.append("first")
    await task

    assert order == ["first", "second"]
    assert names(tmp_path) == []


def test_an_environment_without_a_size_in_its_mark_is_measured(tmp_path):
    place = made(tmp_path, "venv-1", used=1)
    (place / "complete").write_text("made for m 1.0\n")
    os.utime(place / "complete", (1, 1))
    made(tmp_path, "venv-2", used=2)

    assert SharedCache(tmp_path).prune(2 * MIB + MIB // 2) == []
    assert SharedCache(tmp_path).prune(MIB + MIB // 2) == [place]


def test_what_cannot_be_removed(tmp_path, monkeypatch):
    """It is no environment any more, and goes the next time (F56)."""
    place = made(tmp_path, "venv-1")

    def fails(_path):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", fails)
        assert SharedCache(tmp_path).prune(0) == []

    assert CacheEntry(place).use() is None
    assert SharedCache(tmp_path).prune() == [place]
    assert names(tmp_path) == []
