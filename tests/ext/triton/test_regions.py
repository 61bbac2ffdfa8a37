import os
from types import SimpleNamespace

import pytest

from modelserver.engine.tensors.shared_memory import SharedMemory
from modelserver.errors import BadRequest, ResourceNotFound
from modelserver.ext.triton.regions import Regions


def services_with(prefix):
    """What a server has for regions, with this ``shared_memory_prefix``."""
    shared = SharedMemory(allowed=prefix is not None, most=1 << 24)
    return SimpleNamespace(shared=shared, settings=SimpleNamespace(shared_memory_prefix=prefix))


@pytest.fixture
def regions(tmp_path, monkeypatch):
    """Memory `/t_x` of 32 bytes may be registered, and is, as `x`, from byte 8 on."""
    monkeypatch.setattr("modelserver.ext.triton.regions.SHARED_MEMORY", tmp_path)
    (tmp_path / "t_x").write_bytes(bytes(32))
    made = Regions(services_with("/t_"))
    made.register("x", "/t_x", 8, 24)
    return made


def test_regions_are_listed_until_they_are_unregistered(regions):
    place = {"name": "x", "key": "/t_x", "offset": 8, "byte_size": 24}

    assert regions.status() == regions.status("x") == [place]
    regions.unregister("y")
    assert regions.status() == [place]
    regions.unregister("x")
    assert regions.status() == []
    with pytest.raises(ResourceNotFound, match="'x'"):
        regions.status("x")

    regions.register("x", "/t_x", 0, 8)
    regions.unregister()
    regions.register("x", "t_x", 0, 32)

    assert [each["key"] for each in regions.status()] == ["t_x"]


@pytest.mark.parametrize(
    ("name", "key", "offset", "size", "reason"),
    [
        ("x", "/t_x", 0, 8, "already registered"),
        ("y", "/other", 0, 8, "does not begin with '/t_'"),
        ("y", "/../t_x", 0, 8, "not the name of shared memory"),
        ("y", "/t_/../t_x", 0, 8, "not the name of shared memory"),
        ("y", "t_x/../../etc/passwd", 0, 8, "not the name of shared memory"),
        ("y", "/..", 0, 8, "not the name of shared memory"),
        ("y", "//t_x", 0, 8, "not the name of shared memory"),
        ("y", "/t_\0", 0, 8, "not the name of shared memory"),
        ("y", "/t_" + "x" * 300, 0, 8, "not the name of shared memory"),
        ("y", "/t_\ud800", 0, 8, "cannot be opened"),
        ("y", "", 0, 8, "not the name of shared memory"),
        ("y", "/t_none", 0, 8, "No such file"),
        ("y", "/t_x", 0, 33, "has 32 bytes"),
        ("y", "/t_x", 25, 8, "has 32 bytes"),
        ("y", "/t_x", 2**64 - 1, 2**64 - 1, "has 32 bytes"),
        ("y", "/t_x", -8, 8, "an offset of at least 0"),
        ("y", "/t_x", 0, 0, "a size of at least 1"),
        ("", "/t_x", 0, 8, "1 to 255 characters"),
        ("y" * 256, "/t_x", 0, 8, "1 to 255 characters"),
    ],
)
def test_wrong_regions_are_refused(regions, name, key, offset, size, reason):
    """What is outside of the prefix, not there, shorter than said, or has no good name."""
    with pytest.raises(BadRequest, match=reason):
        regions.register(name, key, offset, size)
    assert len(regions.status()) == 1


def test_what_is_no_memory(regions, tmp_path):
    """Links are not followed, wherever they lead; queues and folders are refused at once."""
    (tmp_path / "t_link").symlink_to(tmp_path / "t_x")
    os.mkfifo(tmp_path / "t_queue")
    (tmp_path / "t_folder").mkdir()

    for key in ("t_link", "t_queue", "t_folder"):
        with pytest.raises(BadRequest, match=r"cannot be opened|is not shared memory"):
            regions.register("y", key, 0, 1)


def test_prefix_decides_what_may_be_registered(tmp_path, monkeypatch):
    monkeypatch.setattr("modelserver.ext.triton.regions.SHARED_MEMORY", tmp_path)
    regions = Regions(services_with(None))

    with pytest.raises(BadRequest, match="no shared_memory_prefix"):
        regions.register("x", "/t_x", 0, 8)
    with pytest.raises(BadRequest, match="input 'a': shared memory is not allowed"):
        regions.shared.memory.find({"shared_memory_region": "x"}, "input 'a'")

    (tmp_path / "any").write_bytes(bytes(8))
    all_names = Regions(services_with("/"))
    all_names.register("x", "any", 0, 8)

    assert len(all_names.status()) == 1
