import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hypothesis import example, given
from hypothesis import strategies as st

from modelserver.ext.grpc.http2.fields import _LARGEST_KNOWN, _MOST_KNOWN, FieldDecoder
from modelserver.ext.grpc.http2.frames import Code, Http2Error, field

NAMES = st.sampled_from(["a", "b", ":path", "content-type", "x-long-name"])
VALUES = st.sampled_from(["", "1", "2", "application/grpc", "v" * 90])
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=6)
# The fields of a client, some of them never indexed, after a new size of its table.
FIELDS = st.tuples(LISTS, st.booleans(), st.sampled_from([None, None, None, 0, 300, 4096]))


def outcome(decode, block):
    """The fields, or None if the connection ends."""
    try:
        return tuple(decode(block))
    except (Http2Error, HPACKError):
        return None


_HEAD = [("content-type", "application/grpc"), ("a", "")]


@given(st.lists(FIELDS, max_size=30))
@example(
    [([], False, 0), (_HEAD, True, None), ([], False, 300), (_HEAD, True, None), ([("a", "")], False, None)]
)
def test_remembered_blocks_are_read_right(messages):
    """Whatever clients send, repeat and leave out of the table: the fields are those of a plain decoder."""
    encoder, plain, decoder = Encoder(), Decoder(), FieldDecoder(1 << 16, tuple)
    for fields, remaining, size in messages:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode([(name, value, not remaining) for name, value in fields])
        for _ in range(3):
            expected = outcome(lambda block: plain.decode(block, raw=True), block)
            assert outcome(decoder.decode, block) == expected
            if expected is None:
                return


def test_equal_blocks_are_read_once():
    read = []
    decoder = FieldDecoder(1 << 16, lambda fields: read.append(fields) or len(read))
    encoder = Encoder()
    first = encoder.encode([("a", "1")])
    again = encoder.encode([("a", "1")])

    assert first != again
    assert [decoder.decode(block) for block in (first, again, again, again)] == [1, 2, 2, 2]
    decoder.decode(encoder.encode([("b", "1")]))
    assert decoder.decode(encoder.encode([("a", "1")])) == 4


def test_little_is_remembered():
    """Neither many blocks nor large ones are cached."""
    decoder = FieldDecoder(1 << 16, tuple)
    for each in range(10 * _MOST_KNOWN):
        decoder.decode(field(b"a", b"%d" % each))
        assert len(decoder._known) <= _MOST_KNOWN
    before = dict(decoder._known)
    decoder.decode(field(b"a", bytes(_LARGEST_KNOWN)))

    assert decoder._known == before


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", Code.COMPRESSION_ERROR),
        (b"\xbf", Code.COMPRESSION_ERROR),
        (b"\x00\x05ab", Code.COMPRESSION_ERROR),
        (b"\x3f\xff\xff\x7f", Code.COMPRESSION_ERROR),
        (field(b"a", bytes(2000)), Code.ENHANCE_YOUR_CALM),
        (b"".join(field(b"a", b"") for _ in range(40)), Code.ENHANCE_YOUR_CALM),
    ],
    ids=["endless number", "no such entry", "cut off", "a huge table", "too long", "too many"],
)
def test_unreadable_block_ends_the_connection(block, code):
    with pytest.raises(Http2Error) as broken:
        FieldDecoder(1000, tuple).decode(block)
    assert broken.value.code is code
