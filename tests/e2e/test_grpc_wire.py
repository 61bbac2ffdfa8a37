"""What clients may send to gRPC's port, byte by byte, while others are served."""

from __future__ import annotations

import gzip
import socket
from collections import Counter

import psutil
import pytest
from hpack import Decoder, Encoder
from tests.e2e.grpc_client import INFERENCE, channel, grpc_server, predict, stub
from tests.e2e.raw import converse
from tests.e2e.serving import serving, wait_until
from tests.ext.grpc.http2.talking import (
    DATA,
    END,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    WHOLE,
    WINDOW,
    Frame,
    frame,
    number,
    setting,
)

from modelserver.ext.grpc.framing import framed
from modelserver.ext.grpc.http2.frames import Code

METHOD = f"/{INFERENCE}InferenceAPIsService/Predictions"
LIMIT = 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """``echo``; messages of at most 100 000 bytes."""
    settings = {"max_request_size": LIMIT, "job_queue_size": 20_000}
    with serving(grpc_server(tmp_path_factory.mktemp("wire"), model_store, **settings)) as server:
        yield server.registered("echo.mar", batch_size=32)


class Wire:
    """A connection to the inference port whose frames are written by hand."""

    def __init__(self, server):
        self.socket = socket.create_connection(("127.0.0.1", server.settings["grpc_inference_port"]), 20)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, setting(4, 1 << 20)))
        self.socket.sendall(frame(WINDOW, 0, 0, number(1 << 28)))
        self._decoder, self._encoder = Decoder(), Encoder()

    def head(self, stream, *fields, flags=WHOLE):
        """The head of a prediction."""
        usual = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", METHOD),
            ("content-type", "application/grpc"),
        ]
        return frame(HEADERS, flags, stream, self._encoder.encode([*usual, *fields]))

    def hear(self):
        """The next frame; None at the end."""
        start = self._exactly(9)
        if start is None:
            return None
        payload = self._exactly(int.from_bytes(start[:3], "big"))
        return Frame(start[3], start[4], int.from_bytes(start[5:9], "big"), payload)

    def _exactly(self, size):
        found = b""
        while len(found) < size:
            try:
                piece = self.socket.recv(size - len(found))
            except ConnectionError:
                return None
            if not piece:
                return None
            found += piece
        return found

    def endings(self, count):
        """How so many streams end, by number: gRPC's code, or minus HTTP/2's."""
        found = {}
        while len(found) < count:
            heard = self.hear()
            assert heard is not None, found
            assert heard.kind != GOAWAY, heard
            if heard.kind == HEADERS:
                fields = dict(self._decoder.decode(heard.payload))
                if "grpc-status" in fields:
                    found[heard.stream] = int(fields["grpc-status"])
            elif heard.kind == RESET and heard.stream not in found:
                found[heard.stream] = -int.from_bytes(heard.payload, "big")
        return found

    def last_word(self):
        """The code with which the server ends the connection."""
        code = None
        while (heard := self.hear()) is not None:
            if heard.kind == GOAWAY:
                code = Code(int.from_bytes(heard.payload[4:8], "big"))
        return code


@pytest.fixture
def wire(server):
    wire = Wire(server)
    with wire.socket:
        yield wire


def message(data=b"hello", model="echo"):
    """A prediction's message."""
    return predict(model, data=data).SerializeToString()


def is_served(server):
    """Another client is."""
    with channel(server, "inference") as to:
        answer = stub(to, f"{INFERENCE}InferenceAPIsService").Predictions(
            predict("echo", data=b"x"), timeout=20
        )
    return answer.prediction == b"x"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (framed(message()), 0),
        (framed(message() + b"\xf2\x3f\x03abc"), 0),  # field 1022, which nobody knows
        (framed(message())[:-1], 13),
        (framed(message()) + b"\0", 13),
        (b"", 13),
        (b"\0\xff\xff\xff\xff" + message(), 8),
        (b"\0\0\0\0\0", 13),
        (b"\1" + framed(message())[1:], 13),
        (b"\2" + framed(message())[1:], 13),
        (framed(b"\xff" * 20), 3),
    ],
    ids=[
        "as it should be", "an unknown field", "too short", "too long", "nothing", "4 GiB",
        "an empty message", "compressed, it says", "unknown flags", "no message",
    ],
)  # fmt: skip
def test_bodies(server, wire, body, code):
    """Wrong lengths, flags and messages end their call with a code, and the connection goes on."""
    wire.socket.sendall(wire.head(1) + frame(DATA, END, 1, body) + wire.head(3))
    wire.socket.sendall(frame(DATA, END, 3, framed(message())))

    assert wire.endings(2) == {1: code, 3: 0}


@pytest.mark.parametrize(("encoding", "code"), [("gzip", 0), ("snappy", 12), ("identity", 13)])
def test_compression(wire, encoding, code):
    """Messages may be compressed with gzip; a bomb ends at the limit of messages."""
    for stream, (said, ending) in {
        1: (message(), code),
        3: (bytes(1 << 24), 8 if code == 0 else code),
    }.items():
        packed = gzip.compress(said)
        body = b"\1" + len(packed).to_bytes(4, "big") + packed
        if len(body) < LIMIT:
            wire.socket.sendall(wire.head(stream, ("grpc-encoding", encoding)))
            wire.socket.sendall(frame(DATA, END, stream, body))
            assert wire.endings(1) == {stream: ending}


def test_ten_thousand_streams(server, wire):
    """On one connection: as many as it may have are served, the others refused, other clients served."""
    before = psutil.Process(server.pid).memory_info().rss
    streams, body = range(1, 20_001, 2), framed(message())
    wire.socket.sendall(b"".join(wire.head(stream) for stream in streams))
    refused = wire.endings(10_000 - 4096)
    assert is_served(server)
    taken = [stream for stream in streams if stream not in refused]
    wire.socket.sendall(b"".join(frame(DATA, END, stream, body) for stream in taken))
    served = wire.endings(4096)

    assert Counter((refused | served).values()) == {0: 4096, -Code.REFUSED_STREAM: 10_000 - 4096}
    assert psutil.Process(server.pid).memory_info().rss - before < 64 << 20


def is_cut_off(wire, pieces):
    """Whether the server ends the connection to which these pieces are sent."""
    try:
        for piece in pieces:
            wire.socket.sendall(piece)
        return wire.last_word() is Code.ENHANCE_YOUR_CALM
    except ConnectionError:
        return True


def test_rapid_resets(server, wire):
    """Who gives up all calls that it opens is cut off, and what it opened is forgotten (CVE-2023-44487)."""
    body = framed(message())
    calls = (
        wire.head(stream) + frame(DATA, END, stream, body) + frame(RESET, 0, stream, number(8))
        for stream in range(1, 100_000, 2)
    )
    assert is_cut_off(wire, calls)

    assert is_served(server)
    wait_until(
        lambda: server.metric("modelserver_queue_requests", model_name="echo") == 0, "all are forgotten"
    )


def test_pings_without_end(server, wire):
    """They end the connection, after some thousands."""
    wire.socket.sendall(frame(PING, 0, 0, bytes(8)) * 5000)
    heard = 0
    while heard < 5000:
        heard += wire.hear().kind == PING
    assert is_cut_off(wire, [frame(PING, 0, 0, bytes(8)) * 100] * 100)

    assert is_served(server)


def test_http_at_this_port(server):
    """Who takes it for a port of HTTP/1.1 is told."""
    said = converse(server.settings["grpc_inference_port"], b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")

    assert b"HTTP/1.1 400 Bad Request\r\n" in said
    assert b"gRPC" in said
