import msgspec
import pytest

from modelserver.ext.recording import entries


def test_entries_come_back(make_call):
    """All kinds survive their encoding."""
    all_kinds = [
        entries.Beginning(1.5, "1.0", ["m"], ["accept"], 0.5),
        make_call(),
        entries.Lost(1, 2),
        entries.Ended("over"),
    ]

    assert entries.unpack(entries.pack(all_kinds)) == all_kinds

    call = make_call()
    bare = make_call(lines=b"")
    parts = make_call(lines=b"x-batch-id: b\r\nx-batch-size: 1\r\nserver-timing: queue;dur=3.000")

    assert (call.batch, call.batch_size, call.timing) == ("b1", 2, (1.5, 2.5))
    assert (bare.batch, bare.batch_size, bare.timing) == ("", 0, (0.0, 0.0))
    assert parts.timing == (3.0, 0.0)

    assert str(entries.Lost()) == ""
    assert str(entries.Lost(large=2)) == "2 were too large"


def test_frames_are_split_from_any_pieces():
    stream = entries.framed(b"one") + entries.framed(b"") + entries.framed(b"three" * 100)
    for size in (1, 3, 7, len(stream)):
        frames = entries.Frames()
        contents = [
            each
            for start in range(0, len(stream), size)
            for each in frames.feed(stream[start : start + size])
        ]

        assert contents == [b"one", b"", b"three" * 100]


def test_calls_are_counted_without_being_decoded(make_call):
    content = entries.pack([make_call(), entries.Lost(2), make_call(), entries.Ended("over")])

    assert entries.unpack_others(content) == (2, [entries.Lost(2), entries.Ended("over")])
    assert entries.unpack_others(entries.framed_list([entries.pack(make_call())] * 3)[4:]) == (3, [])
    for wrong in (b"", content[:-1], entries.pack([["what", 1]])):
        with pytest.raises(msgspec.MsgspecError):
            entries.unpack_others(wrong)
