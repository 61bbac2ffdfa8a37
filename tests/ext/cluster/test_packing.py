"""A model's files as a stream: equal contents are equal bytes, from any offset, and none but those hashed."""

import asyncio
import hashlib
import io
import os
import resource
import tarfile
from pathlib import Path

import pytest
from tests.waiting import turns_of

from modelserver.ext.cluster import packing
from modelserver.ext.cluster.packing import PIECE, Packer, PackingFailed


def write(folder):
    """A model: files of several sizes, an empty folder, a program, links."""
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_text("{}")
    (folder / "empty").mkdir()
    (folder / "weights.pt").write_bytes(bytes(range(256)) * 10_000)
    (folder / "nothing").touch()
    (folder / f"{'long' * 50}.txt").write_text("a name that does not fit into a header")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o700)
    (folder / "link").symlink_to("MAR-INF/MANIFEST.json")
    (folder / "MAR-INF" / "up").symlink_to("../weights.pt")
    return folder


def names(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


async def stream(packed, offset=0):
    pieces = [piece async for piece in packed.read(offset)]
    assert all(0 < len(piece) <= PIECE for piece in pieces)
    return b"".join(pieces)


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "model")


async def test_absolute_links_become_relative_in_the_archive(tmp_path, model):
    packed = await Packer().pack(model)
    data = await stream(packed)
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        opened.extractall(tmp_path / "there", filter="data")

    assert len(data) == packed.size
    assert hashlib.sha256(data).hexdigest() == packed.digest
    there = tmp_path / "there"
    assert names(there) == names(model)
    assert (there / "weights.pt").read_bytes() == (model / "weights.pt").read_bytes()
    assert os.access(there / "run.sh", os.X_OK)
    assert not (there / "weights.pt").stat().st_mode & 0o111
    assert os.readlink(there / "link") == "MAR-INF/MANIFEST.json"
    assert os.readlink(there / "MAR-INF" / "up") == "../weights.pt"

    (model / "empty" / "absolute").symlink_to(model / "weights.pt")
    with tarfile.open(fileobj=io.BytesIO(await stream(await Packer().pack(model)))) as opened:
        assert opened.getmember("empty/absolute").linkname == "../weights.pt"


async def test_stream_begins_at_any_offset_without_blocking(model):
    packed = await Packer().pack(model)
    whole = await stream(packed)

    for offset in (1, 511, 512, 513, 700, PIECE - 1, PIECE + 1, packed.size - 1, packed.size):
        assert await stream(packed, offset) == whole[offset:]

    read, turns = await turns_of(asyncio.gather(*(stream(packed) for _ in range(5))))
    assert set(read) == {whole}
    assert turns > 5


async def test_the_digest_is_that_of_the_content(tmp_path, model):
    other = write(tmp_path / "other")
    os.utime(other / "weights.pt", (1, 1))
    (other / "weights.pt").chmod(0o600)
    (other / "__pycache__").mkdir()
    (other / "__pycache__" / "handler.cpython-311.pyc").write_bytes(b"compiled")
    packer = Packer()
    first, second = await packer.pack(model), await packer.pack(other)
    (other / "nothing").rename(other / "named")

    assert first.digest == second.digest
    assert (await packer.pack(other)).digest != first.digest


async def test_who_asks_at_the_same_time_shares_the_work(model, monkeypatch):
    hashed = 0
    original = packing._hashed

    def counted(*arguments):
        nonlocal hashed
        hashed += 1
        return original(*arguments)

    monkeypatch.setattr(packing, "_hashed", counted)
    packer = Packer()
    first = asyncio.create_task(packer.pack(model))
    await asyncio.sleep(0)
    first.cancel()
    result = await asyncio.gather(*(packer.pack(model) for _ in range(20)))
    await packer.pack(model)

    assert hashed == 1
    assert len(set(map(id, result))) == 1
    (model / "nothing").write_text("something")
    assert (await packer.pack(model)).digest != result[0].digest
    assert hashed == 2


async def test_files_that_change_are_not_sent(model):
    packer = Packer()
    packed = await packer.pack(model)
    (model / "weights.pt").write_bytes(bytes(2_560_000))

    with pytest.raises(PackingFailed, match=r"weights\.pt has changed since the model was loaded"):
        await stream(packed)
    again = await packer.pack(model)
    assert again.digest != packed.digest
    assert hashlib.sha256(await stream(again)).hexdigest() == again.digest
    (model / "weights.pt").unlink()
    with pytest.raises(PackingFailed, match=r"weights\.pt cannot be read: No such file or directory"):
        await stream(again)


async def test_models_that_are_gone_are_forgotten(tmp_path, model):
    packer = Packer()
    await packer.pack(model)
    os.rename(model, tmp_path / "other")
    await packer.pack(tmp_path / "other")

    assert list(packer._packed) == [tmp_path / "other"]
    with pytest.raises(PackingFailed, match=r"cannot be read: .*model: No such file or directory"):
        await packer.pack(model)


async def test_links_out_of_the_model_are_followed(tmp_path, model):
    """As those to what is beside a script, or to the hub's cache; the digest is that of the contents. What is
    no file there stays out.
    """
    beside = write(tmp_path / "beside")
    (beside / "across").symlink_to(model / "weights.pt")
    os.mkfifo(beside / "pipe")
    (model / "folder").symlink_to(beside)
    (model / "file").symlink_to(beside / "weights.pt")
    (model / "broken").symlink_to(tmp_path / "gone")

    packer = Packer()
    packed = await packer.pack(model)
    with tarfile.open(fileobj=io.BytesIO(await stream(packed))) as opened:
        opened.extractall(tmp_path / "there", filter="data")

    there = tmp_path / "there"
    assert (there / "file").read_bytes() == (beside / "weights.pt").read_bytes()
    assert not any((there / name).is_symlink() for name in ("file", "folder", "folder/across"))
    assert names(there / "folder") == [name for name in names(beside) if name != Path("pipe")]
    assert (there / "folder" / "MAR-INF" / "up").readlink() == Path("../weights.pt")
    assert not (there / "broken").is_symlink()
    (beside / "weights.pt").write_bytes(b"new")
    assert (await packer.pack(model)).digest != packed.digest


@pytest.mark.parametrize("target", ["..", "/", "to a folder with a link back", None])
async def test_circle_and_pipe_are_refused(tmp_path, model, target):
    """They would never end, or block whoever reads them: the model is refused."""
    if target is None:
        os.mkfifo(model / "MAR-INF" / "pipe")
        reason = "'MAR-INF/pipe' is neither a file nor a directory"
    elif target == "to a folder with a link back":
        (tmp_path / "beside").mkdir()
        (tmp_path / "beside" / "back").symlink_to(model)
        (model / "out").symlink_to("../beside")
        reason = f"the link 'out/back' leads to '{model}', which has it"
    else:
        (model / "out").symlink_to(target)
        reason = f"the link 'out' leads to '{(model / target).resolve()}', which has it"

    with pytest.raises(PackingFailed, match=reason):
        await Packer().pack(model)


async def test_memory_is_level(tmp_path):
    """A model of 200 MB is hashed and read without growth of the server and without further room on disk."""
    folder = tmp_path / "large"
    folder.mkdir()
    with (folder / "weights.pt").open("wb") as file:
        file.truncate(200_000_000)
    await Packer().pack(write(tmp_path / "model"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    packed = await Packer().pack(folder)
    size = 0
    async for piece in packed.read():
        size += len(piece)

    assert size == packed.size > 200_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # KiB
    assert [path.name for path in names(tmp_path)].count("weights.pt") == 2
