"""What clients may send to gRPC's port, byte by byte, while others are served."""

import socket
from collections import Counter

import psutil
import pytest
from hpack import Decoder, Encoder
from tests.e2e.grpc_client import INFERENCE, channel, grpc_server, predict, stub
from tests.e2e.serving import serving, wait_until
from tests.ext.grpc.http2 import talking

from modelserver.ext.grpc.framing import message_framed
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
        self.socket.sendall(
            talking.PREFACE + talking.frame(talking.SETTINGS, 0, 0, talking.setting(4, 1 << 20))
        )
        self.socket.sendall(talking.frame(talking.WINDOW, 0, 0, talking.number(1 << 28)))
        self._decoder, self._encoder = Decoder(), Encoder()

    def head(self, stream, *fields, flags=talking.WHOLE):
        usual = {":method": "POST", ":scheme": "http", ":path": METHOD, "content-type": "application/grpc"}
        block = self._encoder.encode([*usual.items(), *fields])
        return talking.frame(talking.HEADERS, flags, stream, block)

    def hear(self):
        """The next frame; None at the end."""
        start = self._exactly(9)
        if start is None:
            return None
        payload = self._exactly(int.from_bytes(start[:3], "big"))
        return talking.Frame(start[3], start[4], int.from_bytes(start[5:9], "big"), payload)

    def _exactly(self, size):
        result = b""
        while len(result) < size:
            try:
                piece = self.socket.recv(size - len(result))
            except ConnectionError:
                return None
            if not piece:
                return None
            result += piece
        return result

    def endings(self, count):
        """How so many streams end, by number: gRPC's code, or minus HTTP/2's."""
        result = {}
        while len(result) < count:
            heard = self.hear()
            assert heard is not None, result
            assert heard.kind != talking.GOAWAY, heard
            if heard.kind == talking.HEADERS:
                fields = dict(self._decoder.decode(heard.payload))
                if "grpc-status" in fields:
                    result[heard.stream] = int(fields["grpc-status"])
            elif heard.kind == talking.RESET and heard.stream not in result:
                result[heard.stream] = -int.from_bytes(heard.payload, "big")
        return result

    def last_word(self):
        """The code with which the server ends the connection."""
        code = None
        while (heard := self.hear()) is not None:
            if heard.kind == talking.GOAWAY:
                code = Code(int.from_bytes(heard.payload[4:8], "big"))
        return code


@pytest.fixture
def wire(server):
    wire = Wire(server)
    with wire.socket:
        yield wire


def message(data=b"hello", model="echo"):
    return predict(model, data=data).SerializeToString()


def is_served(server):
    with channel(server, "inference") as to:
        answer = stub(to, f"{INFERENCE}InferenceAPIsService").Predictions(
            predict("echo", data=b"x"), timeout=20
        )
    return answer.prediction == b"x"


def test_ten_thousand_streams_are_served_or_refused(server, wire):
    """On one connection: as many as it may have are served, the others refused, other clients served."""
    before = psutil.Process(server.pid).memory_info().rss
    streams, body = range(1, 20_001, 2), message_framed(message())
    wire.socket.sendall(b"".join(wire.head(stream) for stream in streams))
    refused = wire.endings(10_000 - 4096)
    assert is_served(server)
    taken = [stream for stream in streams if stream not in refused]
    wire.socket.sendall(b"".join(talking.frame(talking.DATA, talking.END, stream, body) for stream in taken))
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


def test_rapid_resets_are_cut_off(server, wire):
    """Who gives up all calls that it opens is cut off, and what it opened is forgotten (CVE-2023-44487)."""
    body = message_framed(message())
    calls = (
        wire.head(stream)
        + talking.frame(talking.DATA, talking.END, stream, body)
        + talking.frame(talking.RESET, 0, stream, talking.number(8))
        for stream in range(1, 100_000, 2)
    )
    assert is_cut_off(wire, calls)

    assert is_served(server)
    wait_until(lambda: server.metric("modelserver_queue_requests", model_name="echo") == 0, "all are gone")
