from modelserver.models.archives.incoming import Incoming, Transfer, is_beside


def test_a_file_beside_another_is_marked(tmp_path):
    there = tmp_path / "a.mar"
    there.write_bytes(b"old")
    with Incoming(tmp_path, "a.mar", "u", Transfer(beside=there)) as incoming:
        incoming.write(b"new")
        fetched = incoming.publish()

    assert (is_beside(fetched), is_beside(there)) == (True, False)
    assert (there.read_bytes(), fetched.read_bytes()) == (b"old", b"new")
