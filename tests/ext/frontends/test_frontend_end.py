"""A front end and the server together answer as one process does: every test compares the bytes of both."""

import asyncio
import contextlib
import gc
import time

import pytest
from tests.ext.frontends.doubles import endpoints_of
from tests.transports import Transport
from tests.waiting import until

from modelserver.engine.telemetry.stalls import loop_watch
from modelserver.errors import ServiceUnavailable
from modelserver.ext.frontends import frontend_end, server_end
from modelserver.ext.frontends.frontend_end import Forwarder
from modelserver.ext.frontends.link import Link, make_pair
from modelserver.ext.frontends.messages import ToFrontend, to_frontend_decoder
from modelserver.ext.frontends.server_end import ServerEnd
from modelserver.surface.http.asgi_cycle import AsgiCycle
from modelserver.surface.http.connection import RECEIVE_TIMEOUT, Http1Connection, HttpListener
from modelserver.surface.http.edge import Edge
from modelserver.surface.http.exchange import MAX_UNSENT, Exchange, read_target
from modelserver.surface.http.intake import MUCH
from modelserver.surface.http.protocol import HttpProtocol
from modelserver.surface.inference.routes import parse_route

LIMIT = 1000


class Hot:
    """An endpoint that behaves as the path of the URL says, and records its requests."""

    def __init__(self):
        self.exchanges: list[Exchange] = []
        self.left: list[str] = []

    def find(self, url):
        target = read_target(url)
        return target if target is not None and parse_route(target.path) is not None else None

    def serve(self, exchange):
        self.exchanges.append(exchange)
        exchange.on_disconnect = lambda: self.left.append(exchange.request_id)
        verb = exchange.target.path.rpartition("/")[2]
        getattr(self, f"do_{verb}")(exchange)

    def do_echo(self, exchange):
        exchange.reply(200, exchange.body, exchange.content_type, b"x-own: 1\r\n")

    def do_phrase(self, exchange):
        exchange.reply(404, b"no", phrase="Not Here")

    def do_head(self, exchange):
        messages = [repr(exchange.headers), exchange.encoding, exchange.deadline_ms, exchange.http_version]
        exchange.reply(200, repr([*messages, exchange.method, exchange.target.query]).encode())

    def do_packed(self, exchange):
        exchange.reply(200, exchange.packed_headers())

    def do_empty(self, exchange):
        exchange.reply(204, b"")

    def do_fail(self, exchange):
        exchange.fail(ServiceUnavailable("busy"), extra=b"x-batch-size: 2\r\n")

    def do_bug(self, exchange):
        raise ZeroDivisionError

    def do_twice(self, exchange):
        exchange.reply(200, b"first")
        exchange.reply(500, b"second")

    def do_wait(self, exchange):
        pass

    def do_parts(self, exchange):
        exchange.begin(200, "text/plain", b"x-own: 1\r\n")
        for part in (b"one", b"", b"two"):
            exchange.send(part)
        exchange.end()

    def do_broken(self, exchange):
        exchange.begin(200)
        exchange.send(b"one")
        exchange.end(complete=False)

    def do_begin(self, exchange):
        exchange.begin(200)
        exchange.send(b"one")


async def application(scope, receive, send):
    verb = scope["path"].rpartition("/")[2]
    body, more = b"", verb not in {"unread", "raise"}
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    if verb == "raise":
        raise ZeroDivisionError
    described = {key: value for key, value in scope.items() if key not in {"state", "app", "asgi"}}
    content = body if verb == "echo" else repr(sorted(described.items())).encode()
    head = {"type": "http.response.start", "status": 200, "headers": []}
    if verb != "chunks":
        head["headers"] = [(b"content-length", b"%d" % len(content))]
    await send(head)
    if verb == "chunks":
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
    await send({"type": "http.response.body", "body": content})


class Client:
    """A connection to one process, and what was counted and logged there."""

    def __init__(self, endpoint, hot, statuses, count=None):
        self.hot = hot
        self.statuses = statuses
        self.lines: list[tuple[str, str, int]] = []

        def on_response(client, method, target, _, status, _s, _i):
            self.lines.append((method, target, status))
            if count is not None:
                count(status)

        app, hot_routes = endpoint
        self.listener = HttpListener(app, hot_routes, LIMIT, on_response)
        self.protocol = HttpProtocol(self.listener)
        self.transport = Transport()
        self.protocol.connection_made(self.transport)

    async def send(self, *pieces):
        """What is written in answer to these pieces."""
        before = len(self.transport.written)
        for piece in pieces:
            if not self.transport.closed:
                self.protocol.data_received(piece)
            await self.settle()
        return self.transport.written[before:]

    async def settle(self):
        """Until no more is written: every step of a request takes a turn of the loop, and no time."""
        for _ in range(60):
            await asyncio.sleep(0)

    async def leave(self):
        self.protocol.connection_lost(None)
        await self.settle()


class Pair:
    """The same server as one process, and behind a front end."""

    def __init__(self):
        self.alone = self._one_process()
        self.end: ServerEnd
        self.front: Client
        self.link: Link[ToFrontend]

    @staticmethod
    def _one_process():
        hot, statuses = Hot(), []
        counted = Edge(application, lambda *data: statuses.append(data[4]), LIMIT)
        return Client((counted, hot), hot, statuses, statuses.append)

    async def connect(self):
        loop = asyncio.get_running_loop()
        hot, statuses = Hot(), []
        app = Edge(application, lambda *data: statuses.append(data[4]), LIMIT)
        self.end = ServerEnd(endpoints_of(hot, count=statuses.append), app)
        self.link = Link(to_frontend_decoder, self._handle, lambda: None)
        forwarder = self.forwarder = Forwarder(self.link)
        ours, other = make_pair()
        await loop.create_unix_connection(lambda: self.end.link, sock=ours)
        await loop.create_unix_connection(lambda: self.link, sock=other)
        self.front = Client((forwarder, forwarder), hot, statuses, forwarder.count)

    def another(self):
        before = self.front
        return Client((self.forwarder, self.forwarder), before.hot, before.statuses, self.forwarder.count)

    def _handle(self, message, body):
        self.forwarder.handle(message, body)

    async def both(self, *pieces):
        """What both answer to these pieces; fails the test if they differ in a byte, a count or a state."""
        alone, front = await self.alone.send(*pieces), await self.front.send(*pieces)
        assert front == alone
        assert self.front.transport.closed == self.alone.transport.closed
        assert self.front.statuses == self.alone.statuses
        return front


@pytest.fixture
async def pair():
    made = Pair()
    await made.connect()
    yield made
    made.link.abort()
    made.end.link.abort()
    await asyncio.sleep(0.01)


def head(*lines, path="/predictions/m/1/echo", method="POST", version="1.1"):
    fixed = ["Host: x", "x-request-id: mine"]
    return "\r\n".join([f"{method} {path} HTTP/{version}", *fixed, *lines, "", ""]).encode()


def post(verb, body=b"", *lines, **more):
    return head(f"Content-Length: {len(body)}", *lines, path=f"/predictions/m/1/{verb}", **more) + body


@pytest.mark.parametrize("verb", ["echo", "phrase", "empty", "fail", "bug", "twice", "parts", "broken"])
async def test_hot_routes_answer_as_in_one_process(pair, verb):
    answer = await pair.both(post(verb, b"hello", "Content-Type: text/x"))

    assert answer.startswith(b"HTTP/1.1 ")
    assert len(pair.front.statuses) == 1
    assert [line[:2] for line in pair.front.lines] == [("POST", f"/predictions/m/1/{verb}")]
    assert pair.front.lines == pair.alone.lines
    assert pair.end.exchanges == {}
    assert pair.forwarder._exchanges == {}


@pytest.mark.parametrize("verb", ["head", "packed"])
async def test_endpoint_gets_the_head_as_it_was_written(pair, verb):
    lines = ["X-Mixed-Case: a", "x-request-timeout-ms: 25", "Content-Encoding: gzip", "X-Latin: \xe9"]
    answer = await pair.both(post(f"{verb}?a=%20&b", b"z", *lines, method="PUT"))
    assert b"X-Mixed-Case" in answer


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("method", ["HEAD", "POST"])
async def test_versions_and_methods_are_treated_alike(pair, version, method):
    for verb in ("echo", "parts"):
        await pair.both(post(verb, b"x", version=version, method=method))


@pytest.mark.parametrize(
    "path", ["/ping/scope", "/ping/unread", "/ping/echo", "/ping/raise", "/ping/chunks", "/v1/x%2Fy"]
)
@pytest.mark.parametrize("lines", [(), ("Expect: 100-continue",), ("Connection: close",)], ids=str)
async def test_application_answers_as_in_one_process(pair, path, lines):
    answer = await pair.both(head("Content-Length: 5", *lines, path=f"{path}?q=1"), b"he", b"llo")

    assert (b"100 Continue" in answer) == (
        bool(lines) and "Expect" in lines[0] and path[6:] not in {"unread", "raise"}
    )


@pytest.mark.parametrize("path", ["/predictions/m/1/echo", "/ping/echo"])
async def test_refusals_are_those_of_one_process(pair, path):
    answer = await pair.both(head(f"Content-Length: {LIMIT + 1}", path=path))
    assert answer.startswith(b"HTTP/1.1 413")

    chunks = b"3e8\r\n" + b"x" * LIMIT + b"\r\n"
    other = Pair()
    await other.connect()
    answer = await other.both(head("Transfer-Encoding: chunked", path=path) + chunks, b"1\r\nx\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    assert other.front.statuses == [413]
    other.link.abort()


async def test_nonsense_gets_400_and_is_counted(pair):
    answer = await pair.front.send(b"NONSENSE\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400")
    assert pair.front.statuses == [400]
    assert pair.front.lines == [("-", "-", 400)]


async def test_pipelined_requests_are_answered_in_order(pair):
    ping = head("Content-Length: 0", path="/ping/unread")
    answer = await pair.both(post("echo", b"1") + ping + post("parts") + post("echo", b"2") + ping)
    assert answer.count(b"HTTP/1.1 200 OK") == 5


async def test_endpoint_knows_what_its_client_has_not_taken(pair):
    """The endpoint knows how much its client has not taken yet, to some 64 kB."""
    await pair.front.send(post("begin"))
    exchange, transport = pair.front.hot.exchanges[0], pair.front.transport
    transport.unsent = 1 << 20
    exchange.send(bytes(1 << 20))
    await pair.front.settle()
    assert exchange.unsent() >= 1 << 20

    transport.unsent = 1 << 19
    await until(lambda: exchange.unsent() <= (1 << 19) + (1 << 16))
    assert exchange.unsent() >= 1 << 19

    transport.unsent = 0
    await until(lambda: exchange.unsent() < 1 << 16)
    exchange.end()
    await pair.front.settle()
    assert pair.forwarder._streams == {}
    assert not pair.forwarder._is_reporting


class Endless:
    """An application that sends parts nearly without end, and counts them."""

    def __init__(self, most=1000):
        self.parts = 0
        self.ended = False
        self._most = most

    async def __call__(self, _, __, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while self.parts < self._most:
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
            self.parts += 1
        await send({"type": "http.response.body", "body": b""})
        self.ended = True

    async def end(self):
        for _ in range(2000):
            await asyncio.sleep(0)
        assert self.ended


async def test_the_application_waits_for_a_client_that_does_not_read(pair):
    app, flow, taken = Endless(), pair.front.protocol, 0
    pair.end._app = app

    def write(data):
        nonlocal taken
        taken += len(data) >= 1 << 16
        flow.pause_writing()

    pair.front.transport.write = write
    pair.front.protocol.data_received(head(path="/recording"))
    ahead = []
    for _ in range(20):
        await pair.front.settle()
        ahead.append(app.parts - taken)
        flow.resume_writing()
    was_ended = app.ended
    await pair.front.leave()
    await app.end()
    await pair.front.settle()

    assert taken > 10
    assert max(ahead) < 10
    assert not was_ended
    assert (pair.end._calls, pair.forwarder._calls) == ({}, {})


async def test_memory_of_large_answers_is_released(pair):
    freed = []
    pair.forwarder.on_freed = freed.append
    for parts in (1, MUCH >> 16):
        pair.end._app = Endless(parts)
        client = pair.another()
        client.protocol.data_received(head("Connection: close", path="/recording"))
        for _ in range(10):
            await pair.front.settle()

    assert pair.forwarder._calls == {}
    assert freed[0] < MUCH <= freed[1]


@pytest.mark.parametrize("ends", ["the answer", "the front end"])
async def test_the_application_waits_for_nobody(pair, ends):
    app = pair.end._app = Endless()
    stuck = asyncio.Event()
    scope, receive, _ = reading_call()

    async def send(_):
        await stuck.wait()
        raise RuntimeError

    calling = asyncio.create_task(pair.forwarder(scope, receive, send))
    await pair.front.settle()
    assert 0 < app.parts < 10

    if ends == "the answer":
        stuck.set()
    else:
        pair.link.abort()
    await app.end()
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError, RuntimeError):
        await calling
    await pair.front.settle()
    assert (pair.end._calls, pair.forwarder._calls) == ({}, {})


async def test_end_of_a_front_end_is_that_of_its_clients(pair):
    await pair.front.send(post("wait", b"x"))
    calling = asyncio.create_task(pair.forwarder(*reading_call()))
    await pair.front.settle()
    assert len(pair.end._calls) == 1

    pair.link.abort()
    await pair.front.settle()
    assert pair.end.lost.done()
    assert pair.front.hot.left == ["mine"]
    assert pair.end.exchanges == {}
    assert pair.end._calls == {}

    pair.front.hot.exchanges[0].reply(200, b"late")
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await calling


def reading_call():
    """Scope, receive and send of a request whose body never comes."""

    async def receive():
        await asyncio.Event().wait()

    async def send(_):
        raise AssertionError

    scope = {"method": "POST", "path": "/x", "raw_path": b"/x", "query_string": b"", "http_version": "1.1"}
    return scope | {"scheme": "http", "headers": [], "client": None, "server": None}, receive, send


async def answered(pair, path):
    await pair.front.send(head("Content-Length: 5", path=path), b"whole")
    assert pair.front.transport.written.startswith(b"HTTP/1.1 200")


async def partly_sent(pair, path):
    """If a client leaves within its body, the application that reads it learns about it."""
    await pair.front.send(head("Content-Length: 5", path=path), b"part")
    assert len(pair.end._calls) == ("ping" in path)


async def announced_too_large(pair, path):
    await pair.front.send(head(f"Content-Length: {LIMIT + 1}", path=path), b"x" * LIMIT)
    assert pair.front.transport.written.startswith(b"HTTP/1.1 413")


async def too_large(pair, path):
    chunks = b"3e8\r\n" + b"x" * LIMIT + b"\r\n"
    await pair.front.send(head("Transfer-Encoding: chunked", path=path), chunks, b"1\r\nx\r\n")
    assert pair.front.transport.written.startswith(b"HTTP/1.1 413")


async def beyond_the_intake(pair, path):
    pair.front.listener.intake.limit = 500
    await pair.front.send(head("Content-Length: 900", path=path), b"x" * 800)
    assert pair.front.transport.written.startswith(b"HTTP/1.1 503")


async def left_waiting(pair, path):
    """If a client leaves before its response, the endpoint learns about it, and the response is dropped."""
    await pair.front.send(post("wait", b"x" * 900) + head("Content-Length: 5", path=path) + b"whole")
    await pair.front.leave()
    assert pair.front.hot.left == ["mine"]
    pair.front.hot.exchanges[0].reply(200, b"late")
    await pair.front.settle()
    assert pair.front.transport.written == b""


async def left_within_its_answer(pair, path):
    """If a client leaves between two parts of its response, the endpoint learns about it."""
    await pair.front.send(post("begin", b"x" * 900) + head("Content-Length: 5", path=path) + b"whole")
    await pair.front.leave()
    pair.front.hot.exchanges[0].send(b"two")
    pair.front.hot.exchanges[0].end()
    await pair.front.settle()
    assert pair.front.hot.left == ["mine"]
    assert pair.front.transport.written.endswith(b"3\r\none\r\n")


async def broken_off(pair, path):
    await pair.front.send(post("broken", b"x" * 900), head("Content-Length: 5", path=path) + b"whole")
    assert pair.front.transport.closed


async def not_read(pair, path):
    """If a client is cut off because too much of its response waits, the endpoint learns about it."""
    await pair.front.send(post("begin", b"x" * 900) + head("Content-Length: 5", path=path) + b"whole")
    pair.front.transport.unsent = MAX_UNSENT + 1
    pair.front.hot.exchanges[0].send(b"two")
    await pair.front.settle()
    assert pair.front.transport.aborted
    await pair.front.leave()
    assert pair.front.hot.left == ["mine"]


async def cut_off(pair, path):
    await partly_sent(pair, path)
    pair.front.listener.check(time.monotonic() + RECEIVE_TIMEOUT + 1)
    assert pair.front.transport.closed


@pytest.mark.parametrize("path", ["/predictions/m/1/echo", "/ping/echo"])
@pytest.mark.parametrize(
    "happen",
    [
        answered,
        partly_sent,
        announced_too_large,
        too_large,
        beyond_the_intake,
        left_waiting,
        left_within_its_answer,
        broken_off,
        not_read,
        cut_off,
    ],
)
async def test_nothing_outlives_its_connection(pair, path, happen):
    """Both sides free it and its requests without the collector of circles, however it ended."""
    calls = (frontend_end._Call, frontend_end._Stream, server_end._Call)
    kinds = (HttpProtocol, Http1Connection, Exchange, AsgiCycle, *calls)
    gc.disable()
    gc.freeze()
    try:
        pair.front = pair.another()
        await happen(pair, path)
        await pair.front.settle()
        if pair.front.listener.connections:
            await pair.front.leave()
        pair.front.hot.exchanges.clear()
        del pair.front.protocol
        await pair.front.settle()
        # A running server does this many times a second.
        loop_watch.request = None
        assert [each for each in gc.get_objects() if isinstance(each, kinds)] == []
        assert pair.front.listener.intake.held == 0
    finally:
        gc.enable()
    assert (pair.forwarder._exchanges, pair.forwarder._streams, pair.forwarder._calls) == ({}, {}, {})
    assert (pair.end.exchanges, pair.end._calls) == ({}, {})
