from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from typing import TYPE_CHECKING

import pytest
from tests.surface.http.wire import LIMIT, Wire, chunk, head, pieces, post, settle

from modelserver.errors import BadRequest
from modelserver.surface.http.asgi_cycle import AsgiCycle
from modelserver.surface.http.connection import MIN_PROGRESS, HttpProtocol
from modelserver.surface.http.exchange import Exchange
from modelserver.surface.http.head import HEADER_LIMIT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

CHUNKED = "Transfer-Encoding: chunked"
BOTH_WAYS = pytest.mark.parametrize("path", ["/hot", "/cold"])


# Requests and responses


async def test_hot_request_gets_its_response_in_one_write(wire: Wire) -> None:
    """Without a task, and the connection stays. What the server itself reads of a head is found however its
    names are written, and the exchange has the names as the client wrote them.
    """
    lines = ("content-LENGTH: 2", "Content-Type: text/plain", "CONTENT-ENCODING: gzip", "x-Request-ID: mine",
             "X-Request-Timeout-Ms: 250")  # fmt: skip
    written = wire.send(head(*lines) + b"hi")
    exchange = wire.hot.exchanges[0]

    assert written.startswith(b"HTTP/1.1 200 OK\r\nx-request-id: mine\r\n")
    assert written.endswith(b"content-length: 2\r\nconnection: keep-alive\r\n\r\nhi")
    assert not wire.transport.closed
    assert wire.listener.tasks == set()
    assert wire.responses == [("127.0.0.1:5000", "POST", "/hot", "1.1", 200)]
    assert exchange.headers[1:3] == [(b"content-LENGTH", b"2"), (b"Content-Type", b"text/plain")]
    assert (exchange.announced, exchange.content_type, exchange.encoding, exchange.deadline_ms) == (
        2, "text/plain", b"gzip", 250
    )  # fmt: skip
    # A connection that stays open keeps nothing of a request that was answered.
    assert exchange.body == b""


async def test_failed_request_closes_the_connection(busy: Wire) -> None:
    """As in TorchServe, a status of 400 and above does; later replies to the exchange are dropped."""
    busy.send(post())
    busy.hot.exchanges[0].fail(BadRequest("no"))
    busy.hot.exchanges[0].reply(200, b"two")

    assert busy.statuses == [400]
    assert b"connection: close\r\n\r\n" in busy.transport.written
    assert busy.transport.closed
    assert len(busy.responses) == 1


async def test_failing_endpoint_is_answered_500(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    """An endpoint that raises is the server's fault; the log says why."""
    wire.send(post(path="/hot/bug"))

    assert wire.statuses == [500]
    assert "ZeroDivisionError" in caplog.text


async def test_request_of_http_1_0_needs_no_host(wire: Wire) -> None:
    """Unlike one of HTTP/1.1."""
    assert wire.send(b"GET /hot HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


async def test_client_gets_permission_to_send_at_once(wire: Wire) -> None:
    """If it waits for it."""
    assert wire.send(head("Content-Length: 2", "Expect: 100-continue")) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert wire.send(b"hi").endswith(b"hi")


async def test_pipelined_requests_are_answered_in_order(busy: Wire) -> None:
    """Each when it is its turn (F16)."""
    busy.send(post(b"a") + post(b"b") + post(b"c"))
    assert [exchange.body for exchange in busy.hot.exchanges] == [b"a"]

    for turn in range(3):
        busy.hot.exchanges[turn].reply(200, busy.hot.exchanges[turn].body)
    bodies = [part[-1:] for part in busy.transport.written.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"a", b"b", b"c"]


async def test_endpoint_learns_that_its_client_has_left(busy: Wire) -> None:
    """Once, and its late response goes nowhere (F37); not of one that leaves after its response."""
    left: list[str] = []
    after = Wire()
    after.hot.at_once = False
    for wire in (busy, after):
        wire.send(post())
        wire.hot.exchanges[0].on_disconnect = lambda: left.append("left")
    after.hot.exchanges[0].reply(200, b"")
    for wire in (busy, after):
        wire.protocol.connection_lost(None)
    busy.hot.exchanges[0].reply(200, b"late")

    assert left == ["left"]
    assert busy.transport.written == b""
    assert busy.responses[-1][4] == 200


@pytest.mark.parametrize("path", ["/hot", "/cold", "/none"])
@pytest.mark.parametrize("line", ["Connection: Close", "CONNECTION: x , CLOSE, y", "X: y"])
async def test_response_says_once_whether_the_connection_stays(wire: Wire, path: str, line: str) -> None:
    """And that is so."""
    wire.send(head("Content-Length: 0", line, path=path))
    await settle()

    closes = line != "X: y" or path == "/none"
    assert wire.transport.written.count(b"connection: ") == 1
    assert (b"connection: close\r\n" if closes else b"connection: keep-alive\r\n") in wire.transport.written
    assert wire.transport.closed == closes


async def test_connection_ends_at_shutdown_once_it_is_idle(wire: Wire, busy: Wire) -> None:
    """An idle one at once, a busy one behind its response, which says so."""
    application = Wire()
    busy.send(post())
    application.send(post(path="/cold"))
    for each in (wire, busy, application):
        each.protocol.shutdown()
    assert (wire.transport.closed, busy.transport.closed) == (True, False)
    busy.hot.exchanges[0].reply(200, b"done")
    await settle()

    assert busy.transport.written.endswith(b"connection: close\r\n\r\ndone")
    assert application.transport.written.endswith(b"connection: close\r\n\r\n")
    assert busy.transport.closed
    assert application.transport.closed


async def test_body_is_put_together_from_many_pieces(busy: Wire) -> None:
    """However it is cut; many small pieces take no object each."""
    bodies = [b"x" * size for size in (1, 2, 3, 5000, 1, 4096, 4095, 2)]
    busy.listener.max_body = 1 << 20
    busy.send(head(CHUNKED), *map(chunk, bodies), chunk(b"yy") * 1000)
    incoming = busy.protocol.cycle
    assert isinstance(incoming, Exchange)
    assert len(incoming.pieces) < 8
    busy.send(b"0\r\n\r\n")

    assert busy.hot.exchanges[0].body == b"".join(bodies) + b"yy" * 1000


# Limits


async def test_body_announced_above_the_limit_gets_413(wire: Wire) -> None:
    """Before it comes; the client may read why while it still sends (F5)."""
    written = wire.send(head(f"Content-Length: {LIMIT + 1}"))

    assert written.startswith(b"HTTP/1.1 413 ")
    assert wire.transport.ended
    assert not wire.transport.closed
    assert wire.send(b"x" * (LIMIT + 1)) == b""


@BOTH_WAYS
async def test_body_of_exactly_the_limit_is_served(wire: Wire, path: str) -> None:
    """On both ways."""
    wire.send(head(f"Content-Length: {LIMIT}", path=path), b"x" * LIMIT)
    await settle()

    assert wire.statuses == [200]


async def test_chunked_body_gets_413_once_it_is_above_the_limit(wire: Wire) -> None:
    """It is not read to its end (F5)."""
    part = chunk(b"x" * 256)

    assert wire.send(head(CHUNKED), part, part, part) == b""
    assert wire.send(part).startswith(b"HTTP/1.1 413 ")
    assert wire.hot.exchanges == []


@pytest.mark.parametrize(
    ("behind", "status"),
    [
        (post(b"x" * (LIMIT + 1), "/cold"), 413),
        (head(CHUNKED) + chunk(b"x" * 256) * 5 + b"0\r\n\r\n", 413),
        (head(CHUNKED) + b"zz\r\n", 400),
    ],
    ids=["application", "chunks", "garbage"],
)
async def test_waiting_request_is_refused_in_its_turn(busy: Wire, behind: bytes, status: int) -> None:
    """A pipelined request is held to the limits too (F5), and takes nothing from the one before it."""
    assert busy.send(post() + behind) == b""
    busy.hot.exchanges[0].reply(200, b"first")

    assert busy.statuses == [200, status]
    assert busy.responses[-1][4] == status
    assert busy.is_ending
    assert len(busy.hot.exchanges) == 1


@BOTH_WAYS
@pytest.mark.parametrize("begun", [b"", b"hello"])
@pytest.mark.parametrize("piece", [1, 3, 1000])
@pytest.mark.parametrize("size", [b"8000000000000000", b"%x" % (LIMIT + 1), b"00000001fFfF;a=b"])
async def test_chunk_announced_above_the_limit_gets_413(
    wire: Wire, path: str, begun: bytes, piece: int, size: bytes
) -> None:
    """Before it comes, however its size is cut (F5)."""
    sent = head(CHUNKED, path=path) + chunk(b"first") + size + b"\r\n" + begun
    wire.send(*pieces(sent, piece))
    await settle()

    assert wire.statuses == [413]


async def test_body_may_look_like_the_size_of_a_large_chunk(wire: Wire) -> None:
    """So may an extension of a chunk."""
    body = b"\r\nffffffff\r\n"
    extension = b";" + b"0" * 100 + b"ffffffff\r\n"
    sent = head(CHUNKED) + b"%x" % len(body) + extension + body
    wire.send(*pieces(sent, 16), b"\r\n0\r\n\r\n")

    assert wire.statuses == [200]
    assert wire.transport.written.endswith(body)


async def test_large_chunk_takes_nothing_from_the_request_before_it(busy: Wire) -> None:
    """A pipelined request with such a chunk waits for its turn."""
    assert busy.send(post() + head(CHUNKED) + b"ffffffff\r\n") == b""
    busy.hot.exchanges[0].reply(200, b"first")

    assert busy.statuses == [200]


@pytest.mark.parametrize(
    "request_head",
    [
        head("X-Long: " + "x" * HEADER_LIMIT),
        head(*[f"X-{n}: {n}" for n in range(8000)]),
        head(path="/hot?" + "q" * HEADER_LIMIT),
        b"GET /hot HTTP/1.1\r\nX-Long: " + b"x" * (HEADER_LIMIT + 4000),
    ],
    ids=["one long", "many", "target", "without end"],
)
@pytest.mark.parametrize("size", [4000, 1 << 20], ids=["pieces", "at once"])
async def test_head_above_the_limit_gets_431(wire: Wire, request_head: bytes, size: int) -> None:
    """Whether it comes in one piece or in many (F14)."""
    wire.send(*pieces(request_head, size))
    await settle()

    assert wire.statuses == [431]
    assert wire.hot.exchanges == []


@BOTH_WAYS
@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"2\r\nhi\r\n0\r\n", b"x: " + b"y" * 8192 + b"\r\n"),
        (b"2\r\nhi\r\n0\r\n", b"x" * 8192),
        (b"2;a=", b"x" * 8192),
    ],
    ids=["many trailers", "one trailer", "extension"],
)
async def test_trailers_and_extensions_above_the_limit_get_431(
    wire: Wire, path: str, begin: bytes, piece: bytes
) -> None:
    """They are held to the limit of heads."""
    wire.send(head(CHUNKED, path=path), begin)
    wire.send(*[piece] * (HEADER_LIMIT // 8192 + 1))

    assert wire.statuses == [431]
    assert wire.hot.exchanges == []


@pytest.mark.parametrize("before", [[], [200]], ids=["first", "after a response"])
async def test_empty_lines_above_the_limit_get_431(wire: Wire, before: list[int]) -> None:
    """Where a request should begin they are held to the limit of heads (F14)."""
    wire.listener.max_body = 1 << 20
    if before:
        wire.send(post())
    wire.send(*[b"\r\n" * 2048] * 18)

    assert wire.statuses == [*before, 431]
    assert wire.transport.ended


async def test_request_gets_503_without_room_for_responses(wire: Wire) -> None:
    """On a hot route; the application still responds."""
    wire.listener.outgoing.add(wire.listener.outgoing.limit)
    refused = wire.send(post(b"a"))
    other = Wire(listener=wire.listener)
    other.send(post(b"a", "/cold"))
    await settle()

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"max_outgoing_bytes=" in refused
    assert b"retry-after: 1" in refused
    assert wire.hot.exchanges == []
    assert other.statuses == [200]


@BOTH_WAYS
async def test_request_gets_503_where_too_much_comes_in(wire: Wire, path: str) -> None:
    """Over all connections; others go on, and room comes back (F31)."""
    wire.listener.intake.limit = 1500
    other, third = Wire(listener=wire.listener), Wire(listener=wire.listener)
    begin = head("Content-Length: 1000", path=path)
    assert wire.send(begin, b"x" * 900) == b""
    await settle()

    refused = other.send(begin, b"x" * 900)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"max_incoming_bytes=1500" in refused
    assert b"retry-after: 1" in refused
    wire.send(b"x" * 100)
    await settle()
    assert wire.statuses == [200]
    assert wire.listener.intake.held == 0
    third.send(begin, b"x" * 900)
    assert wire.listener.intake.held > 900
    third.protocol.connection_lost(None)
    assert wire.listener.intake.held == 0


# What is not HTTP, or not clearly


@BOTH_WAYS
@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (400, b"hello\r\n\r\n"),
        (400, b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n"),
        (400, head(path="x:80", method="CONNECT")),
        (400, head(path="http://x", method="GET")),
        (400, ["Content-Length: -1"]),
        (400, ["Content-Length: 1", "Content-Length: 2"]),
        (400, ["Content-Length: " + "0" * 5000 + "2"]),
        (400, ["Host: y", "Content-Length: 2"]),
        (400, [CHUNKED, CHUNKED]),
        (501, ["Transfer-Encoding: gzip, chunked"]),
        (505, b"GET PATH HTTP/0.9\r\nHost: x\r\n\r\n"),
        (505, b"GET PATH HTTP/2.0\r\nHost: x\r\n\r\n"),
        (505, b"GET PATH\r\nHost: x\r\n\r\n"),
        (400, b"GET PATH HTTP/1.1\r\n\r\n"),
        (400, b"POST PATH HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ],
    ids=[
        "words", "bytes", "CONNECT", "no path", "negative length", "two lengths", "endless number",
        "two hosts", "chunked twice", "gzip", "0.9", "2.0", "no version", "no host", "chunks of 1.0",
    ],
)  # fmt: skip
async def test_doubtful_head_is_refused(
    wire: Wire, path: str, status: int, sent: bytes | list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """At once, with the status in the body too, and the connection ends."""
    sent = sent.replace(b"PATH", path.encode()) if isinstance(sent, bytes) else head(*sent, path=path)
    wire.send(sent)

    assert wire.statuses == [status]
    assert b'"code": %d' % status in wire.transport.written
    assert wire.is_ending
    assert wire.send(post()) == b""
    assert wire.hot.exchanges == []
    assert caplog.text == ""


@pytest.mark.parametrize("path", ["/hot/v1", "/v1/models/m:predict"])
@pytest.mark.parametrize("line", [f"Content-Length: {LIMIT + 1}", "Content-Length: x"])
async def test_refusal_speaks_the_protocol_of_its_route(wire: Wire, path: str, line: str) -> None:
    """Where V1 is spoken a refusal has V1's ``error`` beside the other fields."""
    refusal = wire.send(head(line, path=path))

    assert (b'"error": ' in refusal) == path.startswith("/v1/")


async def test_garbage_takes_no_response_from_requests_before_it(busy: Wire) -> None:
    """After the last of them the connection ends."""
    assert busy.send(post(b"a") + post(b"b") + b"garbage\r\n\r\n") == b""
    busy.hot.exchanges[0].reply(200, b"first")
    assert not busy.transport.closed
    busy.hot.exchanges[1].reply(200, b"second")

    assert busy.statuses == [200, 200]
    assert b"connection: close\r\n\r\nsecond" in busy.transport.written
    assert busy.is_ending


@pytest.mark.parametrize(("path", "status"), [("/cold", 400), ("/early", 200)])
async def test_garbage_in_a_body_of_the_application_gets_400(
    wire: Wire, path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Once: the application's response goes nowhere, or came before and stays the only one."""
    wire.send(head(CHUNKED, path=path))
    await settle()
    wire.send(b"zz\r\n")
    await settle()

    assert wire.statuses == [status]
    assert wire.is_ending
    assert caplog.text == ""


UPGRADES = [
    ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQ"),
    ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAA=="),
    ("CONNECTION: keep-alive, uPGRADE", "UPGRADE: TLS/1.0"),
]


@BOTH_WAYS
@pytest.mark.parametrize("offer", UPGRADES, ids=["h2c", "websocket", "TLS"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("size", [1, 7, 10_000], ids=["bytes", "pieces", "whole"])
async def test_offer_to_upgrade_is_ignored(
    wire: Wire, path: str, offer: tuple[str, ...], chunked: bool, size: int
) -> None:
    """Such a request is an ordinary one: its body is its body, and what follows it the next request."""
    inner = post(b"no", "/hot/smuggled")
    if chunked:
        first = head(*offer, CHUNKED, path=path) + chunk(inner) + b"0\r\n\r\n"
    else:
        first = head(*offer, f"Content-Length: {len(inner)}", path=path) + inner
    sent = first + head(*offer, "Content-Length: 4", path=path) + b"next" + post(b"last")
    for piece in pieces(sent, size):
        wire.send(piece)
        if size > 1:
            await settle()
    for _ in range(3):
        await settle()

    responses = wire.transport.written.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [each.partition(b"\r\n\r\n")[2] for each in responses] == [inner, b"next", b"last"]
    assert [each[2] for each in wire.responses] == (["/hot"] * 3 if path == "/hot" else ["/hot"])
    assert not wire.transport.closed


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Transfer-Encoding: gzip, chunked", 501),
        ("Host: y", 400),
        ("Content-Length: " + "0" * 5000 + "1", 400),
        ("X-Long: " + "x" * HEADER_LIMIT, 431),
    ],
    ids=["gzip", "two hosts", "endless number", "too long"],
)
async def test_offer_to_upgrade_hides_no_fault(wire: Wire, line: str, status: int) -> None:
    """A head that is refused without an offer is refused with one."""
    wire.send(head("Connection: Upgrade", "Upgrade: h2c", line))

    assert wire.statuses == [status]


@BOTH_WAYS
async def test_trailers_are_dropped(wire: Wire, path: str) -> None:
    """What a client says behind a chunked body is no header of its request."""
    trailers = b"x-request-id: other\r\nAuthorization: Bearer stolen\r\nHost: y\r\n"
    wire.send(head(CHUNKED, path=path), chunk(b"hi") + b"0\r\n" + trailers + b"\r\n")
    await settle()

    assert wire.transport.written.endswith(b"hi")
    assert b"other" not in wire.transport.written
    for exchange in wire.hot.exchanges:
        assert exchange.headers == [(b"Host", b"x"), (b"Transfer-Encoding", b"chunked")]
    assert wire.send(post(b"next")).endswith(b"next")


# Slow clients


@pytest.mark.parametrize(
    ("sent", "later", "limit"),
    [(b"GET /hot HTTP/1.1\r\nX-", b"Slow: 1\r\n", 10), (post(), b"", 20)],
    ids=["head", "idle"],
)
async def test_connection_is_closed_while_nothing_whole_comes(
    wire: Wire, sent: bytes, later: bytes, limit: int
) -> None:
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
async def test_slow_body_ends_the_connection(wire: Wire, size: int, closed: bool) -> None:
    """If less than the least progress comes in ``receive_timeout`` seconds (F15); a large body may take as
    long as it likes while it comes steadily.
    """
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


async def test_client_that_waits_for_its_response_is_not_slow(busy: Wire) -> None:
    """It owes nothing."""
    busy.send(post())
    busy.listener.check(time.monotonic() + 1000)

    assert not busy.transport.closed


async def test_requests_wait_for_a_client_that_does_not_read(wire: Wire) -> None:
    """What is owed to it cannot pile up."""
    wire.protocol.pause_writing()
    wire.send(post(b"a") * 3)
    assert wire.hot.exchanges == []
    assert not wire.transport.reading

    wire.protocol.resume_writing()
    assert len(wire.hot.exchanges) == 3
    assert wire.transport.reading


async def test_client_that_never_reads_is_cut_off(wire: Wire) -> None:
    """Once the limit is over, without waiting for it to take what was written."""
    wire.protocol.pause_writing()
    wire.transport.unsent = 100_000
    wire.send(post(b"a"))
    started = time.monotonic()
    for moment in (0.0, 19.0):
        wire.protocol.check(started + moment)
        assert not wire.transport.aborted
    wire.protocol.check(started + 21.0)

    assert wire.transport.aborted


async def test_slow_reader_is_not_cut_off_for_the_rest_of_a_request(busy: Wire) -> None:
    """While that is not being read, and it takes the response steadily."""
    busy.send(post(), head("Content-Length: 9") + b"x", b"x")
    busy.protocol.pause_writing()
    busy.transport.unsent = 1_000_000
    busy.hot.exchanges[0].reply(200, b"large")
    started = time.monotonic()
    for moment in range(0, 100, 5):
        busy.protocol.check(started + moment)
        busy.transport.unsent -= 25_000

    assert not busy.transport.closed


# Large pieces


@BOTH_WAYS
async def test_large_request_behind_another_is_read_in_its_turn(busy: Wire, path: str) -> None:
    """What came in one piece with the request before it was put off."""
    busy.listener.max_body = 1 << 20
    body = b"x" * 100_000
    busy.send(post(b"a") + post(body, path))
    busy.hot.exchanges[0].reply(200, b"first")
    await settle()

    if path == "/hot":
        busy.hot.exchanges[1].reply(200, busy.hot.exchanges[1].body)
    assert busy.statuses == [200, 200]
    assert busy.transport.written.endswith(body)
    assert busy.transport.reading


@pytest.mark.parametrize("size", [100, 100_000])
async def test_no_more_is_read_behind_a_waiting_request(busy: Wire, size: int) -> None:
    """Where the application of the request before it lets the transport read on, one piece comes at most."""
    busy.send(post() + head(CHUNKED))
    for _ in range(3):
        busy.protocol.resume_reading()
        busy.send(chunk(b"x" * size))
        assert not busy.transport.reading


@BOTH_WAYS
async def test_a_thousand_requests_in_one_piece_are_answered_in_order(busy: Wire, path: str) -> None:
    """They are parsed a few at a time, between those of others."""
    count = 1000
    busy.send(*pieces(b"".join(post(b"%04d" % number, path) for number in range(count)), 30_000))
    assert len(busy.protocol._pipeline) < 500
    assert not busy.transport.reading

    for _ in range(20 * count):
        if busy.hot.exchanges:
            exchange = busy.hot.exchanges.pop()
            exchange.reply(200, exchange.body)
        await asyncio.sleep(0)
        if busy.transport.written.endswith(b"%04d" % (count - 1)):
            break
    await settle()

    bodies = [part[-4:] for part in busy.transport.written.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"%04d" % number for number in range(count)]
    assert busy.transport.reading


async def test_thousands_of_chunks_in_one_piece_take_several_turns_of_the_loop(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes next waits."""
    monkeypatch.setattr("modelserver.surface.http.connection._TURN", 0.0)
    wire.listener.max_body = 1 << 20
    wire.send(head(CHUNKED), chunk(b"ab") * 30_000)
    incoming = wire.protocol.cycle
    assert incoming is not None
    assert incoming.received < 5000
    assert not wire.transport.reading

    wire.send(chunk(b"cd") + b"0\r\n\r\n")
    for _ in range(30):
        await asyncio.sleep(0)
    assert wire.transport.written.endswith(b"ab" * 30_000 + b"cd")
    assert wire.transport.reading


# The end of a connection


@pytest.mark.parametrize(
    ("path", "line", "status"), [("/none", "X: y", 404), ("/early", "Connection: close", 200)]
)
async def test_sending_side_ends_first(wire: Wire, path: str, line: str, status: int) -> None:
    """Where a client still sends when its last response is written, the rest is received and dropped."""
    wire.send(head("Content-Length: 900", line, path=path), b"x" * 100)
    await settle()

    assert wire.statuses == [status]
    assert wire.transport.ended
    assert not wire.transport.closed
    assert wire.transport.reading
    assert wire.listener.intake.held == 0
    assert wire.send(b"x" * 800 + post()) == b""
    assert not wire.protocol.eof_received()


async def test_tls_connection_ends_with_the_request_at_the_latest() -> None:
    """No half of it can end; the rest is received as well."""
    for sent in (head("Content-Length: 900", path="/none"), head(f"Content-Length: {LIMIT + 1}")):
        secured = Wire(half_closes=False)
        secured.send(sent, b"x" * 100)
        await settle()
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


async def test_rest_of_a_request_is_bounded(wire: Wire) -> None:
    """What follows the last response is dropped up to the limits of a body and of the time for a request."""
    many = Wire()
    for each in (wire, many):
        each.send(head("Content-Length: 900", path="/none"), b"x")
    await settle()
    started = time.monotonic()
    for moment in range(10):
        wire.send(b"x")
        wire.listener.check(started + moment)
        assert not wire.transport.closed
    wire.send(b"x")
    wire.listener.check(started + 11)
    assert wire.transport.closed

    many.send(*[b"x" * 1000] * 66)
    assert not many.transport.closed
    many.send(b"x" * 1000)
    assert many.transport.closed


async def test_client_may_read_its_last_response_steadily(wire: Wire) -> None:
    """It is not cut off meanwhile, whether it sends or not."""
    wire.send(head("Content-Length: 900", path="/none"), b"x")
    await settle()
    wire.transport.unsent = 1_000_000
    started = time.monotonic()
    for moment in range(0, 100, 5):
        wire.listener.check(started + moment)
        wire.transport.unsent -= 40_000
    assert not wire.transport.closed


async def test_body_that_nobody_waits_for_is_bounded(wire: Wire) -> None:
    """What follows a response that came before the body is dropped, but not without end."""
    wire.send(head(CHUNKED, path="/early"))
    await settle()
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
async def test_requests_behind_a_failed_one_are_dropped(busy: Wire, rest: bytes) -> None:
    """And do not cost the client its response."""
    busy.send(post() + rest)
    busy.hot.exchanges[0].fail(BadRequest("no"))

    assert busy.transport.ended
    assert not busy.transport.closed
    busy.protocol.pause_writing()
    busy.protocol.resume_writing()
    assert len(busy.hot.exchanges) == 1
    assert busy.statuses == [400]


# Memory


@contextlib.contextmanager
def uncollected() -> Iterator[Callable[[], list[object]]]:
    """Yields what lists the connections and requests created since. Nobody collects circles."""
    kinds = (HttpProtocol, Exchange, AsgiCycle)
    gc.disable()
    gc.freeze()
    try:
        yield lambda: [each for each in gc.get_objects() if isinstance(each, kinds)]
    finally:
        gc.enable()


def after(*sent: bytes) -> Callable[[Wire, str], Awaitable[None]]:
    """A client that leaves after it has sent these pieces."""

    async def end(wire: Wire, path: str) -> None:
        wire.send(*(piece.replace(b"/hot", path.encode()) for piece in sent))
        await settle()

    return end


async def beyond_the_intake(wire: Wire, path: str) -> None:
    wire.listener.intake.limit = 500
    wire.send(head("Content-Length: 900", path=path), b"x" * 800)
    assert wire.statuses == [503]


async def cut_off_while_it_sends(wire: Wire, path: str) -> None:
    wire.send(post(b"whole", path)[:-1])
    await settle()
    wire.listener.check(time.monotonic() + 11)
    assert wire.transport.closed


async def cut_off_while_it_reads(wire: Wire, path: str) -> None:
    """With another request behind, and part of a third."""
    wire.send(post(b"whole", path))
    await settle()
    wire.protocol.pause_writing()
    wire.transport.unsent = 100_000
    wire.send(post(b"other", path), post(b"whole", path)[:-1])
    wire.listener.check(time.monotonic())
    wire.listener.check(time.monotonic() + 21)
    assert wire.transport.aborted


async def reset_before_its_response(wire: Wire, path: str) -> None:
    """With another request behind."""
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
    """The handler fails between two parts."""
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
async def test_nothing_outlives_its_connection(
    path: str, end: Callable[[Wire, str], Awaitable[None]]
) -> None:
    """Connection, requests and bodies are gone when the connection is, without the collector of circles,
    however it ended.
    """
    with uncollected() as alive:
        wire = Wire()
        await end(wire, path)
        assert alive() != []
        await settle()
        if wire.protocol in wire.listener.connections:
            wire.protocol.connection_lost(None)
        wire.hot.exchanges.clear()
        del wire.protocol
        await settle()
        assert alive() == []
        assert wire.listener.connections == set()
        assert wire.listener.intake.held == 0
        assert wire.listener.outgoing.held == 0
