"""Files on their way in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.errors import DownloadFailed
from modelserver.models.archives.incoming import Incoming, Transfer, is_beside

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    """Until then it lies beside its place, and what is not published leaves nothing."""
    with Incoming(tmp_path, "a.mar", "http://x/a.mar") as incoming:
        incoming.write(b"ab")
        assert not (tmp_path / "a.mar").exists()
        incoming.write(b"c")
        assert incoming.publish() == tmp_path / "a.mar"
    with Incoming(tmp_path, "b.mar", "http://x/b.mar") as incoming:
        incoming.write(b"ab")

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.mar": b"abc"}


def test_a_file_beside_another_is_marked(tmp_path: Path) -> None:
    """One that is to replace a file of its own name gets another, by which it is known."""
    there = tmp_path / "a.mar"
    there.write_bytes(b"old")
    with Incoming(tmp_path, "a.mar", "u", Transfer(beside=there)) as incoming:
        incoming.write(b"new")
        fetched = incoming.publish()

    assert (is_beside(fetched), is_beside(there)) == (True, False)
    assert (there.read_bytes(), fetched.read_bytes()) == (b"old", b"new")


def test_a_failure_may_have_no_reason() -> None:
    """TorchServe's words stand alone then."""
    assert DownloadFailed.of("u").message == "Failed to download archive from: u"
