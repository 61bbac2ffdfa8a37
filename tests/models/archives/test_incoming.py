"""Files on their way in."""

from modelserver.errors import DownloadFailed
from modelserver.models.archives.incoming import Incoming, Transfer, is_beside


def test_a_file_has_its_name_when_it_is_whole(tmp_path):
    """TorchServe's words stand alone then."""
    with Incoming(tmp_path, "a.mar", "http://x/a.mar") as incoming:
        incoming.write(b"ab")
        assert not (tmp_path / "a.mar").exists()
        incoming.write(b"c")
        assert incoming.publish() == tmp_path / "a.mar"
    with Incoming(tmp_path, "b.mar", "http://x/b.mar") as incoming:
        incoming.write(b"ab")

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.mar": b"abc"}

    assert DownloadFailed.of("u").message == "Failed to download archive from: u"


def test_a_file_beside_another_is_marked(tmp_path):
    there = tmp_path / "a.mar"
    there.write_bytes(b"old")
    with Incoming(tmp_path, "a.mar", "u", Transfer(beside=there)) as incoming:
        incoming.write(b"new")
        fetched = incoming.publish()

    assert (is_beside(fetched), is_beside(there)) == (True, False)
    assert (there.read_bytes(), fetched.read_bytes()) == (b"old", b"new")
