import fcntl
import os
from pathlib import Path

import pytest
import torch

from modelserver_handlers.networks import cache
from modelserver_handlers.networks.cache import fingerprint


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELSERVER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_is_the_users_alone(root):
    folder = cache.cache_folder("weights")

    assert folder == root / "weights"
    assert [path.stat().st_mode & 0o077 for path in (folder, root)] == [0, 0]


@pytest.mark.parametrize("open_one", [".", "weights"])
def test_a_folder_that_others_can_write_to_is_not_used(open_one, root, caplog):
    """Somebody could put weights there that compute something else; a link may lead to such a folder."""
    (root / "weights").mkdir(parents=True, mode=0o700)
    (root / "link").symlink_to(root / "weights")
    assert cache.cache_folder("link") is None
    (root / open_one).chmod(0o777)

    assert cache.cache_folder("weights") is None
    assert "others than this user" in caplog.text


def test_a_folder_that_cannot_be_made_is_logged(root, caplog):
    caplog.set_level("INFO")
    root.write_text("a file")

    assert cache.cache_folder("weights") is None
    assert "cannot be made" in caplog.text


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "a.pt"
    cache.write(path, {"tensor": torch.arange(3), "list": [1, "two", None]})
    content = cache.read(path)

    assert (content["tensor"].tolist(), content["list"]) == ([0, 1, 2], [1, "two", None])
    assert str(path) in Path("/proc/self/maps").read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_half_a_file_is_never_left(tmp_path):
    with pytest.raises(Exception, match="pickle"):
        cache.write(tmp_path / "a.pt", lambda: None)

    assert list(tmp_path.iterdir()) == []
    assert cache.read(tmp_path / "a.pt") is None


def test_what_killed_processes_left_is_removed(root):
    folder = cache.cache_folder("weights")
    for name in (".old", ".new"):
        (folder / name).mkdir()
        (folder / name / "kernel.cpp").touch()
        (folder / f"{name}.part").touch()
    for left in (folder / ".old", folder / ".old.part"):
        os.utime(left, (0, 0))
    (folder / "kept.pt").touch()
    os.utime(folder / "kept.pt", (0, 0))
    cache.cache_folder("weights")

    assert {path.name for path in folder.iterdir()} == {".new", ".new.part", "kept.pt"}


def test_the_longest_unused_go_first(tmp_path):
    for age, name in enumerate(("new", "middle", "old")):
        file = tmp_path / f"{name}.pt"
        file.write_bytes(bytes(100))
        os.utime(file, (1000 - age, 1000 - age))
    (tmp_path / "old.lock").touch()
    cache.prune(tmp_path, 250)
    after_first = sorted(path.name for path in tmp_path.iterdir())
    cache.prune(tmp_path, 10)

    assert after_first == ["middle.pt", "new.pt"]
    assert [path.name for path in tmp_path.iterdir()] == ["new.pt"]


def test_locks_are_held_one_at_a_time(tmp_path):
    path = tmp_path / "a.lock"
    with cache.locked(path), path.open() as second, pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with cache.locked(path):
        assert path.exists()


TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "c": torch.empty(0)}


@pytest.mark.parametrize(
    "change",
    [
        {"a": torch.arange(6.0).reshape(3, 2)},
        {"a": torch.arange(6).reshape(2, 3)},
        {"a": torch.arange(6.0).reshape(2, 3) + torch.tensor([0, 0, 1e-6])},
        {"b": torch.tensor(4)},
        {"d": torch.tensor(3)},
    ],
)
def test_every_difference_counts(change):
    assert fingerprint("net", TENSORS) != fingerprint("net", TENSORS | change)


def test_the_rest_counts_too():
    turned = TENSORS | {"a": TENSORS["a"].t().contiguous().t()}

    assert (
        len({fingerprint("net", TENSORS), fingerprint("other", TENSORS), fingerprint("net", TENSORS, 1)}) == 3
    )
    assert fingerprint("net", TENSORS) == fingerprint("net", turned)
