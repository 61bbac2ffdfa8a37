import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.ext.frontends import messages

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
BYTES = st.binary(max_size=30)
NUMBERS = st.integers(0, 2**40)
PAIRS = st.lists(st.tuples(BYTES, BYTES), max_size=3)
STATUS = st.integers(100, 999)
ADDRESS = st.none() | st.tuples(TEXT, st.integers(0, 65535))


@st.composite
def asks(draw):
    body = draw(BYTES)
    head = draw(st.tuples(BYTES, BYTES, TEXT, BYTES, TEXT, BYTES, NUMBERS, TEXT, st.booleans()))
    return messages.Ask(draw(NUMBERS), len(body), *head), body


@st.composite
def calls(draw):
    texts = draw(st.tuples(TEXT, TEXT, BYTES, BYTES, TEXT, TEXT))
    return messages.RequestHead(draw(NUMBERS), *texts, draw(PAIRS), draw(ADDRESS), draw(ADDRESS)), b""


@st.composite
def replies(draw):
    body = draw(BYTES)
    return messages.WholeReply(
        draw(NUMBERS), len(body), draw(STATUS), draw(TEXT), draw(BYTES), draw(TEXT)
    ), body


def with_body(make):
    return BYTES.map(lambda body: (make(len(body)), body))


FROM_FRONTEND = st.lists(
    asks()
    | calls()
    | with_body(lambda size: messages.Piece(3, size, True))
    | st.sampled_from(
        [messages.Ready(), messages.Gone(7), messages.RefusedByFrontend(431), messages.Taken(3, 2**40)]
    ).map(lambda message: (message, b""))
    | st.tuples(st.builds(messages.LogRecord, TEXT, st.just(20), st.just(1.5), TEXT), st.just(b"")),
    max_size=8,
)
TO_FRONTEND = st.lists(
    replies()
    | with_body(lambda size: messages.ReplyPart(5, size))
    | with_body(lambda size: messages.Content(5, size, False))
    | st.sampled_from(
        [
            messages.Open(),
            messages.More(1),
            messages.Done(2),
            messages.End(3, True),
            messages.Setup(100, 1000, True, False),
            messages.Setup(1, 2, False, True, ((b"a", b"b"),), ("inference",), True, (b"chain", b"key", b"")),
            messages.Tokens(b"x" * 32),
        ]
    ).map(lambda message: (message, b""))
    | st.tuples(st.builds(messages.ResponseHead, NUMBERS, STATUS, PAIRS), st.just(b""))
    | st.tuples(st.builds(messages.Begin, NUMBERS, STATUS, TEXT, BYTES, TEXT), st.just(b"")),
    max_size=8,
)


def written(output):
    turn = messages.Turn()
    for message, body in output:
        turn.add(message, body)
    return b"".join(turn.take())


def heard(decoder, pieces):
    reader = messages.TurnReader(decoder, lambda place, size: bytes([place]) * size)
    return [output for piece in pieces for output in reader.feed(piece)]


def cut(data, places):
    borders = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(borders)]


@given(st.lists(FROM_FRONTEND, max_size=3), st.lists(st.integers(0, 10_000), max_size=5))
def test_what_a_front_end_says_arrives(turns, places):
    """Every message arrives once, in order, with its own body, however the bytes are cut."""
    data = b"".join(map(written, turns))
    assert heard(messages.from_frontend_decoder, cut(data, places)) == list(itertools.chain(*turns))


@given(st.lists(TO_FRONTEND, max_size=3), st.lists(st.integers(0, 10_000), max_size=5))
def test_what_the_server_says_arrives(turns, places):
    data = b"".join(map(written, turns))
    assert heard(messages.to_frontend_decoder, cut(data, places)) == list(itertools.chain(*turns))


def test_a_turn_is_one_piece_but_for_large_bodies():
    turn = messages.Turn()
    for number in range(100):
        turn.add(messages.ReplyPart(number, 3), b"abc")

    assert len(turn.take()) == 1
    assert turn.take() == []

    body = bytes(1 << 20)
    turn = messages.Turn()
    turn.add(messages.ReplyPart(1, len(body)), body)

    assert turn.take()[1] is body


def test_stored_bodies_are_fetched():
    """A body that lies elsewhere is fetched from there; its neighbours' are in the frame."""
    turn = messages.Turn()
    turn.add(messages.ReplyPart(1, 2), b"ab")
    turn.add(messages.ReplyPart(2, 4), b"cccc", place=7)
    turn.add(messages.ReplyPart(3, 1), b"d")
    data = b"".join(turn.take())

    assert b"cccc" not in data
    assert heard(messages.to_frontend_decoder, [data]) == [
        (messages.ReplyPart(1, 2), b"ab"),
        (messages.ReplyPart(2, 4), b"\7\7\7\7"),
        (messages.ReplyPart(3, 1), b"d"),
    ]


def test_a_turn_with_much_is_several_frames(monkeypatch):
    monkeypatch.setattr(messages, "FRAME_BYTES", 100)
    output = [(messages.ReplyPart(number, 40), bytes([number]) * 40) for number in range(10)]
    data = written(output)

    assert messages.PREFIX.unpack_from(data)[1] == 120
    assert heard(messages.to_frontend_decoder, [data]) == output


@pytest.mark.parametrize(
    "data",
    [
        messages.PREFIX.pack(1 << 31 | 1, 0),
        messages.PREFIX.pack(3, 0) + b"abc",
        messages.PREFIX.pack(1, 0) + b"\xc1",
        messages.PREFIX.pack(5, 3) + b"\x91\x93\x18\x01\x02" + b"abc",
        messages.PREFIX.pack(5, 1) + b"\x91\x93\x18\x01\x02" + b"a",
        messages.PREFIX.pack(3, 0) + b"\x91\x91\x63",
    ],
    ids=["endless head", "no msgpack", "no list", "more bytes than announced", "fewer", "no such message"],
)
def test_malformed_frames_are_refused(data):
    with pytest.raises(messages.FrameError):
        heard(messages.to_frontend_decoder, [data])


def test_sides_are_separate():
    with pytest.raises(messages.FrameError):
        heard(messages.from_frontend_decoder, [written([(messages.Open(), b"")])])
