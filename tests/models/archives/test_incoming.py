"""Files on their way in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelserver.errors import DownloadFailed, ModelFileExists
from modelserver.models.archives.incoming import Incoming, Transfer, failed, is_beside

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


def test_a_file_of_that_name_stays(tmp_path: Path) -> None:
    """It is a conflict before anything is written, and where it comes meanwhile."""
    (tmp_path / "a.mar").write_bytes(b"old")
    with pytest.raises(ModelFileExists, match=r"a\.mar"), Incoming(tmp_path, "a.mar", "u"):
        pass
    with Incoming(tmp_path, "b.mar", "u") as incoming:
        (tmp_path / "b.mar").write_bytes(b"first")
        with pytest.raises(ModelFileExists, match=r"b\.mar"):
            incoming.publish()

    assert (tmp_path / "a.mar").read_bytes() == b"old"
    assert (tmp_path / "b.mar").read_bytes() == b"first"


def test_too_much_is_refused(tmp_path: Path) -> None:
    """When it is announced, and when it comes unannounced."""
    with Incoming(tmp_path, "a.mar", "http://x/a.mar", Transfer(max_bytes=3)) as incoming:
        incoming.expect(None)
        with pytest.raises(DownloadFailed, match="larger than 3 bytes"):
            incoming.expect(4)
        with pytest.raises(DownloadFailed, match=r"Failed to download archive from: http://x/a\.mar"):
            incoming.write(b"four")

    assert list(tmp_path.iterdir()) == []


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
    assert failed("u").message == "Failed to download archive from: u"
