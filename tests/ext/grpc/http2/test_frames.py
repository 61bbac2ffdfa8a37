import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from modelserver.ext.grpc.http2 import frames

TEXTS = st.binary(min_size=1, max_size=300)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=5))
def test_fields_are_read_by_others(fields):
    decoder = Decoder()
    block = b"".join(frames.field(name, value) for name, value in fields)

    assert [tuple(each) for each in decoder.decode(block, raw=True)] == fields
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("size", [0, 126, 127, 128, 254, 255, 256, 16_510, 60_000])
def test_lengths_are_coded_right(size):
    [(_, value)] = Decoder().decode(frames.field(b"a", bytes(size)), raw=True)
    assert value == bytes(size)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (frames.frame(frames.DATA, 1, 3, b"ab"), "000002 00 01 00000003 6162"),
        (frames.head(frames.DATA, 0, 3, 70_000), "011170 00 00 00000003"),
        (frames.reset(5, frames.Code.CANCEL), "000004 03 00 00000005 00000008"),
        (frames.goaway(7, frames.Code.NO_ERROR, "x"), "000009 07 00 00000000 00000007 00000000 78"),
        (frames.window_update(1, 256), "000004 08 00 00000001 00000100"),
        (frames.settings([(frames.SettingId.MAX_FRAME_SIZE, 65_536)]), "000006 04 00 00000000 0005 00010000"),
    ],
)
def test_frames_have_the_bytes_of_the_rfc(made, expected):
    """Frames have the bytes of RFC 9113, 4.1 and 6."""
    assert made == bytes.fromhex(expected)
