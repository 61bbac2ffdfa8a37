import logging

import pytest
from tests.surface.http.wire import Wire, head

from modelserver.surface.http.exchange import MAX_UNSENT, Exchange


def new(wire: Wire, method: str = "POST", version: str = "1.1") -> Exchange:
    lines = f"{method} /hot HTTP/{version}\r\nHost: x\r\nX-Request-ID: id\r\nContent-Length: 0\r\n\r\n"
    wire.protocol.data_received(lines.encode())
    return wire.hot.exchanges[-1]


def written(wire: Wire) -> tuple[bytes, bytes]:
    """Head and body of what was written since the last time."""
    lines, _, body = wire.transport.written.partition(b"\r\n\r\n")
    wire.transport.written = b""
    return lines, body


@pytest.mark.parametrize("name", [None, "traceparent", "Traceparent", "TraceParent"])
async def test_traceparent_is_noticed(busy, name):
    busy.send(head(*([f"{name}: 00"] if name else []), method="GET"))
    assert busy.hot.exchanges[-1].has_traceparent == (name is not None)


@pytest.mark.parametrize("size", [100, 1_000_000])
@pytest.mark.parametrize(
    ("method", "status", "has_body"), [("POST", 200, True), ("HEAD", 200, False), ("POST", 204, False)]
)
async def test_whole_response_has_a_length(busy, method, status, has_body, size):
    """HEAD gets the length that the body would have (F16). All that is written is counted."""
    body = bytes(size)
    new(busy, method).reply(status, body)
    assert busy.connection.delivery.written == len(busy.transport.written)
    lines, content = written(busy)

    assert content == (body if has_body else b"")
    assert (b"content-length: %d" % size in lines) is (status != 204)


async def test_large_body_is_not_copied(busy, monkeypatch):
    pieces: list[bytes] = []
    monkeypatch.setattr(busy.transport, "write", pieces.append)
    body = bytes(1_000_000)
    new(busy).reply(200, body)

    assert len(pieces) == 2
    assert pieces[1] is body


async def test_parts_are_chunks(busy):
    """The head has no length; a part without bytes is no chunk, as that would be the end."""
    exchange = new(busy)
    exchange.begin(201, "text/plain", b"x-a: b\r\n", "Good")
    lines, _ = written(busy)
    for part in (b"one", b"", b"two", b"x" * 20):
        exchange.send(part)
    exchange.end()

    assert lines.startswith(b"HTTP/1.1 201 Good\r\nx-request-id: id\r\n")
    assert lines.endswith(
        b"x-a: b\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\nconnection: keep-alive"
    )
    assert busy.transport.written == b"3\r\none\r\n3\r\ntwo\r\n14\r\n" + b"x" * 20 + b"\r\n0\r\n\r\n"
    assert ([each[4] for each in busy.responses], busy.transport.closed) == ([201], False)


@pytest.mark.parametrize(
    ("version", "complete", "body", "aborted"),
    [
        ("1.1", False, b"3\r\none\r\n3\r\ntwo\r\n", False),
        ("1.0", True, b"onetwo", False),
        ("1.0", False, b"onetwo", True),
    ],
)
async def test_end_of_the_connection_ends_a_response(busy, version, complete, body, aborted):
    """One without the last chunk is a failure; HTTP/1.0 gets parts as they are, or a reset."""
    exchange = new(busy, version=version)
    exchange.begin(200)
    exchange.send(b"one")
    exchange.send(b"two")
    exchange.end(complete)
    lines, content = written(busy)

    assert (b"transfer-encoding" in lines) == (version == "1.1")
    assert content == body
    assert [each[4] for each in busy.responses] == [200 if complete else 500]
    assert (busy.transport.closed, busy.transport.aborted) == (True, aborted)


@pytest.mark.parametrize(
    ("method", "status", "body", "closed"),
    [
        ("HEAD", 200, b"", False),
        ("POST", 204, b"", False),
        ("POST", 304, b"", False),
        ("POST", 404, b"4\r\npart\r\n0\r\n\r\n", True),
    ],
)
async def test_status_decides_on_body_and_connection(busy, method, status, body, closed):
    """Parts of one that cannot have a body are not written; 400 and above is the last on its connection."""
    exchange = new(busy, method)
    exchange.begin(status)
    exchange.send(b"part")
    exchange.end()
    lines, content = written(busy)

    assert (b"transfer-encoding" in lines) == closed
    assert lines.endswith(b"connection: close") == closed
    assert (content, busy.transport.closed) == (body, closed)


async def test_exchange_has_one_response(busy):
    """What comes before the begin of one in parts, as another within it, or after its end changes nothing."""
    exchange = new(busy)
    exchange.send(b"part")
    exchange.end()
    assert busy.transport.written == b""
    exchange.begin(200)
    exchange.reply(500, b"late")
    exchange.begin(500)
    exchange.end()
    exchange.send(b"late")
    exchange.end(complete=False)

    assert written(busy)[1] == b"0\r\n\r\n"
    assert ([each[4] for each in busy.responses], busy.transport.closed) == ([200], False)


async def test_stream_ends_where_its_client_does_not_read(busy, caplog):
    exchange = new(busy)
    exchange.begin(200)
    busy.transport.unsent = MAX_UNSENT
    exchange.send(b"fits")
    assert exchange.unsent() == MAX_UNSENT
    assert not busy.transport.closed
    busy.transport.unsent = MAX_UNSENT + 1
    with caplog.at_level(logging.WARNING, "modelserver.api"):
        exchange.send(b"too much")
    exchange.send(b"more")

    assert busy.transport.aborted
    assert b"too much" not in busy.transport.written
    assert [record.getMessage()[:33] for record in caplog.records] == ["Request id: the client reads its "]
