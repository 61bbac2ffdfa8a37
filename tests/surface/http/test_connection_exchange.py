from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.transports import Transport

from modelserver.surface.http.connection import HttpProtocol, Listener
from modelserver.surface.http.exchange import MAX_UNSENT, read_target

if TYPE_CHECKING:
    from modelserver.surface.http.exchange import Exchange, Target


async def never_called(*_: object) -> None:
    """The application of a connection that only has hot requests."""
    raise AssertionError


class Wire:
    """A connection under test, whose exchanges the test answers."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.statuses: list[int] = []
        listener = Listener(self, 1000, lambda *said: self.statuses.append(said[4]))
        self.protocol = HttpProtocol(never_called, listener)
        self.transport = Transport()
        self.protocol.connection_made(self.transport)

    def find(self, url: bytes) -> Target | None:
        return read_target(url)

    def serve(self, exchange: Exchange) -> None:
        exchange.request_id = "id"
        self.exchanges.append(exchange)

    def ask(self, method: str = "POST", version: str = "1.1") -> Exchange:
        """The exchange of a new request."""
        self.protocol.data_received(
            f"{method} /hot HTTP/{version}\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()
        )
        return self.exchanges[-1]

    def written(self) -> tuple[bytes, bytes]:
        """Head and body of what was written since the last time."""
        head, _, body = self.transport.written.partition(b"\r\n\r\n")
        self.transport.written = b""
        return head, body


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.mark.parametrize("name", [None, "traceparent", "Traceparent", "TraceParent"])
async def test_a_traceparent_is_noticed(wire: Wire, name: str | None) -> None:
    """Whatever its case; without one, tracing looks no further."""
    line = f"{name}: 00\r\n" if name else ""
    wire.protocol.data_received(f"GET /hot HTTP/1.1\r\nHost: x\r\n{line}\r\n".encode())
    assert wire.exchanges[-1].has_traceparent == (name is not None)


@pytest.mark.parametrize("size", [100, 1_000_000])
@pytest.mark.parametrize(
    ("method", "status", "told"), [("POST", 200, True), ("HEAD", 200, False), ("POST", 204, False)]
)
async def test_a_whole_answer(wire: Wire, method: str, status: int, told: bool, size: int) -> None:
    """A head and, where there may be one, the body; all that is written is counted."""
    body = bytes(size)
    wire.ask(method).reply(status, body)
    counted = wire.protocol.delivery.written
    written = wire.transport.written
    head, content = wire.written()

    assert content == (body if told else b"")
    assert (b"content-length: %d" % size in head) is (status != 204)
    assert counted == len(written)


async def test_a_large_body_is_not_copied(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written as it is, behind its head."""
    pieces: list[bytes] = []
    monkeypatch.setattr(wire.transport, "write", pieces.append)
    body = bytes(1_000_000)
    wire.ask().reply(200, body)

    assert len(pieces) == 2
    assert pieces[1] is body


async def test_an_answer_in_parts(wire: Wire) -> None:
    """Each part is one chunk; the head has the handler's lines and no length; the connection stays open."""
    exchange = wire.ask()
    exchange.begin(201, "text/plain", b"x-a: b\r\n", "Good")
    head, _ = wire.written()
    for part in (b"one", b"two", b"x" * 20):
        exchange.send(part)
    exchange.end()

    assert head.startswith(b"HTTP/1.1 201 Good\r\nx-request-id: id\r\n")
    assert head.endswith(
        b"x-a: b\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\nconnection: keep-alive"
    )
    assert wire.transport.written == b"3\r\none\r\n3\r\ntwo\r\n14\r\n" + b"x" * 20 + b"\r\n0\r\n\r\n"
    assert (wire.statuses, wire.transport.closed) == ([201], False)


async def test_a_part_without_bytes_is_no_chunk(wire: Wire) -> None:
    """An empty chunk would be the end of the answer."""
    exchange = wire.ask()
    exchange.begin(200)
    wire.written()
    exchange.send(b"")

    assert wire.transport.written == b""


async def test_the_next_request_waits_for_the_end(wire: Wire) -> None:
    """A pipelined request is served when the stream before it has ended."""
    first = wire.ask()
    first.begin(200)
    assert wire.ask() is first
    first.send(b"part")
    first.end()

    assert len(wire.exchanges) == 2
    wire.written()
    wire.exchanges[1].reply(200, b"second")
    assert wire.written()[1] == b"second"


async def test_an_incomplete_answer(wire: Wire) -> None:
    """The connection is closed without the last chunk, and the answer counts as a failure."""
    exchange = wire.ask()
    exchange.begin(200)
    exchange.send(b"part")
    exchange.end(complete=False)

    assert wire.written()[1] == b"4\r\npart\r\n"
    assert (wire.statuses, wire.transport.closed, wire.transport.aborted) == ([500], True, False)


@pytest.mark.parametrize(("complete", "aborted"), [(True, False), (False, True)])
async def test_clients_without_chunks(wire: Wire, complete: bool, aborted: bool) -> None:
    """HTTP/1.0: parts as they are, and the end of the connection; a reset if something is missing."""
    exchange = wire.ask(version="1.0")
    exchange.begin(200)
    exchange.send(b"one")
    exchange.send(b"two")
    exchange.end(complete)
    head, body = wire.written()

    assert b"transfer-encoding" not in head
    assert head.endswith(b"connection: close")
    assert body == b"onetwo"
    assert (wire.transport.closed, wire.transport.aborted) == (True, aborted)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 204), ("POST", 304)])
async def test_answers_without_a_body(wire: Wire, method: str, status: int) -> None:
    """Parts of an answer that cannot have a body are not written."""
    exchange = wire.ask(method)
    exchange.begin(status)
    exchange.send(b"part")
    exchange.end()
    head, body = wire.written()

    assert b"transfer-encoding" not in head
    assert (body, wire.transport.closed) == (b"", False)


async def test_a_failed_status_closes_the_connection(wire: Wire) -> None:
    """As for whole answers: 400 and above is the last on its connection."""
    exchange = wire.ask()
    exchange.begin(404)
    exchange.send(b"part")
    exchange.end()
    head, body = wire.written()

    assert head.endswith(b"connection: close")
    assert body == b"4\r\npart\r\n0\r\n\r\n"
    assert wire.transport.closed


async def test_one_answer_only(wire: Wire) -> None:
    """What comes after the begin of an answer in parts, or after its end, changes nothing."""
    exchange = wire.ask()
    exchange.begin(200)
    exchange.reply(500, b"late")
    exchange.begin(500)
    exchange.end()
    exchange.send(b"late")
    exchange.end(complete=False)

    assert wire.written()[1] == b"0\r\n\r\n"
    assert (wire.statuses, wire.transport.closed) == ([200], False)


async def test_parts_need_a_begin(wire: Wire) -> None:
    """Without a head nothing is written."""
    exchange = wire.ask()
    exchange.send(b"part")
    exchange.end()

    assert wire.transport.written == b""


async def test_a_client_that_leaves(wire: Wire) -> None:
    """The endpoint hears of it within an answer in parts, and not after its end."""
    gone: list[str] = []
    exchange = wire.ask()
    exchange.on_disconnect = lambda: gone.append("within")
    exchange.begin(200)
    wire.protocol.connection_lost(None)
    exchange.send(b"part")
    exchange.end()

    assert gone == ["within"]
    assert wire.written()[1] == b""


async def test_a_client_that_does_not_read(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    """A part on top of more than MAX_UNSENT bytes ends the connection, with a line in the log."""
    exchange = wire.ask()
    exchange.begin(200)
    wire.transport.unsent = MAX_UNSENT
    exchange.send(b"fits")
    assert not wire.transport.closed
    wire.transport.unsent = MAX_UNSENT + 1
    with caplog.at_level(logging.WARNING, "modelserver.api"):
        exchange.send(b"too much")
    exchange.send(b"more")

    assert wire.transport.aborted
    assert b"too much" not in wire.transport.written
    assert [record.getMessage()[:33] for record in caplog.records] == ["Request id: the client reads its "]


async def test_what_the_client_has_not_taken(wire: Wire) -> None:
    """unsent() is what waits in the connection."""
    exchange = wire.ask()
    wire.transport.unsent = 42

    assert exchange.unsent() == 42
