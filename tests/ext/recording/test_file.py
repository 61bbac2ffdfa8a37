import errno
import io

import pytest
import zstandard

from modelserver.errors import ConfigError
from modelserver.ext.recording import requests_of
from modelserver.ext.recording.entries import Beginning, Ended, Lost, pack
from modelserver.ext.recording.file import Writer, read


def written(path, *frames):
    with path.open("wb", buffering=0) as output:
        writer = Writer(output)
        for entries in frames:
            writer.write(pack(entries))
    return path


def test_a_recording_comes_back(tmp_path, make_call):
    began, ended = Beginning(5.0, "1.0", [], [], 1.0), Ended("interrupted")
    late, early = make_call(at=9, number=1), make_call(at=2, number=2)
    recording = read(written(tmp_path / "a.msr", [began], [late, Lost(1)], [early, Lost(1, 1), ended]))

    assert (recording.began, recording.calls) == (began, [early, late])
    assert (recording.lost, recording.ended) == (Lost(1, 1), "interrupted")
    assert recording.fault == ""

    path = written(tmp_path / "a.msr", [make_call(at=1_500_000_000)])

    assert list(requests_of(path)) == [
        (1.5, "POST", "/predictions/m?x=1", (("content-type", "text/plain"),), b"question")
    ]


def test_a_file_cut_anywhere_is_read_to_its_last_whole_frame(tmp_path, make_call):
    parts = [written(tmp_path / f"{n}.msr", *([make_call(number=i)] for i in range(n))) for n in range(4)]
    ends = [path.stat().st_size for path in parts]
    whole = parts[-1].read_bytes()
    cut = tmp_path / "cut.msr"
    for length in {*ends, *range(ends[0], len(whole), 5)}:
        cut.write_bytes(whole[:length])
        recording = read(cut)

        assert len(recording.calls) == max(n for n, end in enumerate(ends) if end <= length)
        assert recording.fault == ("" if length in ends else "it was cut off in the middle")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a recording"),
        (b"MSRECORD\x01", "not a recording"),
        (b"PK\x03\x04 something else", "not a recording"),
        (b"MSRECORD\x02\0\0\0", "version 2 of the format, 1 is supported"),
    ],
)
def test_other_files_and_versions_are_refused(tmp_path, content, message):
    path = tmp_path / "b.msr"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read(path)
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.msr")


def test_damage_ends_the_recording_before_it(tmp_path, make_call):
    """A changed byte ends the recording at the frame before it. A frame that would fill the memory
    is not unpacked, and one that is not a list of entries is reported.
    """
    path = written(tmp_path / "c.msr", [make_call()], [make_call()])
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)

    assert (len(read(path).calls), read(path).fault) == (1, "the checksum of a frame is wrong")

    with path.open("wb", buffering=0) as output:
        writer = Writer(output)
        bomb = zstandard.ZstdCompressor(write_content_size=True).compressobj(size=1 << 40)
        writer._compress = lambda _: bomb.compress(b"x") + bomb.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        writer.write(b"")
    assert read(path).fault == "a frame is too large"

    with path.open("wb", buffering=0) as output:
        Writer(output).write(b"\x91\xc0")
    assert read(path).fault.startswith("a frame cannot be read")


class Full(io.BytesIO):
    """A disk with so many bytes of room, which writes what fits."""

    def __init__(self, room):
        super().__init__()
        self._room = room

    def write(self, data):
        count = super().write(data[: self._room - self.tell()])
        if not count:
            raise OSError(errno.ENOSPC, "No space left on device")
        return count


def test_a_full_disk_leaves_whole_frames(tmp_path, make_call):
    frame = pack([make_call()])
    whole = written(tmp_path / "whole.msr", [make_call()])
    disk = Full(whole.stat().st_size + 20)
    writer = Writer(disk)
    writer.write(frame)
    with pytest.raises(OSError, match="No space"):
        writer.write(frame)

    assert disk.getvalue() == whole.read_bytes()
