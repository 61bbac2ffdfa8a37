import asyncio
import contextlib
import socket
import threading

import pytest
from tests.tools.grpc_mirror import mirroring

from modelserver.ext.grpc.http2 import frames
from modelserver.tools.grpc_client import post

FIELDS = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]


@pytest.fixture(scope="module")
def mirror():
    with mirroring() as (_, port):
        yield "127.0.0.1", port


def ask(address, path, body, patience):
    return asyncio.run(post(f"http://127.0.0.1:{address[1]}{path}", FIELDS, body, patience))


@pytest.mark.parametrize("size", [0, 100, 3_000_000])
def test_bodies_of_any_size_go_both_ways(mirror, size):
    content = bytes(range(256)) * (size // 256)
    sent = b"\0" + len(content).to_bytes(4, "big") + content
    reply = ask(mirror, "/mirror", sent, 20)

    assert reply.body == sent
    assert reply.fields[b"grpc-status"] == b"0"


def test_a_refusal_is_in_the_fields(mirror):
    fields = ask(mirror, "/refuse", b"\0\0\0\0\0", 20).fields
    assert (fields[b"grpc-status"], fields[b"grpc-message"]) == (b"5", b"nothing h%C3%A9re")


@contextlib.contextmanager
def saying(*parts):
    """A server that says this to its first client and closes the connection when that does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"".join(parts))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()
        thread.join(10)


OK = frames.field(b":status", b"200")


def test_frames_of_all_forms_are_read():
    """Header blocks in pieces, padding, pings, kinds that nobody knows."""
    parts = [
        frames.frame(frames.PING, 0, 0, b"12345678"),
        frames.frame(200, 0, 0, b"?"),
        frames.frame(frames.HEADERS, 0, 1, OK[:4]),
        frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, OK[4:]),
        frames.frame(frames.DATA, frames.PADDED, 1, b"\x02one--"),
        frames.frame(frames.DATA, frames.END_STREAM, 1, b"two"),
    ]
    with saying(*parts) as address:
        reply = ask(address, "/", b"", 10)

    assert (reply.fields, reply.body) == ({b":status": b"200"}, b"onetwo")


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (frames.reset(1, frames.Code.REFUSED_STREAM), frames.Code.REFUSED_STREAM),
        (frames.goaway(0, frames.Code.ENHANCE_YOUR_CALM), frames.Code.ENHANCE_YOUR_CALM),
        (frames.frame(5, 0, 1), frames.Code.PROTOCOL_ERROR),
        (frames.frame(frames.DATA, 0, 1, bytes(20_000)), frames.Code.FRAME_SIZE_ERROR),
        (
            frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff"),
            frames.Code.COMPRESSION_ERROR,
        ),
    ],
)
def test_broken_exchange_has_its_code(part, code):
    with saying(part) as address, pytest.raises(frames.Http2Error) as broken:
        ask(address, "/", b"", 10)

    assert broken.value.code == code


def test_server_that_closes_or_is_silent_is_an_error():
    with saying() as address, pytest.raises(ConnectionResetError):
        ask(address, "/", b"", 10)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        ask(silent.getsockname(), "/", b"", 0.1)
