"""Clients that misbehave at the level of HTTP: too large, too many, no HTTP at all (faults 5, 14 to 16)."""

from __future__ import annotations

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
    answer = converse(port, head(path, "Content-Length: 99999999999"))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code": 413' in answer
    assert b"x-request-id: " in answer
    assert b"connection: close" in answer


def test_chunked_body_above_limit_is_refused(port):
    """A chunked body is refused as soon as it exceeds the limit, and not before (F5)."""
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    answer = converse(port, head(ECHO, "Transfer-Encoding: chunked"), *[chunk] * 101)
    fine = converse(port, head(ECHO, "Transfer-Encoding: chunked", "Connection: close"), chunk, b"0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert fine.startswith(b"HTTP/1.1 200 ")
    assert fine.endswith(b"x" * 0x10000)


def test_expect_continue_gets_100_or_413(port):
    """The response to ``Expect: 100-continue`` is 100, or 413 if the body is too large (reference 6.7)."""
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
def test_invalid_http_gets_400_and_a_closed_connection(port, garbage):
    """A request that is not HTTP gets 400 in JSON, and the connection is closed."""
    answer = converse(port, garbage)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"message": "Invalid HTTP message."' in answer


@pytest.mark.parametrize(
    "lines",
    [["X-Long: " + "x" * 70_000], [f"X-{n}: {n}" for n in range(8000)]],
    ids=["one long header", "many headers"],
)
def test_headers_above_limit_get_431(port, lines):
    """Headers over 64 KiB are refused with 431 (F14)."""
    answer = converse(port, head(ECHO, *lines))

    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code": 431' in answer


def test_pipelined_requests_mix_both_kinds_of_routes(port):
    """One connection can mix hot routes and others."""
    ping = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = converse(
        port,
        ping + post(ECHO, b"a") + ping,
        post(ECHO, b"b", "Connection: close"),
    )

    assert answer.count(b"HTTP/1.1 200 OK") == 4
    assert answer.count(b"Healthy") == 2
    assert answer.endswith(b"\r\n\r\nb")


def test_many_connections_that_say_nothing(shared_server, port):
    """Hundreds of idle connections are no trouble (F38)."""
    idle = [connect(port) for _ in range(500)]
    try:
        assert shared_server.predict("echo", b"x").content == b"x"
    finally:
        for connection in idle:
            connection.close()


def test_server_lives_on(shared_server, port):
    """After all this the server serves, and holds nothing of it."""
    assert shared_server.predict("echo", b"x").content == b"x"
    assert shared_server.metric("modelserver_queue_requests", model_name="echo") == 0
    assert shared_server.metric("modelserver_batches_in_flight", model_name="echo") == 0
