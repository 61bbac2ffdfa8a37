import asyncio

import pytest
from tests.surface.http.wire import BOTH_WAYS, CHUNKED, LIMIT, Wire, chunk, head, pieces, post, settle

from modelserver.surface.http.head import HEADER_LIMIT


@BOTH_WAYS
async def test_body_announced_above_the_limit_gets_413(wire, path):
    """It does so before the body comes; the client may read why while it still sends (F5)."""
    await wire.talk(head(f"Content-Length: {LIMIT}", path=path), b"x" * LIMIT)
    written = wire.send(head(f"Content-Length: {LIMIT + 1}", path=path))

    assert wire.statuses == [200, 413]
    assert written.startswith(b"HTTP/1.1 413 ")
    assert wire.transport.ended
    assert not wire.transport.closed
    assert wire.send(b"x" * (LIMIT + 1)) == b""


@pytest.mark.parametrize(
    ("behind", "status"),
    [
        (post(b"x" * (LIMIT + 1), "/cold"), 413),
        (head(CHUNKED) + chunk(b"x" * 256) * 5 + b"0\r\n\r\n", 413),
        (head(CHUNKED) + b"zz\r\n", 400),
    ],
    ids=["application", "chunks", "garbage"],
)
async def test_waiting_request_is_refused_in_its_turn(busy, behind, status):
    """A pipelined request is held to the limits too (F5), and takes nothing from the one before it."""
    assert busy.send(post() + behind) == b""
    busy.hot.exchanges[0].reply(200, b"first")

    assert busy.statuses == [200, status]
    assert busy.responses[-1][4] == status
    assert busy.is_ending
    assert len(busy.hot.exchanges) == 1


@BOTH_WAYS
@pytest.mark.parametrize("beginning", [b"", b"hello"])
@pytest.mark.parametrize("piece", [1, 3, 1000])
@pytest.mark.parametrize("size", [b"8000000000000000", b"%x" % (LIMIT + 1), b"00000001fFfF;a=b"])
async def test_chunk_announced_above_the_limit_gets_413(wire, path, beginning, piece, size):
    """Before it comes, however its size is cut (F5)."""
    sent = head(CHUNKED, path=path) + chunk(b"first") + size + b"\r\n" + beginning
    await wire.talk(*pieces(sent, piece))

    assert wire.statuses == [413]


async def test_body_may_look_like_the_size_of_a_large_chunk(wire):
    body = b"\r\nffffffff\r\n"
    extension = b";" + b"0" * 100 + b"ffffffff\r\n"
    sent = head(CHUNKED) + b"%x" % len(body) + extension + body
    wire.send(*pieces(sent, 16), b"\r\n0\r\n\r\n")

    assert wire.statuses == [200]
    assert wire.transport.written.endswith(body)


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
async def test_head_above_the_limit_gets_431(wire, request_head, size):
    """Whether it comes in one piece or in many (F14)."""
    await wire.talk(*pieces(request_head, size))

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
async def test_trailers_and_extensions_above_the_limit_get_431(wire, path, begin, piece):
    wire.send(head(CHUNKED, path=path), begin)
    wire.send(*[piece] * (HEADER_LIMIT // 8192 + 1))

    assert wire.statuses == [431]
    assert wire.hot.exchanges == []


@pytest.mark.parametrize("before", [[], [200]], ids=["first", "after a response"])
async def test_empty_lines_above_the_limit_get_431(wire, before):
    """Before a request they count towards the limit of heads (F14)."""
    wire.listener.max_body = 1 << 20
    if before:
        wire.send(post())
    wire.send(*[b"\r\n" * 2048] * 18)

    assert wire.statuses == [*before, 431]
    assert wire.transport.ended


async def test_request_gets_503_without_room_for_responses(wire):
    wire.listener.outgoing.add(wire.listener.outgoing.limit)
    refused = wire.send(post(b"a"))
    other = Wire(listener=wire.listener)
    await other.talk(post(b"a", "/cold"))

    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"max_outgoing_bytes=" in refused
    assert b"retry-after: 1" in refused
    assert wire.hot.exchanges == []
    assert other.statuses == [200]


@BOTH_WAYS
async def test_request_gets_503_where_too_much_comes_in(wire, path):
    """The limit is over all connections; other requests continue, and room becomes free (F31)."""
    wire.listener.intake.limit = 1500
    other, third = Wire(listener=wire.listener), Wire(listener=wire.listener)
    begin = head("Content-Length: 1000", path=path)
    assert wire.send(begin, b"x" * 900) == b""
    await settle()

    refused = other.send(begin, b"x" * 900)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"max_incoming_bytes=1500" in refused
    assert b"retry-after: 1" in refused
    await wire.talk(b"x" * 100)
    assert wire.statuses == [200]
    assert wire.listener.intake.held == 0
    third.send(begin, b"x" * 900)
    assert wire.listener.intake.held > 900
    third.protocol.connection_lost(None)
    assert wire.listener.intake.held == 0


DOUBTFUL = {
    "words": (400, b"hello\r\n\r\n"),
    "bytes": (400, b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n"),
    "CONNECT": (400, head(path="x:80", method="CONNECT")),
    "no path": (400, head(path="http://x", method="GET")),
    "negative length": (400, ["Content-Length: -1"]),
    "two lengths": (400, ["Content-Length: 1", "Content-Length: 2"]),
    "endless number": (400, ["Content-Length: " + "0" * 5000 + "2"]),
    "chunked twice": (400, [CHUNKED, CHUNKED]),
    "0.9": (505, b"GET PATH HTTP/0.9\r\nHost: x\r\n\r\n"),
    "2.0": (505, b"GET PATH HTTP/2.0\r\nHost: x\r\n\r\n"),
    "no version": (505, b"GET PATH\r\nHost: x\r\n\r\n"),
    "no host": (400, b"GET PATH HTTP/1.1\r\n\r\n"),
}


@BOTH_WAYS
@pytest.mark.parametrize(("status", "sent"), DOUBTFUL.values(), ids=DOUBTFUL)
async def test_doubtful_head_is_refused(wire, path, status, sent, caplog):
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
async def test_refusal_speaks_the_protocol_of_its_route(wire, path, line):
    """On V1 routes a refusal has V1's ``error`` beside the other fields."""
    refusal = wire.send(head(line, path=path))
    assert (b'"error": ' in refusal) == path.startswith("/v1/")


@pytest.mark.parametrize("bad", [b"garbage\r\n\r\n", head(CHUNKED) + b"ffffffff\r\n"])
async def test_bad_request_takes_no_response_from_requests_before_it(busy, bad):
    assert busy.send(post(b"a") + post(b"b") + bad) == b""
    busy.hot.exchanges[0].reply(200, b"first")
    assert not busy.transport.closed
    busy.hot.exchanges[1].reply(200, b"second")

    assert busy.statuses == [200, 200]
    assert len(busy.hot.exchanges) == 2
    assert busy.is_ending == bad.startswith(b"garbage")


@pytest.mark.parametrize(("path", "status"), [("/cold", 400), ("/early", 200)])
async def test_garbage_in_a_body_of_the_application_gets_400(wire, path, status, caplog):
    """Once: the application's response goes nowhere, or came before and stays the only one."""
    await wire.talk(head(CHUNKED, path=path))
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
async def test_offer_to_upgrade_is_ignored(wire, path, offer, chunked, size):
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
async def test_offer_to_upgrade_hides_no_fault(wire, line, status):
    wire.send(head("Connection: Upgrade", "Upgrade: h2c", line))
    assert wire.statuses == [status]


@BOTH_WAYS
async def test_trailers_are_dropped(wire, path):
    trailers = b"x-request-id: other\r\nAuthorization: Bearer stolen\r\nHost: y\r\n"
    await wire.talk(head(CHUNKED, path=path), chunk(b"hi") + b"0\r\n" + trailers + b"\r\n")

    assert wire.transport.written.endswith(b"hi")
    assert b"other" not in wire.transport.written
    for exchange in wire.hot.exchanges:
        assert exchange.headers == [(b"Host", b"x"), (b"Transfer-Encoding", b"chunked")]
    assert wire.send(post(b"next")).endswith(b"next")


@BOTH_WAYS
async def test_large_request_behind_another_is_read_in_its_turn(busy, path):
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
async def test_no_more_is_read_behind_a_waiting_request(busy, size):
    """Where the application of the request before it lets the transport read on, one piece comes at most."""
    busy.send(post() + head(CHUNKED))
    for _ in range(3):
        busy.connection.resume_reading()
        busy.send(chunk(b"x" * size))
        assert not busy.transport.reading


@BOTH_WAYS
async def test_a_thousand_requests_in_one_piece_are_answered_in_order(busy, path):
    count = 1000
    busy.send(*pieces(b"".join(post(b"%04d" % number, path) for number in range(count)), 30_000))
    assert len(busy.connection.pipeline) < 500
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


async def test_thousands_of_chunks_in_one_piece_take_several_turns_of_the_loop(wire, monkeypatch):
    monkeypatch.setattr("modelserver.surface.http.protocol._TURN", 0.0)
    wire.listener.max_body = 1 << 20
    wire.send(head(CHUNKED), chunk(b"ab") * 30_000)
    incoming = wire.connection.newest
    assert incoming.received < 5000
    assert not wire.transport.reading

    wire.send(chunk(b"cd") + b"0\r\n\r\n")
    for _ in range(30):
        await asyncio.sleep(0)
    assert wire.transport.written.endswith(b"ab" * 30_000 + b"cd")
    assert wire.transport.reading
