"""What RFC 9113 and RFC 7541 ask of a server, section by section, as h2spec does.

``steps`` are the frames of a client, and None where the server responds on stream 1.
"""

import pytest
from tests.ext.grpc.http2.talking import (
    CONTINUATION,
    DATA,
    END,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    POST,
    PRIORITY,
    PUSH,
    RESET,
    SETTINGS,
    WHOLE,
    WINDOW,
    WITH_PRIORITY,
    Client,
    frame,
    number,
    setting,
)

from modelserver.ext.grpc.http2.frames import Code, field

PING_ME, PONG = frame(PING, 0, 0, b"12345678"), (PING, 1, 0, b"12345678")
LARGEST = 1 << 18  # bytes of a frame that the server takes
REPLY = b"12345"


def block(fields):
    """A header block that needs no table."""
    return b"".join(field(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields)


USUAL = block(POST)


def head(flags=WHOLE, *more, stream=1):
    """The head of a request, with these fields besides the usual ones."""
    return frame(HEADERS, flags, stream, USUAL + block(more))


def request(fields):
    return frame(HEADERS, WHOLE | END, 1, block(fields))


def without(name):
    return [each for each in POST if each[0] != name]


def with_field(representation):
    return frame(HEADERS, WHOLE | END, 1, USUAL + representation)


def settings(name, *values):
    return frame(SETTINGS, 0, 0, b"".join(setting(name, value) for value in values))


FULL = head(WHOLE | END)
RESET_ONE = frame(RESET, 0, 1, number(Code.CANCEL))
LATE = frame(DATA, END, 1, b"test")
PRIORITIZED = WHOLE | END | WITH_PRIORITY

ENDS_CONNECTION = {
    Code.FRAME_SIZE_ERROR: {
        "4.2 a frame over the limit": [frame(DATA, 0, 1, length=LARGEST + 1)],
        "4.2 a head over the limit": [frame(HEADERS, WHOLE, 1, length=LARGEST + 1)],
        "6.2 no room for a priority": [frame(HEADERS, WHOLE | WITH_PRIORITY, 1, b"abc")],
        "6.3 a short priority": [FULL, frame(PRIORITY, 0, 1, b"\x80\0\0\1")],
        "6.4 a short reset": [FULL, frame(RESET, 0, 1, bytes(3))],
        "6.5 an acknowledgement with content": [frame(SETTINGS, 1, 0, b"\0")],
        "6.5 an acknowledgement with values": [frame(SETTINGS, 1, 0, setting(1, 1))],
        "6.5 settings of an odd size": [frame(SETTINGS, 0, 0, bytes(8))],
        "6.7 a short ping": [frame(PING, 0, 0, bytes(6))],
        "6.8 a short farewell": [frame(GOAWAY, 0, 0, bytes(7))],
        "6.9 a short window": [frame(WINDOW, 0, 0, bytes(3))],
    },
    Code.COMPRESSION_ERROR: {
        "4.3 a block that ends within a field": [frame(HEADERS, WHOLE, 1, b"\x40")],
        "HPACK 2.3.3 no such entry": [with_field(b"\xfe")],
        "HPACK 2.3.3 no such entry for a name": [with_field(b"\x7e\x01x")],
        "HPACK 4.2 a size behind fields": [with_field(b"\x21")],
        "HPACK 5.2 padding of a byte": [with_field(b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff")],
        "HPACK 5.2 padding of zeros": [with_field(b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90")],
        "HPACK 5.2 the end of strings": [with_field(b"\x00\x85\xf2\xb2\x4a\x87\xff\xff\xff\xfd\x25\x42\x7f")],
        "HPACK 6.1 entry 0": [with_field(b"\x80")],
        "HPACK 6.3 a table over the limit": [frame(HEADERS, WHOLE | END, 1, b"\x3f\xe2\x1f" + USUAL)],
    },
    Code.PROTOCOL_ERROR: {
        "4.3 a priority within a block": [
            head(0),
            frame(PRIORITY, 0, 1, bytes(5)),
            frame(CONTINUATION, WHOLE, 1),
        ],
        "4.3 another stream's head within a block": [head(0), head(stream=3)],
        "5.1 data of an idle stream": [LATE],
        "5.1 a reset of an idle stream": [RESET_ONE],
        "5.1 a window of an idle stream": [frame(WINDOW, 0, 1, number(100))],
        "5.1 a continuation of an idle stream": [frame(CONTINUATION, WHOLE, 1, USUAL)],
        "5.1 a continuation after the end": [FULL, frame(CONTINUATION, WHOLE, 1)],
        "5.1 a continuation after the client's reset": [head(), RESET_ONE, frame(CONTINUATION, WHOLE, 1)],
        "5.1 a continuation of a closed stream": [FULL, None, frame(CONTINUATION, WHOLE, 1)],
        "5.1.1 an even stream": [head(stream=2)],
        "5.1.1 a stream in the past": [head(WHOLE | END, stream=5), head(WHOLE | END, stream=3)],
        "5.3.1 a head that depends on itself": [frame(HEADERS, PRIORITIZED, 1, number(1) + b"\xff" + USUAL)],
        "5.3.1 a priority that depends on itself": [frame(PRIORITY, 0, 1, number(1) + b"\xff")],
        "5.4.1 a ping of a stream": [frame(PING, 0, 3, bytes(8))],
        "5.5 an unknown frame within a block": [head(0), frame(22, 0, 0, bytes(8))],
        "6.1 data of no stream": [frame(DATA, END, 0, b"test")],
        "6.1 padding over the end": [
            head(WHOLE, ("content-length", "4")),
            frame(DATA, PADDED | END, 1, b"\x06Test"),
        ],
        "6.2 a head of no stream": [head(stream=0)],
        "6.2 padding over the end": [
            frame(HEADERS, WHOLE | END | PADDED, 1, bytes([len(USUAL) + 1]) + USUAL)
        ],
        "6.2 padding without room": [frame(HEADERS, WHOLE | PADDED, 1)],
        "6.3 a priority of no stream": [frame(PRIORITY, 0, 0, bytes(5))],
        "6.4 a reset of no stream": [frame(RESET, 0, 0, number(Code.CANCEL))],
        "6.5 settings of a stream": [frame(SETTINGS, 0, 1, setting(3, 100))],
        "6.5.2 push 2": [settings(2, 2)],
        "6.5.2 frames too small": [settings(5, 16_383)],
        "6.5.2 frames too large": [settings(5, 1 << 24)],
        "6.6 a promise": [frame(PUSH, WHOLE, 1, number(3) + USUAL)],
        "6.8 a farewell of a stream": [frame(GOAWAY, 0, 1, bytes(8))],
        "6.9 a window larger by nothing": [frame(WINDOW, 0, 0, number(0))],
        "6.10 data within a block": [head(0), frame(CONTINUATION, 0, 1, block([("x", "1")])), LATE],
        "6.10 a continuation of no stream": [head(0), frame(CONTINUATION, WHOLE, 0)],
        "6.10 a continuation of another stream": [head(0), frame(CONTINUATION, WHOLE, 3)],
        "6.10 a continuation too many": [
            head(END),
            frame(CONTINUATION, WHOLE, 1),
            frame(CONTINUATION, WHOLE, 1),
        ],
        "6.10 a continuation of data": [head(), LATE, frame(CONTINUATION, 0, 1)],
    },
    Code.ENHANCE_YOUR_CALM: {
        "4.3 a head without end": [head(0), *[frame(CONTINUATION, 0, 1)] * 100],
        "4.3 a head of megabytes": [head(0), *[frame(CONTINUATION, 0, 1, bytes(60_000))] * 3],
    },
    Code.STREAM_CLOSED: {
        "5.1 data after the client's reset": [head(), RESET_ONE, LATE],
        "5.1 a head after the client's reset": [head(), RESET_ONE, FULL],
        "5.1 data of a closed stream": [FULL, None, LATE],
        "5.1 a head of a closed stream": [FULL, None, FULL],
    },
    Code.FLOW_CONTROL_ERROR: {
        "6.5.2 a window out of range": [settings(4, 1 << 31)],
        "6.9.1 a window too large": [frame(WINDOW, 0, 0, number((1 << 31) - 1))] * 2,
    },
}

ENDS_STREAM = {
    Code.STREAM_CLOSED: {"5.1 data after the end": [FULL, LATE], "5.1 a head after the end": [FULL, FULL]},
    Code.PROTOCOL_ERROR: {
        "6.9 a window larger by nothing": [head(), frame(WINDOW, 0, 1, number(0))],
        "8.1 a second head": [
            head(),
            frame(DATA, 0, 1, b"test"),
            frame(HEADERS, WHOLE, 1, block([("x", "1")])),
        ],
        "8.1 pseudo-fields in trailers": [
            head(),
            frame(DATA, 0, 1, b"test"),
            frame(HEADERS, WHOLE | END, 1, block([(":method", "POST")])),
        ],
        "8.1.1 one DATA frame over the content-length": [head(WHOLE, ("content-length", "1")), LATE],
        "8.1.1 DATA frames over the content-length": [
            head(WHOLE, ("content-length", "5")),
            frame(DATA, 0, 1, b"test"),
            LATE,
        ],
        "8.1.1 less than the content-length": [head(WHOLE, ("content-length", "5")), LATE],
        "8.1.1 less than the content-length, then trailers": [
            head(WHOLE, ("content-length", "5")),
            frame(HEADERS, WHOLE | END, 1),
        ],
    },
    Code.FLOW_CONTROL_ERROR: {
        "6.9.1 a window too large": [head(), *[frame(WINDOW, 0, 1, number((1 << 31) - 1))] * 2]
    },
}

MALFORMED = {
    "8.1.1 no body in spite of its length": head(WHOLE | END, ("content-length", "5")),
    "8.1.1 a length that is none": head(WHOLE, ("content-length", "-1")),
    "8.1.1 two lengths": head(WHOLE, ("content-length", "4"), ("content-length", "4")),
    "8.2 a name in capitals": head(WHOLE | END, ("X-TEST", "ok")),
    "8.2.1 a name of two lines": head(WHOLE | END, ("x\r\ny", "ok")),
    "8.2.1 an empty name": head(WHOLE | END, ("", "ok")),
    "8.2.1 a value of two lines": head(WHOLE | END, ("x", "a\r\nb: c")),
    "8.2.1 a NUL in a value": head(WHOLE | END, ("x", "a\0")),
    "8.2.1 a NUL in a path": request([*without(":path"), (":path", "/\0")]),
    "8.2.2 connection": head(WHOLE | END, ("connection", "keep-alive")),
    "8.2.2 keep-alive": head(WHOLE | END, ("keep-alive", "5")),
    "8.2.2 proxy-connection": head(WHOLE | END, ("proxy-connection", "close")),
    "8.2.2 transfer-encoding": head(WHOLE | END, ("transfer-encoding", "chunked")),
    "8.2.2 upgrade": head(WHOLE | END, ("upgrade", "websocket")),
    "8.2.2 te": head(WHOLE | END, ("trailers", "test"), ("te", "trailers, deflate")),
    "8.3 an unknown pseudo-field": head(WHOLE | END, (":test", "ok")),
    "8.3 a pseudo-field of responses": head(WHOLE | END, (":status", "200")),
    "8.3 a pseudo-field behind others": request([("x-test", "ok"), *POST]),
    "8.3 nothing but fields": request([("x-test", "ok")]),
    "8.3.1 an empty path": request([*without(":path"), (":path", "")]),
    "8.3.1 a path without a root": request([*without(":path"), (":path", "a")]),
    "8.3.1 no method": request(without(":method")),
    "8.3.1 no scheme": request(without(":scheme")),
    "8.3.1 no path": request(without(":path")),
    "8.3.1 two methods": request([*POST, (":method", "POST")]),
    "8.3.1 two schemes": request([*POST, (":scheme", "http")]),
    "8.3.1 two paths": request([*POST, (":path", "/a")]),
    "8.3.1 two authorities": request([*POST, (":authority", "x")]),
}

REQUESTS = {
    "4.2 a frame as large as may be": [
        head(),
        *[frame(DATA, 0, 1, bytes(1 << 14))] * 2,
        frame(DATA, END, 1, bytes(LARGEST)),
    ],
    "6.1 data": [head(), LATE],
    "6.1 data in parts": [head(), frame(DATA, 0, 1, b"te"), frame(DATA, END, 1, b"st")],
    "6.1 padded data": [head(), frame(DATA, END | PADDED, 1, b"\x04test\0\0\0\0")],
    "6.2 a head": [FULL],
    "6.2 a padded head": [frame(HEADERS, WHOLE | END | PADDED, 1, b"\x08" + USUAL + bytes(8))],
    "6.2 a head with a priority": [frame(HEADERS, PRIORITIZED, 1, number(0) + b"\xff" + USUAL)],
    "6.3 a low priority first": [frame(PRIORITY, 0, 1, bytes(5)), FULL],
    "6.3 a high priority first": [frame(PRIORITY, 0, 1, number(0) + b"\xff"), FULL],
    "6.3 a priority that depends on it first": [frame(PRIORITY, 0, 3, number(1) + b"\0"), FULL],
    "6.3 an exclusive priority first": [frame(PRIORITY, 0, 1, number(1 << 31) + b"\0"), FULL],
    "6.3 a priority of a later stream first": [frame(PRIORITY, 0, 3, number(0) + b"\xff"), FULL],
    "6.10 a head in two parts": [frame(HEADERS, END, 1, USUAL[:9]), frame(CONTINUATION, WHOLE, 1, USUAL[9:])],
    "6.10 a head in three parts": [
        head(END),
        frame(CONTINUATION, 0, 1, block([("x", "1")])),
        frame(CONTINUATION, WHOLE, 1, block([("y", "1")])),
    ],
    "8.1 trailers": [
        head(WHOLE, ("trailer", "x-test")),
        frame(DATA, 0, 1, b"test"),
        frame(HEADERS, WHOLE | END, 1, block([("x-test", "ok")])),
    ],
    "8.1.1 its content-length": [head(WHOLE, ("content-length", "8")), frame(DATA, 0, 1, b"test"), LATE],
    "8.1.1 its content-length, padded, then trailers": [
        head(WHOLE, ("content-length", "4")),
        frame(DATA, PADDED, 1, b"\x02test\0\0"),
        frame(HEADERS, WHOLE | END, 1),
    ],
    "8.2.2 te": [head(WHOLE | END, ("te", "trailers"))],
    "8.3.1 no authority": [request(without(":authority"))],
    "8.3.1 HEAD": [request([*without(":method"), (":method", "HEAD")])],
    "HPACK 4.2 two sizes": [frame(HEADERS, WHOLE | END, 1, b"\x20\x3f\xe1\x1f" + USUAL)],
    "HPACK 6.1 an entry": [with_field(b"\xba")],
    "HPACK 6.2.1 indexed with its name in Huffman's code": [
        with_field(b"\x40\x85\xf2\xb2\x4a\x84\xff\x84\x9c\x48\xac\xa4")
    ],
    "HPACK 6.2.2 not indexed": [with_field(b"\x0f\x2b\x06h2spec")],
    "HPACK 6.2.3 never indexed with its name": [with_field(b"\x10\x06x-test\x06h2spec")],
    "HPACK 6.3 a size": [frame(HEADERS, WHOLE | END, 1, b"\x20" + USUAL)],
}

IGNORED = {
    "4.1 an unknown frame": [frame(22, 0, 0, bytes(8))],
    "4.1 unknown flags": [frame(PING, 0x16, 0, b"12345678"), FULL],
    "4.1 the reserved bit": [frame(PING, 0, 1 << 31, b"12345678"), FULL],
    "5.1 a priority of an idle stream": [frame(PRIORITY, 0, 1, number(0) + b"\xff")],
    "5.1 a reset after the end": [FULL, RESET_ONE],
    "5.1 a priority of a closed stream": [FULL, None, frame(PRIORITY, 0, 1, number(0) + b"\xff")],
    "5.1 a window of a closed stream": [FULL, None, frame(WINDOW, 0, 1, number(5))],
    "5.1 a reset of a closed stream": [FULL, None, RESET_ONE],
    "5.1 data that was on the way when the stream ended": [head(), None, frame(DATA, 0, 1, b"te"), LATE],
    "5.1 trailers that were on the way": [head(), None, frame(HEADERS, WHOLE | END, 1, block([("x", "1")]))],
    "5.1 data of a malformed request": [head(WHOLE, ("connection", "close")), LATE],
    "6.4 a reset": [head(), RESET_ONE],
    "6.5.2 an unknown setting": [settings(0xFF, 1)],
    "6.7 an answer to no ping": [frame(PING, 1, 0, b"invalid\0")],
    "6.9 a window": [frame(WINDOW, 0, 0, number(1))],
    "6.9 a window of a stream": [head(), frame(WINDOW, 0, 1, number(1))],
    "7 a reset with an unknown code": [head(), frame(RESET, 0, 1, number(0xFF))],
}

# The sizes of the DATA frames of the answer.
ANSWERS = {
    "5.1 a window after the end": ([settings(4, 0), FULL, None, frame(WINDOW, 0, 1, number(1))], [1]),
    "5.1 a priority after the end": (
        [settings(4, 0), FULL, frame(PRIORITY, 0, 1, bytes(5)), None, frame(WINDOW, 0, 1, number(1))],
        [1],
    ),
    "6.5.3 the last of two values": ([settings(4, 100, 1), FULL, None], [1]),
    "6.9.1 a window of one byte": ([settings(4, 1), FULL, None], [1]),
    "6.9.2 a window that grows": ([settings(4, 0), FULL, None, settings(4, 1)], [1]),
    "6.9.2 a negative window": (
        [settings(4, 3), FULL, None, settings(4, 2), frame(WINDOW, 0, 1, number(2))],
        [3, 1],
    ),
}


@pytest.fixture
async def client():
    return Client(frame=LARGEST).greet()


def talk(client, steps):
    """Goes through the steps, as far as the connection lives."""
    for step in steps:
        if step is not None:
            client.send(step)
        else:
            client.streams[1].send(b"\x88", REPLY, b"\x88")


@pytest.mark.parametrize(("code", "name"), [(c, n) for c in ENDS_CONNECTION for n in ENDS_CONNECTION[c]])
async def test_connection_ends(client, code, name):
    """If a client breaks a rule of the connection, the error names the rule, and nothing more is read."""
    talk(client, ENDS_CONNECTION[code][name])

    assert client.ending() == code
    client.send(PING_ME)
    assert client.receive() == []


@pytest.mark.parametrize(("code", "name"), [(c, n) for c in ENDS_STREAM for n in ENDS_STREAM[c]])
async def test_stream_ends(client, code, name):
    talk(client, [*ENDS_STREAM[code][name], head(stream=3), PING_ME])
    received = client.receive()

    assert (RESET, 0, 1, number(code)) in received
    assert PONG in received
    assert client.streams[1].calls[-1] == "gone"
    assert list(client.connection.streams) == [3]


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_request_is_reset(client, name):
    client.send(MALFORMED[name], PING_ME, head(stream=3))
    assert client.receive() == [(RESET, 0, 1, number(Code.PROTOCOL_ERROR)), PONG]
    assert list(client.streams) == [3]


@pytest.mark.parametrize("name", REQUESTS)
async def test_request_is_served(client, name):
    talk(client, [*REQUESTS[name], PING_ME])

    calls = client.streams[1].calls
    assert calls[0][2] or calls[-1] == "whole"
    assert PONG in client.receive()


@pytest.mark.parametrize("name", IGNORED)
async def test_frame_changes_nothing(client, name):
    talk(client, [*IGNORED[name], PING_ME, head(stream=3)])
    assert PONG in client.receive()
    assert 3 in client.streams


@pytest.mark.parametrize("name", ANSWERS)
async def test_answer_fits_windows(client, name):
    """No more is sent than the client takes, now and after its changes."""
    steps, sizes = ANSWERS[name]
    talk(client, steps)
    assert [len(each.payload) for each in client.receive() if each.kind == DATA] == sizes


async def test_wrong_preface_ends_connection():
    """3.4: what is no client of HTTP/2 is cut off."""
    client = Client()
    client.send(b"INVALID CONNECTION PREFACE\r\n\r\n")
    assert client.ending() == Code.PROTOCOL_ERROR


async def test_too_many_streams_are_refused():
    """5.1.2: a stream above the limit is refused, and its data are skipped."""
    client = Client(streams=2).greet(s4=0)
    client.send(*(head(WHOLE | END, stream=each) for each in (1, 3)), head(stream=5))
    client.send(frame(DATA, END, 5, b"test"), PING_ME)

    assert client.receive() == [(RESET, 0, 5, number(Code.REFUSED_STREAM)), PONG]
