"""Clients that misbehave at the level of HTTP: too large, too many, no HTTP at all (faults 5, 14 to 16)."""

from __future__ import annotations

import time

import pytest
from tests.e2e.raw import connect, converse, everything, head, post

ECHO = "/predictions/echo"


@pytest.fixture(scope="module")
def port(shared_server):
    """The inference port of a server with an echo model."""
    return shared_server.registered("echo.mar").port


@pytest.mark.parametrize("path", ["/predictions/echo", "/ping", "/v1/models/echo:predict"])
def test_announced_length(port, path):
    """A body announced too large is refused before a byte of it is read (F5)."""
    started = time.monotonic()
    answer = converse(port, head(path, "Content-Length: 99999999999"))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code": 413' in answer
    assert b"x-request-id: " in answer
    assert b"connection: close" in answer
    assert time.monotonic() - started < 5


def test_chunks(port):
    """A chunked body is refused once it is over the limit, and no sooner (F5)."""
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    answer = converse(port, head(ECHO, "Transfer-Encoding: chunked"), *[chunk] * 101)
    fine = converse(port, head(ECHO, "Transfer-Encoding: chunked", "Connection: close"), chunk, b"0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert fine.startswith(b"HTTP/1.1 200 ")
    assert fine.endswith(b"x" * 0x10000)


def test_tiny_chunks(port):
    """A body in thousands of chunks of one byte is put together (F5)."""
    begin = head(ECHO, "Transfer-Encoding: chunked", "Connection: close")
    answer = converse(port, begin, b"1\r\nx\r\n" * 20_000, b"0\r\n\r\n")

    assert answer.endswith(b"\r\n\r\n" + b"x" * 20_000)


@pytest.mark.parametrize("length", ["-1", "abc", "1, 2", "18446744073709551616"])
def test_bad_length(port, length):
    """A content length that is none is refused (F5)."""
    answer = converse(port, head(ECHO, f"Content-Length: {length}"))

    assert answer[:12] in {b"HTTP/1.1 400", b"HTTP/1.1 413"}
    assert b'"code": 4' in answer


def test_continue(port):
    """A client that asks first is told to go on, or that the body is too large (reference 6.7)."""
    with connect(port) as connection:
        connection.sendall(head(ECHO, "Content-Length: 5", "Expect: 100-continue", "Connection: close"))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hello")
        assert everything(connection).endswith(b"hello")
    assert converse(port, head(ECHO, "Content-Length: 9999999", "Expect: 100-continue")).startswith(
        b"HTTP/1.1 413 "
    )


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00" * 100,
        b"GET /predictions/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT example:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["words", "TLS", "no target", "version", "zeros", "bytes in the path", "CONNECT", "half an address"],
)
def test_garbage(port, garbage):
    """What is no HTTP is answered 400 in JSON, and the connection closed."""
    answer = converse(port, garbage)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"message": "Invalid HTTP message."' in answer


@pytest.mark.parametrize(
    "lines",
    [["X-Long: " + "x" * 70_000], [f"X-{n}: {n}" for n in range(8000)]],
    ids=["one long header", "many headers"],
)
def test_headers_too_large(port, lines):
    """Headers over 64 KiB are refused with 431 (F14)."""
    answer = converse(port, head(ECHO, *lines))

    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code": 431' in answer


def test_long_target(port):
    """A target of endless length is refused, one of thousands of parameters served (F14)."""
    many = "&".join(f"p{n}=1" for n in range(5000))

    assert converse(port, head(f"{ECHO}?{'q' * 70_000}")).startswith(b"HTTP/1.1 431 ")
    assert converse(port, post(f"{ECHO}?{many}", b"", "Connection: close")).startswith(b"HTTP/1.1 200 ")


def test_pipelining(port):
    """Requests sent without waiting are answered in their order (F16)."""
    requests = [post(ECHO, b"%02d" % n) for n in range(20)]
    last = post(ECHO, b"end", "Connection: close")
    answer = converse(port, b"".join(requests) + last)
    bodies = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK\r\n")[1:]]

    assert bodies == [b"%02d" % n for n in range(20)] + [b"end"]


def test_pipelining_of_both_kinds(port):
    """Hot routes and others mix on one connection."""
    ping = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = converse(
        port,
        ping + post(ECHO, b"a") + ping,
        post(ECHO, b"b", "Connection: close"),
    )

    assert answer.count(b"HTTP/1.1 200 OK") == 4
    assert answer.count(b"Healthy") == 2
    assert answer.endswith(b"\r\n\r\nb")


def test_one_byte_at_a_time(port):
    """A request that trickles in is served all the same."""
    request = post(ECHO, b"hello", "Connection: close")

    assert converse(port, *[request[i : i + 1] for i in range(len(request))]).endswith(b"hello")


def test_many_connections_that_say_nothing(shared_server, port):
    """Hundreds of idle connections are no trouble (F38)."""
    idle = [connect(port) for _ in range(500)]
    try:
        assert shared_server.predict("echo", b"x").content == b"x"
    finally:
        for connection in idle:
            connection.close()


def test_no_upgrade(port):
    """An offer to upgrade the protocol is passed over."""
    lines = ["Connection: Upgrade", "Upgrade: websocket"]
    with connect(port) as connection:
        connection.sendall(post(ECHO, b"hi", *lines))
        connection.settimeout(5)
        answer = connection.recv(65536)

    assert answer[:12] in {b"HTTP/1.1 200", b"HTTP/1.1 400"}


@pytest.mark.parametrize("line", ["Connection: Close", "Connection: close, x", "CONNECTION: x , close"])
@pytest.mark.parametrize("path", [ECHO, "/ping"])
def test_a_client_that_asks_to_close(port, path, line):
    """However it writes it, the answer says once that the connection ends, and it does."""
    answer = converse(port, post(path, b"", line))

    assert answer.count(b"\r\nconnection: ") == 1
    assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize("path", [ECHO, "/ping"])
@pytest.mark.parametrize("version", ["HTTP/0.9", "HTTP/2.0"])
def test_other_versions(port, path, version):
    """A version of HTTP besides 1.0 and 1.1 is refused."""
    answer = converse(port, f"GET {path} {version}\r\nHost: x\r\n\r\n".encode())

    assert answer.startswith(b"HTTP/1.1 505 ")
    assert b'"code": 505' in answer


@pytest.mark.parametrize("path", [ECHO, "/models"])
def test_a_chunk_of_endless_size(port, path):
    """A chunk that is announced over the limit is refused before it comes (F5)."""
    answer = converse(port, head(path, "Transfer-Encoding: chunked") + b"8000000000000000\r\n")

    assert answer[:12] in {b"HTTP/1.1 404", b"HTTP/1.1 413"}


def test_a_flood_of_empty_lines(shared_server, port):
    """Empty lines without a request are refused with 431 and leave no traceback in the log (F14)."""
    for _ in range(3):
        assert converse(port, b"\r\n" * 40_000).startswith(b"HTTP/1.1 431 ")

    assert "Traceback" not in shared_server.home.log()


def test_server_lives_on(shared_server, port):
    """After all this the server serves, and holds nothing of it."""
    assert shared_server.predict("echo", b"x").content == b"x"
    assert shared_server.metric("modelserver_queue_requests", model_name="echo") == 0
    assert shared_server.metric("modelserver_batches_in_flight", model_name="echo") == 0
