import asyncio
from typing import Any

import pytest
from tests.surface.http.wire import Wire, head, settle

START = {"type": "http.response.start", "status": 200}


def answering(*messages: dict[str, Any]):
    """An application that sends these messages; those without a type are bodies."""

    async def app(scope, receive, send) -> None:
        for message in messages:
            await send({"type": "http.response.body", **message})

    return app


def recording(scopes: list[Any]):
    async def app(scope, receive, send) -> None:
        scopes.append(scope)
        await answering(start(), {})(scope, receive, send)

    return app


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {**START, "status": status, "headers": headers}


async def response(app, method: str = "GET", *lines: str) -> tuple[bytes, bytes, Wire]:
    """The head and body of the application's response, and the connection."""
    wire = Wire(app)
    await wire.talk(head(*lines, method=method, path="/cold"))
    lead, _, body = wire.transport.written.partition(b"\r\n\r\n")
    return lead, body, wire


async def test_scope_describes_the_request():
    scopes: list[Any] = []
    await response(recording(scopes), "GET /a%20b?c=%20 HTTP/1.1\r\nX-A: B\r\nX-Rest:")

    assert scopes == [
        {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": ("127.0.0.1", 8080),
            "client": ("127.0.0.1", 5000),
            "scheme": "http",
            "method": "GET",
            "root_path": "",
            "path": "/a b",
            "raw_path": b"/a%20b",
            "query_string": b"c=%20",
            "headers": [(b"x-a", b"B"), (b"x-rest", b"/cold HTTP/1.1"), (b"host", b"x")],
            "state": {},
        }
    ]


PARTS = [start(201, (b"X-A", b"b")), {"body": b"one", "more_body": True}, {"body": b"two"}]
SIZED = start(200, (b"content-length", b"3"))
OPEN, CLOSED = b"\r\nconnection: keep-alive", b"\r\nconnection: close"
CHUNKED = b"\r\ntransfer-encoding: chunked"


@pytest.mark.parametrize(
    ("method", "messages", "lines", "body"),
    [
        ("GET", PARTS, b"201 Created\r\nx-a: b" + OPEN + CHUNKED, b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"),
        ("GET", [start(), {"more_body": True}, {}], b"200 OK" + OPEN + CHUNKED, b"0\r\n\r\n"),
        ("GET", [SIZED, {"body": b"one"}], b"200 OK\r\ncontent-length: 3" + OPEN, b"one"),
        ("HEAD", [SIZED, {"body": b"one"}], b"200 OK\r\ncontent-length: 3" + OPEN, b""),
        ("HEAD", [start(), {"body": b"one"}], b"200 OK" + OPEN, b""),
        ("GET", [start(204), {}], b"204 No Content" + OPEN, b""),
        ("GET", [start(304), {}], b"304 Not Modified" + OPEN, b""),
        ("GET", [start(404), {"body": b"x"}], b"404 Not Found" + CLOSED + CHUNKED, b"1\r\nx\r\n0\r\n\r\n"),
    ],
    ids=["parts", "empty", "length", "HEAD with length", "HEAD", "204", "304", "404"],
)
async def test_response_is_framed(method, messages, lines, body):
    lead, content, wire = await response(answering(*messages), method)

    assert (lead, content) == (b"HTTP/1.1 " + lines, body)
    assert wire.transport.closed == (b"connection: close" in lines)
    assert wire.listener.tasks == set()


@pytest.mark.parametrize(
    ("messages", "body"),
    [
        ([{}], b"Internal Server Error"),
        ([], b"Internal Server Error"),
        ([start(200, (b"x\r\ny", b"z"))], b"Internal Server Error"),
        ([start(200, (b"x", b"y\r\nz"))], b"Internal Server Error"),
        ([start(), start()], b""),
        ([start(), {"body": b"x", "more_body": True}], b"1\r\nx\r\n"),
        ([start(200, (b"content-length", b"1")), {"body": b"xx"}], b""),
        ([start(200, (b"content-length", b"2")), {"body": b"x"}], b"x"),
        ([start(204), {"body": b"x"}], b""),
        ([start(), {}, {}], b"0\r\n\r\n"),
    ],
    ids=["no start", "nothing", "name", "value", "two starts", "no end", "longer", "shorter", "204", "two"],
)
async def test_failing_application_ends_the_connection(messages, body, caplog):
    """With 500 where nothing is written yet, otherwise as it is; the log says why."""
    lead, content, wire = await response(answering(*messages))

    assert lead.startswith(b"HTTP/1.1 500 " if body.startswith(b"Internal") else b"HTTP/1.1 20")
    assert content == body
    assert wire.transport.closed
    assert "ASGI" in caplog.text


async def test_body_comes_as_it_is_taken():
    """What has come is one message; while more than 64 KiB wait, no more is read."""
    bodies: list[tuple[int, bool]] = []
    go = asyncio.Event()

    async def app(scope, receive, send) -> None:
        more = True
        while more:
            await go.wait()
            message = await receive()
            more = message["more_body"]
            bodies.append((len(message["body"]), more))
        await answering(start(), {})(scope, receive, send)

    wire = Wire(app)
    wire.listener.max_body = 1 << 20
    wire.send(head("Content-Length: 100000", path="/cold"), b"x" * 30_000, b"x" * 30_000)
    assert wire.transport.reading
    wire.send(b"x" * 10_000)
    assert not wire.transport.reading
    go.set()
    await settle()
    assert bodies == [(70_000, True)]
    assert wire.transport.reading
    await wire.talk(b"x" * 30_000)

    assert bodies[1:] == [(30_000, False)]
    assert wire.transport.written.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("reads", [True, False])
async def test_client_may_send_its_body_once_the_application_reads(reads):
    async def app(scope, receive, send) -> None:
        for _ in range(2 if reads else 0):
            await receive()
        await answering(start(), {})(scope, receive, send)

    wire = Wire(app)
    await wire.talk(head("Content-Length: 2", "Expect: 100-Continue", path="/cold"))
    wire.send(b"a")
    await settle()
    await wire.talk(b"b")

    assert wire.transport.written.count(b"HTTP/1.1 100 Continue\r\n\r\n") == reads
    assert b"HTTP/1.1 200 " in wire.transport.written


async def test_application_learns_that_its_client_has_left():
    events: list[str] = []

    async def app(scope, receive, send) -> None:
        events.extend([(await receive())["type"], (await receive())["type"]])
        await answering(start(), {})(scope, receive, send)

    for behind in (b"", head(path="/cold")):
        events.clear()
        wire = Wire(app)
        await wire.talk(head("Content-Length: 0", path="/cold") + behind)
        assert events == []
        wire.protocol.connection_lost(ConnectionResetError())
        await settle()

        assert events == ["http.request", "http.disconnect"]
        assert wire.transport.written == b""
        assert wire.listener.tasks == set()


async def test_application_learns_that_its_response_is_complete():
    events: list[str] = []

    async def app(scope, receive, send) -> None:
        await receive()
        waiting = asyncio.create_task(receive())
        await answering(start(), {})(scope, receive, send)
        events.append((await waiting)["type"])

    await response(app)

    assert events == ["http.disconnect"]


async def test_application_waits_for_a_client_that_does_not_read():
    wire = Wire(answering(start(), {"body": b"one", "more_body": True}, {"body": b"two"}))
    wire.send(head(path="/cold", method="GET"))
    wire.protocol.pause_writing()
    await settle()
    assert wire.transport.written == b""

    wire.protocol.resume_writing()
    await settle()
    assert wire.transport.written.endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
    assert wire.connection.delivery.written == len(wire.transport.written)


async def test_steady_body_of_the_application_is_received():
    """A large body may take as long as it likes while it comes steadily, also where it is read at once."""
    wire = Wire()
    wire.listener.max_body = 1 << 20
    wire.send(head("Content-Length: 1000000", path="/cold"))
    moment = wire.connection._arrival.since
    for _ in range(20):
        await wire.talk(b"x" * 5000)
        moment += 5
        wire.listener.check(moment)

    assert not wire.transport.closed


async def test_proxies_of_this_machine_are_believed():
    scopes: list[Any] = []
    await response(recording(scopes), "GET", "X-Forwarded-For: 192.0.2.7", "X-Forwarded-Proto: https")

    assert (scopes[0]["client"], scopes[0]["scheme"]) == (("192.0.2.7", 0), "https")
