from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from typing import TYPE_CHECKING

import pytest
from tests.surface.http.wire import LIMIT, Wire, head, settle

from modelserver.errors import BadRequest
from modelserver.surface.http.asgi_cycle import AsgiCycle
from modelserver.surface.http.connection import MIN_PROGRESS, HttpProtocol
from modelserver.surface.http.exchange import Exchange
from modelserver.surface.http.head import HEADER_LIMIT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


@pytest.fixture
async def wire() -> Wire:
    return Wire()


async def test_short_way(wire: Wire) -> None:
    """A request on a hot route is answered in one write, without a task, and the connection stays."""
    answer = wire.send(head("Content-Length: 5", "X-Own: 1") + b"hello")

    assert answer.startswith(b"HTTP/1.1 200 OK\r\nx-request-id: id-0\r\n")
    assert answer.endswith(b"content-length: 5\r\nconnection: keep-alive\r\n\r\nhello")
    assert not wire.transport.closed
    assert wire.listener.tasks == set()
    assert wire.responses == [("127.0.0.1:5000", "POST", "/hot", "1.1", 200)]


async def test_long_way(wire: Wire) -> None:
    """Other routes go through the application."""
    wire.send(head("Content-Length: 2", path="/cold") + b"hi")
    await settle()

    assert wire.transport.written.endswith(b"\r\n\r\nhi")
    assert wire.hot.exchanges == []


async def test_names_keep_their_case(wire: Wire) -> None:
    """Header names reach the exchange as the client wrote them."""
    wire.send(head("X-MiXed: Yes", "Content-Length: 0"))

    exchange = wire.hot.exchanges[0]
    assert exchange.headers[1:] == [(b"X-MiXed", b"Yes"), (b"Content-Length", b"0")]


async def test_headers_that_the_server_reads(wire: Wire) -> None:
    """What the server itself reads of a head is found however its names are written."""
    wire.send(
        head(
            "content-LENGTH: 2",
            "Content-Type: text/plain",
            "CONTENT-ENCODING: gzip",
            "x-Request-ID: mine",
            "X-Request-Timeout-Ms: 250",
        )
        + b"hi"
    )

    read = wire.hot.exchanges[0]
    assert (read.announced, read.content_type, read.encoding, read.deadline_ms) == (
        2,
        "text/plain",
        b"gzip",
        250,
    )
    assert wire.hot.given_ids == ["mine"]


async def test_error_closes(wire: Wire) -> None:
    """As in TorchServe, an answer of 400 and above closes the connection."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0"))
    wire.hot.exchanges[0].fail(BadRequest("no"))

    assert wire.transport.written.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"connection: close\r\n\r\n" in wire.transport.written
    assert wire.transport.closed


async def test_second_reply(wire: Wire) -> None:
    """An exchange is answered once; later replies are dropped."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0"))
    wire.hot.exchanges[0].reply(200, b"one")
    written = wire.transport.written
    wire.hot.exchanges[0].reply(200, b"two")

    assert wire.transport.written == written
    assert len(wire.responses) == 1


async def test_announced_too_large(wire: Wire) -> None:
    """A body announced over the limit is refused before it comes; the client may read why
    while it still sends (F5).
    """
    answer = wire.send(head(f"Content-Length: {LIMIT + 1}"))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert wire.transport.ended
    assert not wire.transport.closed
    assert wire.send(b"x" * (LIMIT + 1)) == b""


async def test_announced_too_large_behind_another(wire: Wire) -> None:
    """A pipelined request of the long way whose body is too large is refused when it is its turn."""
    wire.hot.at_once = False
    wire.send(
        head("Content-Length: 0") + head(f"Content-Length: {LIMIT + 1}", path="/x") + b"x" * (LIMIT + 1)
    )
    assert wire.transport.written == b""
    wire.hot.exchanges[0].reply(200, b"first")

    first, refusal = wire.transport.written.split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200 OK")
    assert refusal.startswith(b"413 ")
    assert wire.responses[-1][1:] == ("POST", "/x", "1.1", 413)


@pytest.mark.parametrize("path", ["/hot", "/cold"])
async def test_exactly_the_limit(wire: Wire, path: str) -> None:
    """A body of exactly the limit is served."""
    wire.send(head(f"Content-Length: {LIMIT}", path=path), b"x" * LIMIT)
    await settle()

    assert wire.transport.written.startswith(b"HTTP/1.1 200 ")


async def test_chunks_too_large(wire: Wire) -> None:
    """A chunked body is refused as soon as it is over the limit (F5)."""
    chunk = b"100\r\n" + b"x" * 256 + b"\r\n"

    assert wire.send(head("Transfer-Encoding: chunked"), chunk, chunk, chunk) == b""
    assert wire.send(chunk).startswith(b"HTTP/1.1 413 ")
    assert wire.hot.exchanges == []


async def test_pipelined_body_too_large(wire: Wire) -> None:
    """A chunked body that came while another request was being answered is held to the limit too (F5)."""
    wire.hot.at_once = False
    chunks = b"".join(b"100\r\n" + b"x" * 256 + b"\r\n" for _ in range(5)) + b"0\r\n\r\n"
    wire.send(head("Content-Length: 0") + head("Transfer-Encoding: chunked") + chunks)
    wire.hot.exchanges[0].reply(200, b"first")

    assert b"first" in wire.transport.written
    assert b"HTTP/1.1 413 " in wire.transport.written
    assert len(wire.hot.exchanges) == 1


@pytest.mark.parametrize(
    "request_head",
    [
        head("X-Long: " + "x" * HEADER_LIMIT),
        head(*[f"X-{n}: {n}" for n in range(8000)]),
        head(path="/hot?" + "q" * HEADER_LIMIT),
    ],
    ids=["one long", "many", "target"],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_head_too_large(wire: Wire, request_head: bytes, at_once: bool) -> None:
    """A head over the limit is refused with 431, whether it comes in one piece or in many (F14)."""
    size = len(request_head) if at_once else 4000
    wire.send(*[request_head[start : start + size] for start in range(0, len(request_head), size)])
    await settle()

    answer = wire.transport.written
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert wire.hot.exchanges == []


async def test_head_without_end(wire: Wire) -> None:
    """A header that never ends is refused once it is over the limit (F14)."""
    pieces = [b"x" * 1000] * (HEADER_LIMIT // 1000 + 1)

    assert wire.send(b"GET /hot HTTP/1.1\r\nX-Long: ", *pieces).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        head(path="x:80", method="CONNECT"),
        head("Content-Length: -1"),
        head("Content-Length: 1", "Content-Length: 2"),
    ],
    ids=["words", "bytes", "CONNECT", "negative length", "two lengths"],
)
async def test_no_http(wire: Wire, garbage: bytes) -> None:
    """What is no HTTP, or asks for what is none of this server's business, is answered 400 and closed."""
    answer = wire.send(garbage)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"message": "Invalid HTTP message."' in answer
    assert wire.transport.closed or wire.transport.ended
    assert wire.send(head("Content-Length: 0")) == b""


async def test_garbage_after_good_requests(wire: Wire) -> None:
    """Garbage behind good requests takes none of their answers; after the last of them the
    connection ends.
    """
    wire.hot.at_once = False
    good = head("Content-Length: 1") + b"a" + head("Content-Length: 1") + b"b"

    assert wire.send(good + b"garbage\r\n\r\n") == b""
    wire.hot.exchanges[0].reply(200, b"first")
    assert not wire.transport.closed
    wire.hot.exchanges[1].reply(200, b"second")
    assert wire.transport.written.count(b"HTTP/1.1 200 OK") == 2
    assert b"connection: close\r\n\r\nsecond" in wire.transport.written
    assert wire.transport.closed or wire.transport.ended


async def test_garbage_in_a_body_of_the_long_way(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    """A body that turns out to be no HTTP is answered 400 once; the application's answer goes nowhere."""
    wire.send(head("Transfer-Encoding: chunked", path="/cold"))
    await settle()
    wire.send(b"zz\r\n")
    await settle()

    assert wire.transport.written.startswith(b"HTTP/1.1 400 ")
    assert wire.transport.written.count(b"HTTP/1.1 ") == 1
    assert caplog.text == ""


async def test_garbage_in_a_request_that_waits(wire: Wire) -> None:
    """A request that turns out to be no HTTP while it waits is refused in its turn."""
    wire.hot.at_once = False
    assert wire.send(head("Content-Length: 0") + head("Transfer-Encoding: chunked") + b"zz\r\n") == b""
    wire.hot.exchanges[0].reply(200, b"first")

    first, refusal = wire.transport.written.split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200 OK")
    assert first.endswith(b"first")
    assert refusal.startswith(b"400 ")
    assert wire.transport.ended


async def test_garbage_after_an_early_answer(wire: Wire) -> None:
    """A request that was answered before its body had come gets no second answer when the body is no HTTP."""
    wire.send(head("Transfer-Encoding: chunked", path="/early"))
    await settle()
    wire.send(b"zz\r\n")

    assert wire.transport.written.count(b"HTTP/1.1 ") == 1
    assert wire.transport.closed or wire.transport.ended


@pytest.mark.parametrize("path", ["/hot/v1", "/v1/models/m:predict"])
async def test_refusals_speak_the_protocol_of_their_route(wire: Wire, path: str) -> None:
    """Where V1 is spoken a refusal has V1's ``error`` beside the other fields."""
    too_large = head(f"Content-Length: {LIMIT + 1}", path=path)
    no_http = head("Content-Length: x", path=path)

    for refused in (Wire().send(too_large), Wire().send(no_http)):
        assert (b'"error": ' in refused) == path.startswith("/v1/")


async def test_bug_of_an_endpoint(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    """An endpoint that raises is the server's fault: 500, and the log says why."""
    answer = wire.send(head("Content-Length: 0", path="/hot/bug"))

    assert answer.startswith(b"HTTP/1.1 500 ")
    assert "ZeroDivisionError" in caplog.text


async def test_continue(wire: Wire) -> None:
    """A client that waits for permission to send gets it at once."""
    assert wire.send(head("Content-Length: 2", "Expect: 100-continue")) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert wire.send(b"hi").endswith(b"hi")


async def test_pipelining(wire: Wire) -> None:
    """Pipelined requests are answered in order, each when it is its turn (F16)."""
    wire.hot.at_once = False
    wire.send(
        head("Content-Length: 1") + b"a" + head("Content-Length: 1") + b"b" + head("Content-Length: 1") + b"c"
    )

    assert [exchange.body for exchange in wire.hot.exchanges] == [b"a"]
    for turn in range(3):
        wire.hot.exchanges[turn].reply(200, wire.hot.exchanges[turn].body)
    bodies = [part[-1:] for part in wire.transport.written.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"a", b"b", b"c"]


async def test_pipelining_across_both_ways(wire: Wire) -> None:
    """Hot and other routes take turns on one connection."""
    wire.send(
        head("Content-Length: 1", path="/cold")
        + b"a"
        + head("Content-Length: 1")
        + b"b"
        + head("Content-Length: 1", path="/cold")
        + b"c"
    )
    await settle()

    bodies = [part[-1:] for part in wire.transport.written.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"a", b"b", b"c"]


async def test_client_that_asks_to_close(wire: Wire) -> None:
    """With ``Connection: close`` the answer says so and the connection is closed."""
    answer = wire.send(head("Content-Length: 0", "Connection: close"))

    assert b"connection: close\r\n" in answer
    assert wire.transport.closed


async def test_head_request(wire: Wire) -> None:
    """HEAD gets the length of the body it would have got (F16)."""
    wire.hot.at_once = False
    wire.send(head(method="HEAD"))
    wire.hot.exchanges[0].reply(200, b"12345")

    assert wire.transport.written.endswith(b"content-length: 5\r\nconnection: keep-alive\r\n\r\n")


async def test_disconnect(wire: Wire) -> None:
    """The endpoint hears of a client that leaves, once, and its late answer goes nowhere (F37)."""
    wire.hot.at_once = False
    heard: list[str] = []
    wire.send(head("Content-Length: 0"))
    wire.hot.exchanges[0].on_disconnect = lambda: heard.append("gone")
    wire.protocol.connection_lost(None)
    wire.hot.exchanges[0].reply(200, b"late")

    assert heard == ["gone"]
    assert wire.transport.written == b""
    assert wire.responses[-1][4] == 200


async def test_disconnect_after_the_answer(wire: Wire) -> None:
    """Nobody is told of a client that leaves after its answer."""
    heard: list[str] = []
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0"))
    wire.hot.exchanges[0].on_disconnect = lambda: heard.append("gone")
    wire.hot.exchanges[0].reply(200, b"")
    wire.protocol.connection_lost(None)

    assert heard == []


async def test_slow_head(wire: Wire) -> None:
    """Who has not sent the whole head after ``receive_timeout`` seconds is cut off (F15)."""
    wire.send(b"GET /hot HTTP/1.1\r\nX-")
    began = time.monotonic()
    wire.listener.check(began + 9)
    assert not wire.transport.closed

    wire.send(b"Slow: 1\r\n")
    wire.listener.check(began + 11)
    assert wire.transport.closed


async def test_slow_body(wire: Wire) -> None:
    """Who sends less than the least progress of a body in ``receive_timeout`` seconds is cut off (F15)."""
    wire.listener.max_body = 1 << 20
    wire.send(head("Content-Length: 100000"))
    began = time.monotonic()
    for moment in (5, 9):
        wire.send(b"x")
        wire.listener.check(began + moment)
    assert not wire.transport.closed

    wire.send(b"x")
    wire.listener.check(began + 11)
    assert wire.transport.closed


async def test_steady_body(wire: Wire) -> None:
    """A large body may take as long as it likes while it comes steadily."""
    wire.listener.max_body = 1 << 20
    wire.send(head("Content-Length: 1000000"))
    began = time.monotonic()
    for moment in range(0, 100, 5):
        wire.send(b"x" * MIN_PROGRESS)
        wire.listener.check(began + moment)

    assert not wire.transport.closed


async def test_computing_takes_its_time(wire: Wire) -> None:
    """A client that waits for its answer owes nothing and is not cut off."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0"))
    wire.listener.check(time.monotonic() + 1000)

    assert not wire.transport.closed


async def test_idle_connection(wire: Wire) -> None:
    """An idle connection is closed after ``keep_alive`` seconds, counted from the last answer."""
    wire.send(head("Content-Length: 0"))
    wire.listener.check(time.monotonic() + 19)
    assert not wire.transport.closed

    wire.listener.check(time.monotonic() + 21)
    assert wire.transport.closed


async def test_client_that_does_not_read(wire: Wire) -> None:
    """Requests of a client that takes no answers wait until it does: what is owed to it cannot pile up."""
    wire.protocol.pause_writing()
    one = head("Content-Length: 1") + b"a"
    wire.send(one + one + one)
    assert wire.hot.exchanges == []
    assert not wire.transport.reading

    wire.protocol.resume_writing()
    assert len(wire.hot.exchanges) == 3
    assert wire.transport.reading


@pytest.mark.parametrize("path", ["/hot", "/cold"])
async def test_large_requests_in_a_row(wire: Wire, path: str) -> None:
    """What of a request came in one piece with the one before it, and was put off, is read in its turn."""
    wire.listener.max_body = 1 << 20
    wire.hot.at_once = False
    body = b"x" * 100_000
    wire.send(head("Content-Length: 1") + b"a" + head(f"Content-Length: {len(body)}", path=path) + body)
    wire.hot.exchanges[0].reply(200, b"first")
    await settle()

    if path == "/hot":
        wire.hot.exchanges[1].reply(200, wire.hot.exchanges[1].body)
    assert wire.transport.written.count(b"HTTP/1.1 200 ") == 2
    assert wire.transport.written.endswith(body)
    assert wire.transport.reading


@pytest.mark.parametrize("size", [100, 100_000])
async def test_no_more_is_read_behind_a_request_that_waits(wire: Wire, size: int) -> None:
    """Where the application of the request before it lets the transport read on, one piece comes at most."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0") + head("Transfer-Encoding: chunked"))
    for _ in range(3):
        wire.protocol.resume_reading()
        wire.send(b"%x\r\n%b\r\n" % (size, b"x" * size))
        assert not wire.transport.reading


async def test_a_slow_reader_with_more_to_ask(wire: Wire) -> None:
    """Who takes an answer steadily is not cut off for the rest of a request that is not being read."""
    wire.listener.max_body = 1 << 20
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0"))
    wire.send(head("Content-Length: 9") + b"x", b"x")
    wire.protocol.pause_writing()
    wire.transport.unsent = 1_000_000
    wire.hot.exchanges[0].reply(200, b"large")
    began = time.monotonic()
    for moment in range(0, 100, 5):
        wire.protocol.check(began + moment)
        wire.transport.unsent -= 25_000

    assert not wire.transport.closed


async def test_client_that_never_reads(wire: Wire) -> None:
    """It is cut off once the limit is over, without waiting for it to take what it was sent."""
    wire.protocol.pause_writing()
    wire.transport.unsent = 100_000
    wire.send(head("Content-Length: 1") + b"a")
    began = time.monotonic()
    wire.protocol.check(began)
    wire.protocol.check(began + 19.0)
    assert not wire.transport.aborted
    wire.protocol.check(began + 21.0)

    assert wire.transport.aborted


async def test_shutdown(wire: Wire) -> None:
    """At shutdown an idle connection closes at once, a busy one after its answer."""
    busy = Wire()
    busy.hot.at_once = False
    busy.send(head("Content-Length: 0"))
    for each in (wire, busy):
        each.protocol.shutdown()

    assert wire.transport.closed
    assert not busy.transport.closed
    busy.hot.exchanges[0].reply(200, b"done")
    assert busy.transport.written.endswith(b"connection: close\r\n\r\ndone")
    assert busy.transport.closed


UPGRADES = [
    (
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    ),
    (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ),
    ("CONNECTION: keep-alive, uPGRADE", "UPGRADE: TLS/1.0"),
]


@pytest.mark.parametrize("path", ["/hot", "/cold"])
@pytest.mark.parametrize("offer", UPGRADES, ids=["h2c", "websocket", "TLS"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("size", [1, 7, 10_000], ids=["bytes", "pieces", "whole"])
async def test_an_offer_to_upgrade_is_passed_over(
    wire: Wire, path: str, offer: tuple[str, ...], chunked: bool, size: int
) -> None:
    """Such a request is an ordinary one: its body is its body, and what follows it the next request."""
    inner = head("Content-Length: 2", path="/hot/smuggled") + b"no"
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)
        first = head(*offer, "Transfer-Encoding: chunked", path=path) + body
    else:
        first = head(*offer, f"Content-Length: {len(inner)}", path=path) + inner
    sent = (
        first + head(*offer, "Content-Length: 4", path=path) + b"next" + head("Content-Length: 4") + b"last"
    )
    for start in range(0, len(sent), size):
        wire.send(sent[start : start + size])
        if size > 1:
            await settle()
    for _ in range(3):
        await settle()

    answers = wire.transport.written.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [answer.partition(b"\r\n\r\n")[2] for answer in answers] == [inner, b"next", b"last"]
    assert [said[2] for said in wire.responses] == (["/hot"] * 3 if path == "/hot" else ["/hot"])
    assert not wire.transport.closed


async def test_what_an_offer_must_not_hide(wire: Wire) -> None:
    """A head that is refused without an offer to upgrade is refused with one."""
    offer = ("Connection: Upgrade", "Upgrade: h2c")

    for line in ("Transfer-Encoding: gzip, chunked", "Host: y", "Content-Length: " + "0" * 5000 + "1"):
        answer = Wire().send(head(*offer, line))
        assert answer[9:12] in {b"400", b"501"}, (line, answer)
    assert wire.send(head(*offer, "X-Long: " + "x" * HEADER_LIMIT)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("path", ["/hot", "/cold"])
async def test_trailers_are_dropped(wire: Wire, path: str) -> None:
    """What a client says behind a chunked body is no header of its request."""
    trailers = b"x-request-id: theirs\r\nAuthorization: Bearer stolen\r\nHost: y\r\n"
    wire.send(head("Transfer-Encoding: chunked", path=path), b"2\r\nhi\r\n0\r\n" + trailers + b"\r\n")
    await settle()

    assert wire.transport.written.endswith(b"hi")
    if path == "/hot":
        (exchange,) = wire.hot.exchanges
        assert exchange.headers == [(b"Host", b"x"), (b"Transfer-Encoding", b"chunked")]
        assert wire.hot.given_ids != ["theirs"]
    assert wire.send(head("Content-Length: 4") + b"next").endswith(b"next")


@pytest.mark.parametrize("trailer", [b"x: " + b"y" * 8192 + b"\r\n", b"x" * 8192], ids=["many", "one"])
@pytest.mark.parametrize("path", ["/hot", "/cold"])
async def test_endless_trailers(wire: Wire, path: str, trailer: bytes) -> None:
    """Trailers are held to the limit of heads."""
    wire.send(head("Transfer-Encoding: chunked", path=path), b"2\r\nhi\r\n0\r\n")
    answer = wire.send(*[trailer] * (HEADER_LIMIT // 8192 + 1))

    assert answer.startswith(b"HTTP/1.1 431 ")
    assert wire.hot.exchanges == []


async def test_endless_chunk_extensions(wire: Wire) -> None:
    """So is what stands beside the size of a chunk."""
    wire.send(head("Transfer-Encoding: chunked"), b"2;a=")

    assert wire.send(*[b"x" * 8192] * 9).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("path", ["/hot", "/cold"])
@pytest.mark.parametrize(
    ("status", "lines"),
    [
        (b"400", ("Content-Length: " + "0" * 5000 + "2",)),
        (b"400", ("Host: y", "Content-Length: 2")),
        (b"501", ("Transfer-Encoding: gzip, chunked",)),
        (b"400", ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked")),
    ],
    ids=["endless number", "two hosts", "gzip", "chunked twice"],
)
async def test_heads_that_can_be_read_in_two_ways(
    wire: Wire, path: str, status: bytes, lines: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """They are refused at once, and the connection ends."""
    answer = wire.send(head(*lines, path=path))

    assert answer.startswith(b"HTTP/1.1 " + status), answer
    assert b'"code": ' + status in answer
    assert wire.transport.closed or wire.transport.ended
    assert caplog.text == ""


async def test_who_must_name_a_host() -> None:
    """A request of HTTP/1.1 must, one of HTTP/1.0 need not; that one cannot have a transfer coding."""
    lacking = Wire().send(b"GET /hot HTTP/1.1\r\n\r\n")
    old = Wire().send(b"GET /hot HTTP/1.0\r\n\r\n")
    odd = Wire().send(b"POST /hot HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")

    assert lacking.startswith(b"HTTP/1.1 400 ")
    assert old.startswith(b"HTTP/1.1 200 ")
    assert odd.startswith(b"HTTP/1.1 400 ")


@contextlib.contextmanager
def uncollected() -> Iterator[Callable[[], list[object]]]:
    """Gives what was created since and is kept: connections and requests. Nobody collects circles."""
    kinds = (HttpProtocol, Exchange, AsgiCycle)
    gc.disable()
    gc.freeze()
    try:
        yield lambda: [each for each in gc.get_objects() if isinstance(each, kinds)]
    finally:
        gc.enable()


async def answered(wire: Wire, path: str) -> None:
    """A request with its answer."""
    wire.send(head("Content-Length: 5", path=path) + b"whole")


async def partly_sent(wire: Wire, path: str) -> None:
    """A client that leaves within its body."""
    wire.send(head("Content-Length: 5", path=path) + b"part")


async def chunks_partly_sent(wire: Wire, path: str) -> None:
    """A client that leaves within a chunk."""
    wire.send(head("Transfer-Encoding: chunked", path=path) + b"5\r\npar")


async def announced_too_large(wire: Wire, path: str) -> None:
    """A request that is refused before its body comes, and whose client sends it nevertheless."""
    wire.send(head(f"Content-Length: {LIMIT + 1}", path=path), b"x" * LIMIT)
    assert b"HTTP/1.1 413 " in wire.transport.written


async def too_large(wire: Wire, path: str) -> None:
    """A request that is refused while its body comes."""
    wire.send(head("Transfer-Encoding: chunked", path=path), *[b"100\r\n" + b"x" * 256 + b"\r\n"] * 4)
    await settle()
    # Elsewhere the application counts.
    assert path != "/hot" or b"HTTP/1.1 413 " in wire.transport.written


async def beyond_the_intake(wire: Wire, path: str) -> None:
    """A request that there is no room for."""
    wire.listener.intake.limit = 500
    wire.send(head("Content-Length: 900", path=path), b"x" * 800)
    assert b"HTTP/1.1 503 " in wire.transport.written


async def no_http(wire: Wire, path: str) -> None:
    """A request that is none any more within its body."""
    wire.send(head("Transfer-Encoding: chunked", path=path), b"2\r\nhi\r\nxyz\r\n")
    assert b"HTTP/1.1 400 " in wire.transport.written


async def cut_off_while_it_sends(wire: Wire, path: str) -> None:
    """A client that is slow to send."""
    await partly_sent(wire, path)
    await settle()
    wire.listener.check(time.monotonic() + 11)
    assert wire.transport.closed


async def cut_off_while_it_reads(wire: Wire, path: str) -> None:
    """A client that does not take its answer and asks on."""
    await answered(wire, path)
    await settle()
    wire.protocol.pause_writing()
    wire.transport.unsent = 100_000
    wire.send(head("Content-Length: 5", path=path) + b"other", head("Content-Length: 5", path=path) + b"part")
    wire.listener.check(time.monotonic())
    wire.listener.check(time.monotonic() + 21)
    assert wire.transport.aborted


async def reset_before_its_answer(wire: Wire, path: str) -> None:
    """A client that is gone when its answer is ready, with another request behind."""
    wire.hot.at_once = False
    wire.send((head("Content-Length: 5", path=path) + b"whole") * 2)
    wire.transport.closed = True
    wire.protocol.connection_lost(ConnectionResetError())
    await settle()
    for exchange in wire.hot.exchanges:
        exchange.reply(200, b"late")


async def half_closed(wire: Wire, path: str) -> None:
    """A client that says it will send no more, and is then gone."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 5", path="/hot") + b"whole")
    assert wire.protocol.eof_received()


async def stream_left(wire: Wire, path: str) -> None:
    """A client that is gone between two parts of its answer."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0"))
    [exchange] = wire.hot.exchanges
    exchange.begin(200)
    exchange.send(b"one")
    wire.transport.closed = True
    wire.protocol.connection_lost(ConnectionResetError())
    exchange.send(b"two")
    exchange.end()


async def stream_broken_off(wire: Wire, path: str) -> None:
    """An answer whose handler fails between two parts."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0") + head("Content-Length: 0", path=path))
    [exchange] = wire.hot.exchanges
    exchange.begin(200)
    exchange.send(b"one")
    exchange.end(complete=False)
    assert wire.transport.ended


@pytest.mark.parametrize("path", ["/hot", "/cold"])
@pytest.mark.parametrize(
    "happen",
    [
        answered,
        partly_sent,
        chunks_partly_sent,
        announced_too_large,
        too_large,
        beyond_the_intake,
        no_http,
        cut_off_while_it_sends,
        cut_off_while_it_reads,
        reset_before_its_answer,
        half_closed,
        stream_left,
        stream_broken_off,
    ],
)
async def test_nothing_outlives_its_connection(
    path: str, happen: Callable[[Wire, str], Awaitable[None]]
) -> None:
    """Connection, requests and bodies are gone when the connection is, without the collector of circles,
    however it ended.
    """
    with uncollected() as kept:
        wire = Wire()
        await happen(wire, path)
        assert kept() != []
        await settle()
        if wire.protocol in wire.listener.connections:
            wire.protocol.connection_lost(None)
        wire.hot.exchanges.clear()
        del wire.protocol
        await settle()
        assert kept() == []
        assert wire.listener.connections == set()
        assert wire.listener.intake.held == 0
        assert wire.listener.outgoing.held == 0


async def test_no_request_is_served_without_room_for_answers(wire: Wire) -> None:
    """It is refused with 503 on a hot route, and the application still answers."""
    wire.listener.outgoing.add(wire.listener.outgoing.limit)
    refused = wire.send(head("Content-Length: 1") + b"a")
    other = Wire(listener=wire.listener)
    other.send(head("Content-Length: 1", path="/cold") + b"a")
    await settle()

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"max_outgoing_bytes=" in refused
    assert b"retry-after: 1" in refused
    assert wire.hot.exchanges == []
    assert other.transport.written.startswith(b"HTTP/1.1 200 ")


async def test_bodies_end_with_their_answers(wire: Wire) -> None:
    """A connection that stays open keeps nothing of a request that was answered."""
    wire.send(head("Content-Length: 5") + b"whole")

    assert wire.hot.exchanges[0].body == b""


@pytest.mark.parametrize("path", ["/hot", "/cold"])
async def test_what_comes_in_is_bounded_over_all_connections(wire: Wire, path: str) -> None:
    """The request that exceeds the bound is refused with 503; others go on, and room comes back (F31)."""
    wire.listener.intake.limit = 1500
    other = Wire(listener=wire.listener)
    begin = head("Content-Length: 1000", path=path)
    assert wire.send(begin, b"x" * 900) == b""
    await settle()

    refused = other.send(begin, b"x" * 900)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"max_incoming_bytes=1500" in refused
    assert b"retry-after: 1" in refused
    wire.send(b"x" * 100)
    await settle()
    assert wire.transport.written.startswith(b"HTTP/1.1 200 ")
    assert wire.listener.intake.held == 0
    third = Wire(listener=wire.listener)
    third.send(begin, b"x" * 900)
    assert wire.listener.intake.held > 900
    third.protocol.connection_lost(None)
    assert wire.listener.intake.held == 0


async def test_a_body_that_nobody_waits_for(wire: Wire) -> None:
    """What follows an answer that was given before the body had come is dropped, but not without end."""
    wire.send(head("Transfer-Encoding: chunked", path="/early"))
    await settle()
    chunk = b"100\r\n" + b"x" * 256 + b"\r\n"
    wire.send(chunk)
    assert wire.listener.intake.held == 0
    assert not wire.transport.ended

    wire.send(*[chunk] * 5)
    assert wire.transport.ended


async def test_pieces_of_a_body(wire: Wire) -> None:
    """However a body is cut, it is put together; many small pieces take no object each."""
    pieces = [b"x" * size for size in (1, 2, 3, 5000, 1, 4096, 4095, 2)]
    wire.listener.max_body = 1 << 20
    wire.hot.at_once = False
    wire.send(head("Transfer-Encoding: chunked"))
    for piece in pieces:
        wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    wire.send(b"2\r\nyy\r\n" * 1000)
    incoming = wire.protocol.cycle
    assert isinstance(incoming, Exchange)
    assert len(incoming.pieces) < 8
    wire.send(b"0\r\n\r\n")

    assert wire.hot.exchanges[0].body == b"".join(pieces) + b"yy" * 1000


@pytest.mark.parametrize("path", ["/hot", "/cold"])
async def test_thousands_of_requests_in_one_piece(wire: Wire, path: str) -> None:
    """They are parsed a few at a time, between those of others, and all answered in their order."""
    count = 3000
    sent = b"".join(head("Content-Length: 4", path=path) + b"%04d" % number for number in range(count))
    wire.hot.at_once = False
    wire.send(sent[:100_000], sent[100_000:])
    assert len(wire.protocol._pipeline) < 500
    assert not wire.transport.reading

    for _ in range(20 * count):
        if wire.hot.exchanges:
            exchange = wire.hot.exchanges.pop()
            exchange.reply(200, exchange.body)
        await asyncio.sleep(0)
        if wire.transport.written.endswith(b"%04d" % (count - 1)):
            break
    await settle()

    bodies = [part[-4:] for part in wire.transport.written.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"%04d" % number for number in range(count)]
    assert wire.transport.reading


async def test_thousands_of_chunks_in_one_piece(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that takes long to parse is parsed over several turns of the loop; what comes next waits."""
    monkeypatch.setattr("modelserver.surface.http.connection._TURN", 0.0)
    wire.listener.max_body = 1 << 20
    wire.send(head("Transfer-Encoding: chunked"), b"2\r\nab\r\n" * 30_000)
    incoming = wire.protocol.cycle
    assert isinstance(incoming, Exchange)
    assert incoming.received < 5000
    assert not wire.transport.reading

    wire.send(b"2\r\ncd\r\n0\r\n\r\n")
    for _ in range(30):
        await asyncio.sleep(0)
    assert wire.hot.exchanges[0].body == b""
    assert wire.transport.written.endswith(b"ab" * 30_000 + b"cd")
    assert wire.transport.reading


async def test_the_sending_side_ends_first(wire: Wire) -> None:
    """Where a client still sends when its last answer is written, only the sending side is closed."""
    wire.send(head("Content-Length: 900", path="/none"), b"x" * 100)
    await settle()

    assert wire.transport.written.startswith(b"HTTP/1.1 404 ")
    assert wire.transport.ended
    assert not wire.transport.closed
    assert wire.transport.reading
    assert wire.listener.intake.held == 0
    assert wire.send(b"x" * 800 + head("Content-Length: 0")) == b""
    assert not wire.protocol.eof_received()


async def test_the_sending_side_ends_first_where_the_client_closes(wire: Wire) -> None:
    """So is that of a client that asked to close."""
    wire.send(head("Content-Length: 900", "Connection: close", path="/early"), b"x" * 100)
    await settle()

    assert wire.transport.written.startswith(b"HTTP/1.1 200 ")
    assert wire.transport.ended
    assert not wire.transport.closed


async def test_no_half_of_tls_can_end(wire: Wire) -> None:
    """Over TLS the rest is received as well, and the connection ends with the request at the latest."""
    for sent in (head("Content-Length: 900", path="/none"), head(f"Content-Length: {LIMIT + 1}")):
        secured = Wire(half_closes=False)
        secured.send(sent, b"x" * 100)
        await settle()
        assert b"HTTP/1.1 4" in secured.transport.written
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


async def test_the_rest_of_a_request_is_bounded(wire: Wire) -> None:
    """What follows the last answer is dropped up to the limits of a body and of the time for a request."""
    wire.send(head("Content-Length: 900", path="/none"), b"x")
    await settle()
    began = time.monotonic()
    for moment in range(10):
        wire.send(b"x")
        wire.listener.check(began + moment)
        assert not wire.transport.closed
    wire.send(b"x")
    wire.listener.check(began + 11)
    assert wire.transport.closed

    many = Wire()
    many.send(head("Content-Length: 900", path="/none"), b"x")
    await settle()
    many.send(*[b"x" * 1000] * 66)
    assert not many.transport.closed
    many.send(b"x" * 1000)
    assert many.transport.closed


async def test_the_rest_of_a_request_while_its_answer_is_read(wire: Wire) -> None:
    """A client that takes its last answer steadily is not cut off, whether it sends or not."""
    wire.send(head("Content-Length: 900", path="/none"), b"x")
    await settle()
    wire.transport.unsent = 1_000_000
    began = time.monotonic()
    for moment in range(0, 100, 5):
        wire.listener.check(began + moment)
        wire.transport.unsent -= 40_000
    assert not wire.transport.closed


async def test_an_error_before_other_requests(wire: Wire) -> None:
    """Requests behind one that closes the connection are dropped, and do not cost the client its answer."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0") + head("Content-Length: 0") * 3)
    wire.hot.exchanges[0].fail(BadRequest("no"))

    assert wire.transport.ended
    assert not wire.transport.closed
    wire.protocol.pause_writing()
    wire.protocol.resume_writing()
    assert len(wire.hot.exchanges) == 1


@pytest.mark.parametrize("rest", [head(path="/hot")[:9], head("Host: y", "Content-Length: 9"), b"BAD\r\n"])
async def test_an_error_before_part_of_a_request(wire: Wire, rest: bytes) -> None:
    """So is part of a request, also of one that is refused."""
    wire.hot.at_once = False
    wire.send(head("Content-Length: 0") + rest)
    wire.hot.exchanges[0].fail(BadRequest("no"))

    assert wire.transport.ended
    assert not wire.transport.closed


@pytest.mark.parametrize("path", ["/cold", "/none"])
@pytest.mark.parametrize("line", ["Connection: Close", "Connection: close, x", "CONNECTION: x , CLOSE", ""])
async def test_one_connection_header(wire: Wire, path: str, line: str) -> None:
    """An answer of the application says once whether the connection stays, and that is so."""
    wire.send(head("Content-Length: 0", *([line] if line else []), path=path))
    await settle()

    closes = bool(line) or path == "/none"
    connection = b"connection: close\r\n" if closes else b"connection: keep-alive\r\n"
    assert wire.transport.written.count(b"connection: ") == 1
    assert connection in wire.transport.written
    assert wire.transport.closed == closes


async def test_one_connection_header_at_shutdown(wire: Wire) -> None:
    """So does an answer that became the last one after its request was received."""
    wire.send(head("Content-Length: 0", path="/cold"))
    wire.protocol.shutdown()
    await settle()

    assert wire.transport.written.count(b"connection: ") == 1
    assert b"connection: close\r\n" in wire.transport.written
    assert wire.transport.closed


@pytest.mark.parametrize("answered", [False, True], ids=["first", "after an answer"])
async def test_a_flood_of_empty_lines(wire: Wire, answered: bool) -> None:
    """Empty lines where a request should begin are held to the limit of heads (F14)."""
    wire.listener.max_body = 1 << 20
    if answered:
        wire.send(head("Content-Length: 0"))
    before = len(wire.transport.written)
    wire.send(*[b"\r\n" * 2048] * 18)

    assert wire.transport.written[before:].startswith(b"HTTP/1.1 431 ")
    assert wire.transport.ended


@pytest.mark.parametrize("path", ["/hot", "/cold"])
@pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/2.0", b""])
async def test_other_versions(wire: Wire, path: str, version: bytes) -> None:
    """A version besides 1.0 and 1.1 is refused."""
    line = b"GET %b %b" % (path.encode(), version)

    assert wire.send(line.rstrip() + b"\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 505 ")
    assert wire.hot.exchanges == []


@pytest.mark.parametrize("path", ["/hot", "/cold"])
@pytest.mark.parametrize("begun", [b"", b"hello"])
@pytest.mark.parametrize("piece", [1, 3, 1000])
@pytest.mark.parametrize("size", [b"8000000000000000", b"%x" % (LIMIT + 1), b"00000001fFfF;a=b"])
async def test_a_chunk_announced_too_large(
    wire: Wire, path: str, begun: bytes, piece: int, size: bytes
) -> None:
    """A chunk whose size is over the limit is refused before it comes, however it is cut (F5)."""
    sent = head("Transfer-Encoding: chunked", path=path) + b"5\r\nfirst\r\n" + size + b"\r\n" + begun
    wire.send(*(sent[start : start + piece] for start in range(0, len(sent), piece)))
    await settle()

    assert wire.transport.written.startswith(b"HTTP/1.1 413 ")
    assert wire.transport.written.count(b"HTTP/1.1 ") == 1


async def test_what_looks_like_a_large_chunk(wire: Wire) -> None:
    """Bodies and extensions that look like the size of a large chunk are none."""
    body = b"\r\nffffffff\r\n"
    extension = b";" + b"0" * 100 + b"ffffffff\r\n"
    sent = head("Transfer-Encoding: chunked") + b"%x" % len(body) + extension + body
    wire.send(*(sent[start : start + 16] for start in range(0, len(sent), 16)), b"\r\n0\r\n\r\n")

    assert wire.transport.written.startswith(b"HTTP/1.1 200 ")
    assert wire.transport.written.endswith(body)


async def test_a_large_chunk_behind_another_request(wire: Wire) -> None:
    """A pipelined request with such a chunk takes nothing from the one before it."""
    wire.hot.at_once = False
    assert wire.send(head("Content-Length: 0") + head("Transfer-Encoding: chunked") + b"ffffffff\r\n") == b""
    wire.hot.exchanges[0].reply(200, b"first")

    assert wire.transport.written.startswith(b"HTTP/1.1 200 ")
