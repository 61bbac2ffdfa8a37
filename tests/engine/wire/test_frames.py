import itertools
import os
import struct
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engine.wire import frames
from modelserver.engine.wire import messages as wire
from modelserver.engine.wire.arena import LARGE, Arena, CopiedIncoming, MappedIncoming, OutgoingHalf
from modelserver.engine.wire.frames import FrameReader, encode, to_server_decoder, to_worker_decoder

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
SECONDS = st.floats(0.0, 1e6)
STATUS = st.integers(100, 599)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3)
BODIES = st.lists(st.binary(max_size=40), max_size=5)

packed = msgspec.msgpack.encode


@st.composite
def predicts(draw):
    bodies = draw(BODIES)
    rows = [
        wire.Row(
            draw(TEXT),
            len(body),
            draw(st.sampled_from([wire.BODY, wire.INSTANCE])),
            draw(TEXT),
            msgspec.Raw(packed(draw(st.lists(st.tuples(st.binary(), st.binary()), max_size=2)))),
            draw(st.none() | PAIRS),
            draw(TEXT),
            draw(st.booleans()),
            draw(st.binary(max_size=10)),
        )
        for body in bodies
    ]
    return wire.Predict(draw(st.integers(0, 2**60)), rows), bodies


@st.composite
def results(draw):
    bodies = draw(BODIES)
    rest = st.tuples(STATUS, TEXT, TEXT, st.none() | PAIRS, st.booleans(), TEXT)
    answers = [wire.Answer(len(body), *draw(rest)) for body in bodies]
    measurement = st.builds(wire.Measurement, TEXT, SECONDS, TEXT, TEXT, PAIRS, TEXT)
    metrics = draw(st.none() | st.lists(measurement, max_size=2))
    phases = draw(st.tuples(SECONDS, SECONDS, SECONDS))
    return wire.Result(draw(st.integers(0, 2**60)), answers, draw(SECONDS), phases, 3, metrics), bodies


def alone(message):
    return message.map(lambda m: (m, []))


_NUMBERS = (st.integers(1, 512), st.none() | st.integers(0, 7))
_SWITCHES = (st.booleans(), st.booleans(), st.integers(0, 2**40), TEXT, st.booleans())
LOADS = st.builds(wire.Load, TEXT, TEXT, TEXT, TEXT, *_NUMBERS, TEXT, TEXT, *_SWITCHES)
TO_WORKER = st.one_of(predicts(), alone(LOADS), alone(st.builds(wire.Stop)), alone(st.builds(wire.Ping)))
TO_SERVER = st.one_of(
    results(),
    alone(st.builds(wire.Loaded, st.booleans(), SECONDS)),
    alone(st.builds(wire.LoadFailed, TEXT, STATUS, st.booleans(), st.dictionaries(TEXT, TEXT))),
    alone(st.builds(wire.Pong)),
)
CUTS = st.lists(st.integers(0, 2000), max_size=12)


def feed(reader, stream, cuts):
    """The messages of a stream that arrives in the pieces between ``cuts``."""
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    received = []
    for start, end in itertools.pairwise(places):
        received += [(message, bytes(tail)) for message, tail in reader.feed(stream[start:end])]
    return received


def frame(head, tail=b"", *, size=None, head_size=None):
    size = len(head) + len(tail) + 4 if size is None else size
    return struct.pack("<II", size, len(head) if head_size is None else head_size) + head + tail


def from_worker(stream, limit=wire.MAX_FRAME):
    return [(m, bytes(tail)) for m, tail in FrameReader(to_server_decoder, limit).feed(stream)]


@pytest.mark.parametrize("to_worker", [True, False])
@given(data=st.data(), cuts=CUTS)
def test_messages_survive_any_chunking(data, cuts, to_worker):
    sent = data.draw(st.lists(TO_WORKER if to_worker else TO_SERVER, max_size=5))
    stream = b"".join(piece for message, bodies in sent for piece in encode(message, bodies))
    reader = FrameReader(to_worker_decoder if to_worker else to_server_decoder)

    assert feed(reader, stream, cuts) == [(m, b"".join(b)) for m, b in sent]


@given(st.binary(max_size=60), CUTS)
def test_garbage_is_a_protocol_error_or_an_unfinished_frame(stream, cuts):
    """Random bytes are no message of unknown shape and raise nothing but ProtocolError (F70)."""
    try:
        received = feed(FrameReader(to_server_decoder), stream, cuts)
    except frames.ProtocolError:
        return
    assert all(isinstance(m, (wire.Loaded, wire.LoadFailed, wire.Result, wire.Pong)) for m, _ in received)


@given(st.binary(max_size=80))
def test_garbage_in_the_head_is_a_protocol_error(head):
    """A frame of honest lengths whose head is no message ends the connection (F70)."""
    try:
        to_server_decoder.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError):
        with pytest.raises(frames.ProtocolError):
            from_worker(frame(head))


@given(results(), st.integers(0, 400), st.integers(0, 255))
def test_flipped_byte_is_never_another_error(sent, place, value):
    """A damaged frame is read, waited for, or refused; it raises nothing else (F70)."""
    stream = bytearray(b"".join(encode(*sent)))
    stream[place % len(stream)] = value
    try:
        received = from_worker(bytes(stream))
    except frames.ProtocolError:
        return
    for message, tail in received:
        if isinstance(message, wire.Result):
            assert len(tail) == sum(answer.size for answer in message.answers)


PONG = packed(wire.Pong())


def result(*sizes):
    return wire.Result(1, [wire.Answer(size) for size in sizes], 0.0)


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(frame(PONG, size=3), id="shorter than its head's size"),
        pytest.param(frame(PONG, head_size=len(PONG) + 1), id="head longer than the frame"),
        pytest.param(frame(b"", size=0), id="nothing at all"),
        pytest.param(frame(b""), id="no head"),
        pytest.param(frame(PONG[:-1]), id="head cut short"),
        pytest.param(frame(PONG + b"\x00"), id="more behind the head"),
        pytest.param(frame(PONG, b"tail"), id="bytes nobody announced"),
        pytest.param(frame(packed(["load_failed", b"\xff", 500, False])), id="bytes for text"),
        pytest.param(frame(b"\x94\xabload_failed\xa2\xff\xfe\xcd\x01\xf4\xc2"), id="text that is no UTF-8"),
        pytest.param(frame(b"\xc1" * 50), id="no msgpack"),
        pytest.param(frame(b"\x95\xa6result\x01\x90\xcb" + b"\0" * 8 + b"\x91" * 100_000), id="nested deep"),
        pytest.param(frame(packed(wire.Ping())), id="the other side's message"),
        pytest.param(frame(packed(result(5)), b"abc"), id="answer too short"),
        pytest.param(frame(packed(result(2)), b"abc"), id="answer too long"),
        pytest.param(frame(packed(result(-2, 5)), b"abc"), id="negative size"),
    ],
)
def test_lying_frame_is_a_protocol_error(stream):
    """Lengths and heads that contradict each other are refused: no answer gets another one's bytes (F23)."""
    with pytest.raises(frames.ProtocolError):
        from_worker(stream)


def test_rows_that_do_not_fill_the_frame_are_refused():
    head = packed(wire.Predict(1, [wire.Row("a", 2), wire.Row("b", 2)]))

    with pytest.raises(frames.ProtocolError, match="3 bytes of rows came, 4 were announced"):
        list(FrameReader(to_worker_decoder).feed(frame(head, b"abc")))


def test_frame_over_the_limit_is_refused_before_it_is_read():
    """The announced size alone is enough to refuse: nothing of that size is ever collected (F28)."""
    stream = b"".join(encode(wire.Result(1, [wire.Answer(100)], 0.0), [b"x" * 100]))
    size = len(stream) - 4

    assert len(from_worker(stream, limit=size)) == 1
    with pytest.raises(frames.ProtocolError, match=f"{size} bytes announced"):
        from_worker(stream[:8], limit=size - 1)


def test_messages_before_a_broken_frame_are_delivered():
    reader = FrameReader(to_server_decoder)
    messages = reader.feed(frame(PONG) + frame(b"\xc1"))

    assert isinstance(next(messages)[0], wire.Pong)
    with pytest.raises(frames.ProtocolError):
        next(messages)


def test_small_frames_are_one_piece_and_large_bodies_are_not_copied():
    small = encode(wire.Result(1, [wire.Answer(3), wire.Answer(3)], 0.0), [b"abc", b"def"])
    large = [b"a" * 40_000, b"b" * 40_000]
    pieces = encode(wire.Result(1, [wire.Answer(40_000), wire.Answer(40_000)], 0.0), large)

    assert len(small) == 1
    assert len(pieces) == 3
    assert pieces[1] is large[0]
    assert pieces[2] is large[1]
    stream = b"".join(pieces)
    ((_, tail),) = FrameReader(to_server_decoder).feed(stream)
    assert tail == b"".join(large)
    assert tail.obj is stream


def test_frame_that_does_not_fit_its_length_field_is_refused():
    class Huge(bytes):
        def __len__(self):
            return wire.MAX_FRAME

    with pytest.raises(frames.ProtocolError, match="over the limit"):
        encode(wire.Predict(1, []), [Huge()])


@pytest.fixture
def arenas():
    """The server's side of an arena, and the worker's."""
    ours = Arena.create()
    other = Arena.adopt(os.dup(ours.descriptor))
    yield ours, other
    ours.close()
    other.close()


BODY_BYTES = bytes(range(256)) * (LARGE // 256 + 1)


def question(size=LARGE):
    return wire.Predict(1, [wire.Row("a", 3), wire.Row("b", size - 3)]), [b"abc", BODY_BYTES[3:size]]


def answer(size=LARGE):
    return wire.Result(1, [wire.Answer(3), wire.Answer(size - 3)], 0.0), [b"abc", BODY_BYTES[3:size]]


def test_rows_keep_their_place_while_they_are_read(arenas):
    ours, other = arenas
    reader = FrameReader(to_worker_decoder)
    reader.arena = other.incoming
    messages = reader.feed(encode(*question(), ours.outgoing)[0])
    next(messages)

    assert ours.outgoing.put([b"x"], 1) != 0
    assert next(messages, None) is None
    assert ours.outgoing.put([b"x"], 1) == 0


def test_only_large_rows_lie_in_the_arena_if_it_has_room(arenas):
    assert encode(*question(LARGE - 1), arenas[0].outgoing) == encode(*question(LARGE - 1))
    assert len(encode(*question(LARGE), arenas[0].outgoing)) == 1

    full = mock.Mock(OutgoingHalf)
    full.put.return_value = None

    assert encode(*question(), full) == encode(*question())


def test_memory_of_large_frames_is_used_again():
    reader = FrameReader(to_worker_decoder)
    headers = msgspec.Raw(packed([(b"name", b"value")]))
    memory = []
    messages = []
    for number in range(3):
        row = wire.Row("a", 200_000, headers=headers if number == 0 else msgspec.Raw(b"\x90"))
        frame = b"".join(encode(wire.Predict(number, [row]), [bytes([number]) * 200_000]))
        assert list(reader.feed(frame[:1000])) == []
        room = reader.room()
        room[:] = frame[1000:]
        memory.append(room.obj)
        for message, tail in reader.filled(len(room)):
            messages.append(message)
            assert bytes(tail) == bytes([number]) * 200_000
        if number == 1:
            reader.trim()

    assert memory[0] is memory[1] is not memory[2]
    assert isinstance(messages[0], wire.Predict)
    assert bytes(messages[0].rows[0].headers) == bytes(headers)


MESSAGES = st.lists(st.one_of(predicts(), alone(st.builds(wire.Ping))), max_size=6)


@given(MESSAGES, CUTS, st.integers(1, 3), st.booleans())
def test_both_ways_are_mixed(sent, cuts, pages, copied):
    file = os.memfd_create("test")
    os.ftruncate(file, pages * 4096)
    out = OutgoingHalf(file, 0, pages * 4096)
    reader = FrameReader(to_worker_decoder)
    reader.arena = (CopiedIncoming if copied else MappedIncoming)(file, 0, pages * 4096)
    with mock.patch.object(frames, "LARGE", 20):
        stream = b"".join(piece for message, bodies in sent for piece in encode(message, bodies, out))
        received = feed(reader, stream, cuts)
    os.close(file)

    assert received == [(m, b"".join(b)) for m, b in sent]


@pytest.mark.parametrize(
    ("message", "place"),
    [
        pytest.param(answer()[0], 1 << 26, id="beyond the end"),
        pytest.param(answer()[0], (1 << 26) - 4096, id="over the end"),
        pytest.param(answer()[0], (1 << 64) - 1, id="far away"),
        pytest.param(answer()[0], 17, id="between"),
        pytest.param(wire.Result(1, [wire.Answer(1 << 26)], 0.0), 0, id="longer than the arena"),
        pytest.param(wire.Result(1, [wire.Answer(1 << 62)], 0.0), 0, id="longer than memory"),
        pytest.param(wire.Result(1, [wire.Answer(7)], 0.0), 0, id="not large"),
        pytest.param(wire.Result(1, [], 0.0), 0, id="no rows"),
        pytest.param(wire.Pong(), 0, id="no message with rows"),
    ],
)
def test_wrong_places_are_a_protocol_error(arenas, message, place):
    """A worker that names what is no block of its arena is not believed (F70)."""
    reader = FrameReader(to_server_decoder)
    reader.arena = arenas[0].incoming

    with pytest.raises(frames.ProtocolError):
        list(reader.feed(frame(packed(message), struct.pack("<Q", place))))


def test_rows_in_an_arena_are_refused_above_the_limit_and_without_one(arenas):
    """What is too large for a frame is too large for the arena: it is refused before it is read (F28)."""
    ours, other = arenas
    pieces = encode(*answer(), other.outgoing)
    reader = FrameReader(to_server_decoder, LARGE - 1)
    reader.arena = ours.incoming

    with pytest.raises(
        frames.ProtocolError, match=f"{LARGE} bytes of rows announced, {LARGE - 1} are allowed"
    ):
        list(reader.feed(pieces[0]))

    with pytest.raises(frames.ProtocolError, match="8 bytes of rows came"):
        from_worker(encode(*answer(), arenas[1].outgoing)[0])
