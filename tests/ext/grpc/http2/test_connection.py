"""Connections: what clients may do, what ends their stream, and what ends their connection."""

import asyncio

import pytest
from tests.ext.grpc.http2.talking import (
    DATA,
    END,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RESET,
    SETTINGS,
    WHOLE,
    WINDOW,
    Client,
    frame,
    frames_of,
    number,
    setting,
)

from modelserver.ext.grpc.http2 import connection
from modelserver.ext.grpc.http2.connection import MOST_WASTE
from modelserver.ext.grpc.http2.frames import Code

START = {b":method": b"POST", b":scheme": b"http", b":path": b"/a", b":authority": b"x"}


@pytest.fixture
async def client():
    return Client().greet()


async def test_greeting_and_frames_keep_both_sides_limits():
    """Frames have 16 KiB, or as much as the client says."""
    client = Client(streams=7, window=1 << 20, connection_window=1 << 24, frame=1 << 18, fields=1 << 16)
    first, more = client.receive()
    assert (first.kind, more.kind, more.payload) == (SETTINGS, WINDOW, number((1 << 24) - 65_535))
    assert first.payload == setting(3, 7) + setting(4, 1 << 20) + setting(5, 1 << 18) + setting(6, 1 << 16)

    client.send(PREFACE, frame(SETTINGS, 0, 0))
    assert client.receive() == [(SETTINGS, 1, 0, b"")]

    client = Client().greet(s4=1 << 20)
    client.send(client.head(1, WHOLE | END))
    client.streams[1].send(b"", bytes(40_000))
    assert [len(each.payload) for each in client.receive()] == [16_384, 16_384, 7232]

    client.send(frame(SETTINGS, 0, 0, setting(5, 20_000)))
    client.streams[1].send(b"", bytes(25_000))
    assert [len(each.payload) for each in client.receive() if each.kind == DATA] == [20_000, 5000]


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_request_may_come_in_pieces_of_any_size(size):
    client = Client()
    call = client.head(1) + frame(DATA, 0, 1, b"ab") + frame(DATA, END, 1, b"c")
    data = PREFACE + frame(SETTINGS, 0, 0) + call
    for at in range(0, len(data), size):
        client.send(data[at : at + size])
    stream = client.streams[1]

    assert stream.calls == [("begun", START, False), "whole"]
    assert stream.body == b"abc"
    client.receive()
    stream.send(b"\x88", b"answer", b"\x88")
    assert client.receive() == [
        (HEADERS, WHOLE, 1, b"\x88"),
        (DATA, 0, 1, b"answer"),
        (HEADERS, WHOLE | END, 1, b"\x88"),
    ]
    assert client.connection.streams == {}


async def test_streams_share_the_window_of_the_connection():
    client = Client().greet(s4=1 << 20)
    client.send(*(client.head(each, WHOLE | END) for each in (1, 3, 5)))
    client.connection.pause_writing()
    for each in (1, 3):
        client.streams[each].send(b"\x88", bytes(70_000), b"\x88")
    client.connection.resume_writing()
    client.streams[5].send(b"", b"", b"\x88")
    received = client.receive()

    sent = [len(client.body(received, each)) for each in (1, 3)]
    assert sum(sent) == 65_535
    assert max(sent) - min(sent) <= 2 * 16_384
    assert (HEADERS, WHOLE | END, 5, b"\x88") in received
    client.send(frame(WINDOW, 0, 0, number(1 << 20)))
    received = client.receive()
    assert [sent[at] + len(client.body(received, each)) for at, each in enumerate((1, 3))] == [70_000, 70_000]


async def test_large_answers_go_out_bit_by_bit():
    client = Client().greet(s4=1 << 27)
    client.send(client.head(1, WHOLE | END), frame(WINDOW, 0, 0, number(1 << 27)))
    client.receive()
    client.streams[1].send(b"", bytes(10 << 20), b"\x88")
    first = client.body(client.receive())
    assert 0 < len(first) <= 600 << 10
    client.connection.pause_writing()
    assert not client.transport.reading
    await asyncio.sleep(0)
    assert client.receive() == []
    client.connection.resume_writing()
    assert client.transport.reading
    for _ in range(40):
        await asyncio.sleep(0)
    assert len(first) + len(client.body(client.receive())) == 10 << 20


async def test_windows_are_opened_as_bodies_are_taken(client):
    client = Client(window=1000, connection_window=100_000).greet()
    client.send(client.head(1), frame(DATA, 0, 1, bytes(499)))
    assert client.receive() == []
    client.send(frame(DATA, 0, 1, bytes(1)))
    assert client.receive() == [(WINDOW, 0, 1, number(500))]
    client.streams[1].takes = False
    client.send(frame(DATA, 0, 1, bytes(1000)))
    assert client.receive() == []
    client.send(frame(DATA, 0, 1, b"x"))
    assert client.receive() == [(RESET, 0, 1, number(Code.FLOW_CONTROL_ERROR))]
    assert client.streams[1].calls[-1] == "gone"

    client = Client(window=1000).greet()
    client.send(client.head(1), frame(DATA, PADDED, 1, b"\xff" + b"a" * 300 + bytes(255)))

    assert [each for each in client.receive() if each.stream == 1] == [(WINDOW, 0, 1, number(556))]


async def test_a_connection_has_a_window_too():
    """It opens whatever becomes of the streams, as streams bound what is kept; exceeding it is an error."""
    client = Client(window=100_000, connection_window=65_535).greet()
    client.send(client.head(1))
    client.streams[1].send(b"\x88", b"", b"\x88")
    client.receive()
    client.send(frame(DATA, 0, 1, bytes(40_000)))
    assert client.receive() == [(WINDOW, 0, 0, number(40_000))]
    # The largest allowed amount, then a byte more.
    client = Client(window=1 << 20, connection_window=100_000, frame=1 << 20).greet()
    client.send(client.head(1))
    client.send(frame(DATA, 0, 1, bytes(100_001)))
    assert client.ending() == Code.FLOW_CONTROL_ERROR


async def test_early_answer_ends_the_request_of_which_little_is_remembered(client):
    client.send(client.head(1), frame(DATA, 0, 1, b"a"))
    client.streams[1].send(b"\x88", b"", b"\x88")
    assert [each.kind for each in client.receive()] == [HEADERS, HEADERS, RESET]

    client.send(frame(DATA, END, 1, b"a"), frame(WINDOW, 0, 1, number(1)), frame(RESET, 0, 1, number(0)))
    client.send(frame(PING, 0, 0, b"12345678"))
    assert client.receive() == [(PING, 1, 0, b"12345678")]

    client = Client(streams=3).greet()
    for each in range(1, 11, 2):
        client.send(client.head(each))
        client.streams[each].send(b"\x88", b"", b"\x88")
    client.send(frame(DATA, 0, 5, b"a"))
    assert not client.transport.closed
    client.send(frame(DATA, 0, 3, b"a"))
    assert client.ending() == Code.STREAM_CLOSED


def cut_off(client, stream):
    """A request that is refused, but not whole."""
    return client.head(stream, WHOLE, [("x", "no request")])


ATTACKS = {
    "pings": lambda *_: frame(PING, 0, 0, bytes(8)),
    "settings": lambda *_: frame(SETTINGS, 0, 0),
    "settings that change all streams": lambda _, each: frame(SETTINGS, 0, 0, setting(4, 10 + each % 2)),
    "acknowledged settings": lambda *_: frame(SETTINGS, 1, 0),
    "answers to pings": lambda *_: frame(PING, 1, 0, bytes(8)),
    "farewells": lambda *_: frame(GOAWAY, 0, 0, bytes(8)),
    "empty data": lambda *_: frame(DATA, 0, 1),
    "empty data of closed streams": lambda client, each: (
        (b"" if each else cut_off(client, 3)) + frame(DATA, 0, 3)
    ),
    "padding of closed streams": lambda client, each: (
        (b"" if each else cut_off(client, 3)) + frame(DATA, PADDED, 3, b"\xff" + bytes(255))
    ),
    "resets of closed streams": lambda client, each: (
        (b"" if each else cut_off(client, 3)) + frame(RESET, 0, 3, number(8))
    ),
    "malformed requests": lambda client, each: cut_off(client, 3 + 2 * each),
    "tiny windows": lambda *_: frame(WINDOW, 0, 1, number(1)),
    "resets": lambda client, each: client.head(3 + 2 * each) + frame(RESET, 0, 3 + 2 * each, number(8)),
    "priorities": lambda *_: frame(PRIORITY, 0, 1, bytes(5)),
    "unknown frames": lambda *_: frame(0x99, 0, 1, b"x"),
}


@pytest.mark.parametrize("kind", ATTACKS)
async def test_flood_ends_the_connection(client, kind):
    """One of frames that only make work, or of cancelled calls (CVE-2023-44487, CVE-2019-9512 to 9518)."""
    client.send(client.head(1))
    for each in range(MOST_WASTE + 1):
        if client.transport.closed:
            break
        client.send(ATTACKS[kind](client, each))

    assert client.ending() == Code.ENHANCE_YOUR_CALM
    assert client.connection.streams == {1: client.streams[1]}


async def test_busy_clients_are_no_attack(client):
    for each in range(1, MOST_WASTE, 2):
        client.send(client.head(each, WHOLE | END), frame(PING, 0, 0, bytes(8)))
        client.streams.pop(each).send(b"\x88", b"abc", b"\x88")
        client.send(frame(WINDOW, 0, 0, number(3)), frame(WINDOW, 0, each, number(3)))
        client.receive()

    assert not client.transport.closed


async def test_late_uploads_are_no_attack(client):
    for each in range(1, 400, 2):
        client.send(client.head(each))
        client.streams[each].send(b"\x88", b"", b"\x88")
        client.send(*[frame(DATA, 0, each, bytes(2000))] * 60, frame(DATA, END, each, b"a"))
        client.receive()

    assert not client.transport.closed
    assert client.connection._closed == {}


async def test_clients_of_large_answers_are_no_attack(client):
    size, count = 16 << 10, MOST_WASTE // 2 + 10
    client.send(client.head(1, WHOLE | END))
    client.streams[1].send(b"\x88", bytes(size * count), b"\x88")
    for _ in range(count):
        client.send(frame(WINDOW, 0, 0, number(size)), frame(WINDOW, 0, 1, number(size)))
        client.connection._flush()
        client.transport.written = b""

    assert not client.transport.closed


async def test_rare_frames_are_no_attack(client):
    for _ in range(3):
        client.send(frame(PING, 0, 0, bytes(8)) * (MOST_WASTE - 100))
        client.listener.check()

    assert not client.transport.closed


async def test_head_that_is_too_long_is_not_decoded():
    client = Client(fields=1000).greet()
    # A value of Huffman's code, in which each byte of the letter a takes five bits.
    coded = b"\x18\xc6\x31\x8c\x63" * 300
    block = b"\0\1x\xff" + bytes((len(coded) - 127 & 127 | 128, len(coded) - 127 >> 7)) + coded
    client.connection._decoder.decode = None
    client.send(frame(HEADERS, WHOLE, 1, block))

    assert client.ending() == Code.ENHANCE_YOUR_CALM


async def test_many_frames_in_one_piece_are_read_in_turns(client, monkeypatch):
    count = 60
    client.send(client.head(1))
    monkeypatch.setattr(connection, "_TURN", 0.0)
    client.send(frame(DATA, 0, 1, b"a") * count)
    assert len(client.streams[1].body) < count
    assert not client.transport.reading
    client.send(frame(DATA, END, 1, b"b"))
    turns = 0
    while not client.streams[1].body.endswith(b"b"):
        turns += 1
        await asyncio.sleep(0)

    assert turns > 3
    assert client.streams[1].body == b"a" * count + b"b"
    assert client.transport.reading


async def test_what_waits_for_its_turn_may_break_the_rules(client, monkeypatch):
    client.send(client.head(1))
    monkeypatch.setattr(connection, "_TURN", 0.0)
    client.send(frame(DATA, 0, 1, b"a") * 3 + frame(DATA, 0, 0, b"x") + frame(DATA, 0, 1, b"a") * 3)
    for _ in range(20):
        await asyncio.sleep(0)

    assert client.ending() == Code.PROTOCOL_ERROR
    assert client.streams[1].body == b"aaa"
    assert not client.transport.reading


async def test_many_new_streams_wait_for_a_turn(client):
    client.send(b"".join(client.head(number) for number in range(1, 401, 2)))
    started = len(client.streams)
    for _ in range(10):
        await asyncio.sleep(0)

    assert started < 100
    assert client.transport.reading
    assert len(client.streams) == 200


async def test_frames_wait_while_nothing_is_taken(client, monkeypatch):
    client.send(client.head(1))
    monkeypatch.setattr(connection, "_TURN", 0.0)
    client.send(frame(DATA, 0, 1, b"a") * 60)
    client.connection.pause_writing()
    seen = client.streams[1].body
    for _ in range(5):
        await asyncio.sleep(0)
    assert client.streams[1].body == seen
    client.connection.resume_writing()
    assert not client.transport.reading
    for _ in range(200):
        await asyncio.sleep(0)

    assert len(client.streams[1].body) == 60
    assert client.transport.reading


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", b"POST /predictions/m HTTP/1.1\r\nHost: x\r\n\r\n"],
)
async def test_http_1_gets_400(data):
    client = Client()
    client.send(data)

    _, _, body = client.transport.written.partition(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"This port is for gRPC" in body
    assert client.transport.closed


def at(client, seconds):
    """Looks at the connections as if it were so much later."""
    loop = asyncio.get_running_loop()
    for each in list(client.listener.connections):
        each.check(loop.time() + seconds)


@pytest.mark.parametrize("data", [b"", PREFACE[:10], PREFACE + b"\0\0"])
async def test_silent_client_is_cut_off(data):
    client = Client(receive_timeout=10)
    if data:
        client.send(data)
    at(client, 9)
    assert not client.transport.closed
    at(client, 11)
    assert client.transport.aborted


async def test_answer_that_is_not_taken_ends_but_silence_between_frames_does_not():
    """An answer of which a client takes nothing for the time to send ends, whatever its other streams do."""
    client = Client(send_timeout=10).greet(s4=5)
    client.send(client.head(1, WHOLE | END), client.head(3, WHOLE | END))
    client.streams[1].send(b"", bytes(100))
    client.streams[3].send(b"", bytes(5))
    at(client, 9)
    client.receive()
    assert client.streams[1].calls[-1] != "gone"
    at(client, 11)

    assert client.receive() == [(RESET, 0, 1, number(Code.ENHANCE_YOUR_CALM))]
    assert client.streams[1].calls[-2:] == ["stalled", "gone"]
    assert not client.transport.closed
    await client.streams[1].room()  # nothing is waited for any more

    client = Client(receive_timeout=10).greet()
    at(client, 1000)
    assert not client.transport.closed


async def test_connection_that_is_not_read_ends():
    client = Client(send_timeout=10).greet()
    client.connection.pause_writing()
    at(client, 9)
    assert not client.transport.closed
    at(client, 11)
    assert client.transport.aborted

    # Nor is this one's farewell.
    client = Client().greet()
    client.send(frame(PING, 0, 1, bytes(8)))
    assert client.transport.closed
    assert not client.transport.aborted
    at(client, 61)
    assert client.transport.aborted


async def test_what_a_connection_holds():
    held = {}
    client = Client(send_timeout=10)
    connection = client.greet().connection
    connection.count = held.__setitem__
    client.transport.unsent = 70_000
    assert connection.waited() == 0
    connection.pause_writing()
    assert held == {connection: 70_000}
    assert connection.waited() >= 0
    connection.resume_writing()
    assert held == {connection: 0}
    connection.cut()
    assert client.transport.aborted


@pytest.fixture
def at_once(monkeypatch):
    """Clients know of the end in the next turn of the loop."""
    monkeypatch.setattr(connection, "_NOTICE", 0.0)


async def turns():
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("at_once")
async def test_draining_connection_ends_with_its_last_stream(client):
    client.send(client.head(1, WHOLE | END))
    client.listener.refuse()
    assert client.streams[1].calls[-1] == "closing"
    assert client.receive() == [(GOAWAY, 0, 0, number((1 << 31) - 1) + number(0))]
    client.send(client.head(3, WHOLE | END))
    assert 3 in client.streams
    await turns()
    assert client.receive() == [(GOAWAY, 0, 0, number(3) + number(0))]
    client.send(client.head(5, WHOLE | END))
    assert client.receive() == [(RESET, 0, 5, number(Code.REFUSED_STREAM))]
    for each in (1, 3):
        client.streams[each].send(b"\x88", b"x", b"\x88")
    await turns()

    assert client.transport.closed
    last = list(frames_of(client.transport.written))[-1]
    assert (last.kind, last.stream) == (HEADERS, 3)


@pytest.mark.usefixtures("at_once")
async def test_new_connection_to_a_stopping_server_ends():
    client = Client()
    client.listener.refuse()
    late = Client()
    late.listener.closing = True
    late.connection.connection_made(late.transport)
    await turns()

    assert late.transport.closed


@pytest.mark.usefixtures("at_once")
async def test_connection_ends_after_the_clients_farewell(client):
    client.send(client.head(1, WHOLE | END), frame(GOAWAY, 0, 0, number(0) + number(0)))
    await turns()
    assert not client.transport.closed
    client.streams[1].send(b"\x88", b"", b"\x88")
    await turns()
    assert client.transport.closed


async def test_old_connection_drains_and_ends_after_grace(monkeypatch):
    """From a certain age on a connection drains, and after the time of grace it ends, whatever it does."""
    later = {}
    protocol = connection.Http2Connection
    monkeypatch.setattr(protocol, "_later", lambda _, seconds, act: later.update({seconds: act}))
    client = Client(age=60, age_grace=10).greet()
    client.send(client.head(1, WHOLE | END))
    later[60]()
    assert [each.kind for each in client.receive()] == [GOAWAY]
    assert not client.transport.closed
    later[70]()

    assert client.transport.aborted
