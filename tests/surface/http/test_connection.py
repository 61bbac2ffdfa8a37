import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from tests.surface.http.wire import BOTH_WAYS, CHUNKED, LIMIT, Wire, chunk, head, post, settle

from modelserver.errors import BadRequest
from modelserver.surface.http.asgi_cycle import AsgiCycle
from modelserver.surface.http.connection import MIN_PROGRESS, Http1Connection
from modelserver.surface.http.exchange import Exchange
from modelserver.surface.http.protocol import HttpProtocol


async def test_hot_request_gets_its_response_in_one_write(wire):
    lines = (
        "content-LENGTH: 2",
        "Content-Type: text/plain",
        "CONTENT-ENCODING: gzip",
        "x-Request-ID: mine",
        "X-Request-Timeout-Ms: 250",
    )
    written = wire.send(head(*lines) + b"hi")
    exchange = wire.hot.exchanges[0]

    assert written.startswith(b"HTTP/1.1 200 OK\r\nx-request-id: mine\r\n")
    assert written.endswith(b"content-length: 2\r\nconnection: keep-alive\r\n\r\nhi")
    assert not wire.transport.closed
    assert wire.listener.tasks == set()
    assert wire.responses == [("127.0.0.1:5000", "POST", "/hot", "1.1", 200)]
    assert exchange.headers[1:3] == [(b"content-LENGTH", b"2"), (b"Content-Type", b"text/plain")]
    assert (exchange.announced, exchange.content_type) == (2, "text/plain")
    assert (exchange.encoding, exchange.deadline_ms) == (b"gzip", 250)
    # A connection that stays open keeps nothing of a request that was answered.
    assert exchange.body == b""


async def test_failed_request_closes_the_connection(busy):
    """As in TorchServe, a status of 400 and above does; later replies to the exchange are dropped."""
    busy.send(post())
    busy.hot.exchanges[0].fail(BadRequest("no"))
    busy.hot.exchanges[0].reply(200, b"two")

    assert busy.statuses == [400]
    assert b"connection: close\r\n\r\n" in busy.transport.written
    assert busy.transport.closed
    assert len(busy.responses) == 1


async def test_failing_endpoint_is_answered_500(wire, caplog):
    wire.send(post(path="/hot/bug"))

    assert wire.statuses == [500]
    assert "ZeroDivisionError" in caplog.text


async def test_client_gets_permission_to_send_at_once(wire):
    assert wire.send(head("Content-Length: 2", "Expect: 100-continue")) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert wire.send(b"hi").endswith(b"hi")


@pytest.mark.parametrize(("state", "calls"), [("waiting", 1), ("streaming", 1), ("answered", 0)])
async def test_endpoint_learns_once_that_its_client_has_left(busy, state, calls):
    """What it sends later goes nowhere (F37)."""
    left: list[str] = []
    busy.send(post())
    [exchange] = busy.hot.exchanges
    exchange.on_disconnect = lambda: left.append("left")
    if state == "streaming":
        exchange.begin(200)
    elif state == "answered":
        exchange.reply(200, b"")
    written = busy.transport.written
    busy.protocol.connection_lost(None)
    exchange.send(b"late")
    exchange.reply(200, b"late")
    exchange.end()

    assert left == ["left"] * calls
    assert busy.transport.written == written
    assert [response[4] for response in busy.responses] == [200]


@pytest.mark.parametrize("path", ["/hot", "/cold", "/none"])
@pytest.mark.parametrize("line", ["Connection: Close", "CONNECTION: x , CLOSE, y", "X: y"])
async def test_response_says_once_whether_the_connection_stays(wire, path, line):
    await wire.talk(head("Content-Length: 0", line, path=path))

    closes = line != "X: y" or path == "/none"
    assert wire.transport.written.count(b"connection: ") == 1
    assert (b"connection: close\r\n" if closes else b"connection: keep-alive\r\n") in wire.transport.written
    assert wire.transport.closed == closes


async def test_connection_ends_at_shutdown_once_it_is_idle(wire, busy):
    application = Wire()
    busy.send(post())
    application.send(post(path="/cold"))
    for each in (wire, busy, application):
        each.listener.shutdown()
    assert (wire.transport.closed, busy.transport.closed) == (True, False)
    # One that was accepted just before.
    assert Wire(listener=wire.listener).transport.closed
    busy.hot.exchanges[0].reply(200, b"done")
    await settle()

    assert busy.transport.written.endswith(b"connection: close\r\n\r\ndone")
    assert application.transport.written.endswith(b"connection: close\r\n\r\n")
    assert busy.transport.closed
    assert application.transport.closed


async def test_body_is_put_together_from_many_pieces(busy):
    bodies = [b"x" * size for size in (1, 2, 3, 5000, 1, 4096, 4095, 2)]
    busy.listener.max_body = 1 << 20
    busy.send(head(CHUNKED), *map(chunk, bodies), chunk(b"yy") * 1000)
    incoming = busy.connection.newest
    assert isinstance(incoming, Exchange)
    assert len(incoming.pieces) < 8
    busy.send(b"0\r\n\r\n")

    assert busy.hot.exchanges[0].body == b"".join(bodies) + b"yy" * 1000


@pytest.mark.parametrize(
    ("sent", "later", "limit"),
    [(b"GET /hot HTTP/1.1\r\nX-", b"Slow: 1\r\n", 10), (post(), b"", 20)],
    ids=["head", "idle"],
)
async def test_connection_is_closed_while_nothing_whole_comes(wire, sent, later, limit):
    """If a head is not whole after ``receive_timeout`` seconds (F15), or after ``keep_alive`` seconds of
    idleness, counted from the last response.
    """
    wire.send(sent)
    started = time.monotonic()
    wire.listener.check(started + limit - 1)
    assert not wire.transport.closed

    if later:
        wire.send(later)
    wire.listener.check(started + limit + 1)
    assert wire.transport.closed


@pytest.mark.parametrize(("size", "closed"), [(1, True), (MIN_PROGRESS, False)], ids=["slow", "steady"])
async def test_slow_body_ends_the_connection(wire, size, closed):
    """Less than the least progress in ``receive_timeout`` seconds (F15); a steady body may take as long."""
    wire.listener.max_body = 1 << 20
    wire.send(head("Content-Length: 1000000"))
    started = time.monotonic()
    for moment in (0, 4, 9):
        wire.send(b"x" * size)
        wire.listener.check(started + moment)
        assert not wire.transport.closed
    for moment in range(12, 100, 5):
        wire.send(b"x" * size)
        wire.listener.check(started + moment)

    assert wire.transport.closed == closed


async def test_requests_wait_for_a_client_that_does_not_read(wire):
    wire.protocol.pause_writing()
    wire.send(post(b"a") * 3)
    assert wire.hot.exchanges == []
    assert not wire.transport.reading

    wire.protocol.resume_writing()
    assert len(wire.hot.exchanges) == 3
    assert wire.transport.reading


async def test_client_that_waits_or_reads_slowly_is_not_cut_off_for_the_rest_of_a_request(busy):
    busy.send(post())
    busy.listener.check(time.monotonic() + 1000)
    busy.send(head("Content-Length: 9") + b"x", b"x")
    busy.protocol.pause_writing()
    busy.transport.unsent = 1_000_000
    busy.hot.exchanges[0].reply(200, b"large")
    started = time.monotonic()
    for moment in range(0, 100, 5):
        busy.connection.check(started + moment)
        busy.transport.unsent -= 25_000

    assert not busy.transport.closed


@pytest.mark.parametrize(
    ("path", "line", "status"), [("/none", "X: y", 404), ("/early", "Connection: close", 200)]
)
async def test_sending_side_ends_first(wire, path, line, status):
    await wire.talk(head("Content-Length: 900", line, path=path), b"x" * 100)

    assert wire.statuses == [status]
    assert wire.transport.ended
    assert not wire.transport.closed
    assert wire.transport.reading
    assert wire.listener.intake.held == 0
    assert wire.send(b"x" * 800 + post()) == b""
    assert not wire.protocol.eof_received()


async def test_tls_connection_ends_with_the_request_at_the_latest():
    for sent in (head("Content-Length: 900", path="/none"), head(f"Content-Length: {LIMIT + 1}")):
        secured = Wire(half_closes=False)
        await secured.talk(sent, b"x" * 100)
        assert secured.statuses[0] // 100 == 4
        for _ in range(2):
            assert not secured.transport.closed
            secured.listener.check(time.monotonic())
            secured.send(b"x" * 100)
        secured.listener.check(time.monotonic())
        assert not secured.transport.closed
        secured.listener.check(time.monotonic())
        assert secured.transport.closed

    refused = Wire(half_closes=False)
    assert refused.send(head("Host: y", "Content-Length: 0")).startswith(b"HTTP/1.1 400 ")
    assert refused.transport.closed


async def test_rest_of_a_request_is_bounded(wire):
    """What follows the last response is dropped up to the limits of a body and of the time for a request."""
    many = Wire()
    before = time.monotonic()
    for each in (wire, many):
        each.send(head("Content-Length: 900", path="/none"), b"x")
    await settle()
    after = time.monotonic()
    for moment in range(10):
        wire.send(b"x")
        wire.listener.check(before + moment)
        assert not wire.transport.closed
    wire.send(b"x")
    wire.listener.check(after + 11)
    assert wire.transport.closed

    many.send(*[b"x" * 1000] * 66)
    assert not many.transport.closed
    many.send(b"x" * 1000)
    assert many.transport.closed


async def test_client_may_read_its_last_response_steadily(wire):
    await wire.talk(head("Content-Length: 900", path="/none"), b"x")
    wire.transport.unsent = 1_000_000
    started = time.monotonic()
    for moment in range(0, 100, 5):
        wire.listener.check(started + moment)
        wire.transport.unsent -= 40_000
    assert not wire.transport.closed


async def test_body_that_nobody_waits_for_is_bounded(wire):
    await wire.talk(head(CHUNKED, path="/early"))
    part = chunk(b"x" * 256)
    wire.send(part)
    assert wire.listener.intake.held == 0
    assert not wire.transport.ended

    wire.send(*[part] * 5)
    assert wire.transport.ended


@pytest.mark.parametrize(
    "rest",
    [post() * 3, post()[:9], head("Host: y", "Content-Length: 9"), b"BAD\r\n"],
    ids=["whole", "part", "refused", "garbage"],
)
async def test_requests_behind_a_failed_one_are_dropped(busy, rest):
    busy.send(post() + rest)
    busy.hot.exchanges[0].fail(BadRequest("no"))

    assert busy.transport.ended
    assert not busy.transport.closed
    busy.protocol.pause_writing()
    busy.protocol.resume_writing()
    assert len(busy.hot.exchanges) == 1
    assert busy.statuses == [400]


@contextlib.contextmanager
def uncollected() -> Iterator[Callable[[], list[object]]]:
    """Yields what lists the connections and requests created since. Nobody collects circles."""
    kinds = (HttpProtocol, Http1Connection, Exchange, AsgiCycle)
    gc.disable()
    gc.freeze()
    try:
        yield lambda: [each for each in gc.get_objects() if isinstance(each, kinds)]
    finally:
        gc.enable()


def after(*sent: bytes) -> Callable[[Wire, str], Awaitable[None]]:
    """A client that leaves after it has sent these pieces."""

    async def end(wire: Wire, path: str) -> None:
        await wire.talk(*(piece.replace(b"/hot", path.encode()) for piece in sent))

    return end


async def beyond_the_intake(wire: Wire, path: str) -> None:
    wire.listener.intake.limit = 500
    wire.send(head("Content-Length: 900", path=path), b"x" * 800)
    assert wire.statuses == [503]


async def cut_off_while_it_sends(wire: Wire, path: str) -> None:
    await wire.talk(post(b"whole", path)[:-1])
    wire.listener.check(time.monotonic() + 11)
    assert wire.transport.closed


async def cut_off_while_it_reads(wire: Wire, path: str) -> None:
    await wire.talk(post(b"whole", path))
    wire.protocol.pause_writing()
    wire.transport.unsent = 100_000
    wire.send(post(b"other", path), post(b"whole", path)[:-1])
    wire.listener.check(time.monotonic())
    wire.listener.check(time.monotonic() + 21)
    assert wire.transport.aborted


async def reset_before_its_response(wire: Wire, path: str) -> None:
    """The client resets the connection, with a second request behind the first."""
    wire.hot.at_once = False
    wire.send(post(b"whole", path) * 2)
    wire.transport.closed = True
    wire.protocol.connection_lost(ConnectionResetError())
    await settle()
    for exchange in wire.hot.exchanges:
        exchange.reply(200, b"late")


async def half_closed(wire: Wire, _: str) -> None:
    """The client says that it will send no more, and is then gone."""
    wire.hot.at_once = False
    wire.send(post(b"whole"))
    assert wire.protocol.eof_received()


@pytest.mark.parametrize(("version", "comment"), [("1.1", b"3\r\n:\n\n\r\n"), ("1.0", b"\r\n\r\n:\n\n")])
async def test_reader_of_events_that_may_be_gone_gets_a_comment(version, comment):
    """Whoever is gone resets the connection; proxies use HTTP/1.0, too, which has no chunks."""
    wire = Wire()
    wire.hot.at_once = False
    wire.send(post().replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
    [exchange] = wire.hot.exchanges
    exchange.begin(200, "text/event-stream; charset=utf-8")

    assert wire.protocol.eof_received()
    assert bytes(wire.transport.written).endswith(comment)
    wire.protocol.connection_lost(None)


async def stream_left(wire: Wire, _: str) -> None:
    """The client leaves between two parts of its response."""
    wire.hot.at_once = False
    wire.send(post())
    [exchange] = wire.hot.exchanges
    exchange.begin(200)
    exchange.send(b"one")
    wire.transport.closed = True
    wire.protocol.connection_lost(ConnectionResetError())
    exchange.send(b"two")
    exchange.end()


async def stream_broken_off(wire: Wire, path: str) -> None:
    wire.hot.at_once = False
    wire.send(post() + post(path=path))
    [exchange] = wire.hot.exchanges
    exchange.begin(200)
    exchange.send(b"one")
    exchange.end(complete=False)
    assert wire.transport.ended


@BOTH_WAYS
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(after(post(b"whole")), id="answered"),
        pytest.param(after(post(b"whole")[:-1]), id="within a body"),
        pytest.param(after(head(CHUNKED) + chunk(b"whole")[:-4]), id="within a chunk"),
        pytest.param(after(head(f"Content-Length: {LIMIT + 1}"), b"x" * LIMIT), id="announced too large"),
        pytest.param(after(head(CHUNKED), *[chunk(b"x" * 256)] * 4), id="too large"),
        pytest.param(after(head(CHUNKED), chunk(b"hi") + b"xyz\r\n"), id="garbage"),
        beyond_the_intake,
        cut_off_while_it_sends,
        cut_off_while_it_reads,
        reset_before_its_response,
        half_closed,
        stream_left,
        stream_broken_off,
    ],
)
async def test_nothing_outlives_its_connection(path, end):
    """Requests and bodies are gone with it, without the collector of circles, however it ended."""
    with uncollected() as alive:
        wire = Wire()
        await end(wire, path)
        assert alive() != []
        await settle()
        if wire.connection in wire.listener.connections:
            wire.protocol.connection_lost(None)
        wire.hot.exchanges.clear()
        del wire.protocol, wire.connection
        await settle()
        assert alive() == []
        assert wire.listener.connections == set()
        assert wire.listener.intake.held == 0
        assert wire.listener.outgoing.held == 0
