"""A model's files as a stream: equal contents are equal bytes, from any offset, and none but those hashed."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import resource
import tarfile
from typing import TYPE_CHECKING

import pytest

from modelserver.ext.cluster import packing
from modelserver.ext.cluster.packing import PIECE, Packed, Packer, PackingFailed

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path) -> Path:
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


def names(folder: Path) -> list[Path]:
    """Everything below a folder."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


async def stream(packed: Packed, offset: int = 0) -> bytes:
    """All bytes from there."""
    pieces = [piece async for piece in packed.read(offset)]
    assert all(0 < len(piece) <= PIECE for piece in pieces)
    return b"".join(pieces)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's directory."""
    return write(tmp_path / "model")


async def test_the_stream_is_a_tar_archive(tmp_path: Path, model: Path) -> None:
    """It has the announced size and digest, and unpacks to the same files, modes and links."""
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


async def test_stream_begins_at_any_offset(model: Path) -> None:
    """A torn transfer goes on anywhere: in a header, a file, the padding, at the end."""
    packed = await Packer().pack(model)
    whole = await stream(packed)

    for offset in (1, 511, 512, 513, 700, PIECE - 1, PIECE + 1, packed.size - 1, packed.size):
        assert await stream(packed, offset) == whole[offset:]


async def test_the_digest_is_that_of_the_content(tmp_path: Path, model: Path) -> None:
    """Another place, times, order, owners' modes and compiled modules do not count; content and names do."""
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


async def test_who_asks_at_the_same_time_shares_the_work(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is hashed once, also if the first who asked gave up; and anew only if it changes."""
    hashed = 0
    original = packing._hashed

    def counted(*arguments: object) -> Packed:
        nonlocal hashed
        hashed += 1
        return original(*arguments)  # type: ignore[arg-type]

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


async def test_files_that_change_are_not_sent(model: Path) -> None:
    """The error names the file that has changed or is gone; packing again has the new content."""
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


async def test_models_that_are_gone_are_forgotten(tmp_path: Path, model: Path) -> None:
    """Nothing is kept of a model whose files were removed, and asking for it says so."""
    packer = Packer()
    await packer.pack(model)
    os.rename(model, tmp_path / "other")
    await packer.pack(tmp_path / "other")

    assert list(packer._packed) == [tmp_path / "other"]
    with pytest.raises(PackingFailed, match=r"cannot be read: .*model: No such file or directory"):
        await packer.pack(model)


async def test_absolute_link_becomes_relative(tmp_path: Path, model: Path) -> None:
    """One that leads to a file of the model becomes a relative one."""
    (model / "empty" / "absolute").symlink_to(model / "weights.pt")
    with tarfile.open(fileobj=io.BytesIO(await stream(await Packer().pack(model)))) as opened:
        assert opened.getmember("empty/absolute").linkname == "../weights.pt"


@pytest.mark.parametrize("target", ["/etc/passwd", "../beside", "MAR-INF/../../beside", ".."])
async def test_link_out_of_the_model_is_refused(model: Path, target: str) -> None:
    """They would lead elsewhere on another machine: the model is refused, with the link's name and target."""
    (model / "out").symlink_to(target)

    with pytest.raises(PackingFailed, match=f"the link 'out' leads out of its directory, to '{target}'"):
        await Packer().pack(model)


async def test_special_file_is_refused(model: Path) -> None:
    """A pipe would block whoever reads it: the model is refused."""
    os.mkfifo(model / "MAR-INF" / "pipe")

    with pytest.raises(PackingFailed, match="'MAR-INF/pipe' is neither a file nor a directory"):
        await Packer().pack(model)


async def test_reading_does_not_block(model: Path) -> None:
    """Several readers take turns with everything else on the loop."""
    packed = await Packer().pack(model)
    readers = [asyncio.create_task(stream(packed)) for _ in range(5)]
    turns = 0
    while not all(reader.done() for reader in readers):
        await asyncio.sleep(0)
        turns += 1

    assert len({reader.result() for reader in readers}) == 1
    assert turns > 5


async def test_memory_is_level(tmp_path: Path) -> None:
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
