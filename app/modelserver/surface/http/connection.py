"""The protocol of HTTP connections: a fast path for hot routes, ASGI for all others, and firm limits.

* Requests on hot routes become a :class:`ConnectionExchange` and never an ASGI task; all others become an
  :class:`AsgiCycle`.
* A body over the limit is answered with 413 before it is read whole, a head over its limit with 431, and
  malformed HTTP with 400.
* An answer that closes the connection reaches its client whole, also while the client still sends.
* Offers to upgrade are ignored, and trailers are dropped.
* Clients that send a head or a body too slowly, do not read their answer, or keep an idle connection for too
  long are disconnected by one timer for all connections (F15), instead of one per request.
* Large pieces are parsed in slices, so that thousands of requests in one do not block the event loop.
* A request's memory is freed when it ends, however it ends, not when the garbage collector runs.
* Header names keep the client's case for handlers that look them up by it (reference 7.3).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

import httptools

from modelserver.errors import InternalError, ModelServerError
from modelserver.surface.http.answers import is_kserve
from modelserver.surface.http.asgi_cycle import CONTINUE, AsgiCycle
from modelserver.surface.http.connection_exchange import ConnectionExchange
from modelserver.surface.http.cors import is_preflight
from modelserver.surface.http.delivery import Delivery
from modelserver.surface.http.exchange import UNREAD, HotRoutes, Target, read_target
from modelserver.surface.http.head import (
    HEADER_LIMIT,
    SUPPORTED_VERSIONS,
    HeadersTooLarge,
    UnsupportedVersion,
    announced_length,
    fault_of,
    invalid_message,
)
from modelserver.surface.http.intake import Intake, IntakeFull, too_large
from modelserver.surface.http.outgoing import Outgoing, OutgoingFull
from modelserver.surface.http.sockets import (
    is_reset,
    local_address,
    remote_address,
    shown_address,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from modelserver.engine.telemetry.access import OnResponse
    from modelserver.surface.auth.guard import Guard
    from modelserver.surface.http.cors import Cors

    Request = ConnectionExchange | AsgiCycle

_log = logging.getLogger("modelserver.api")

# Methods that never predict, whatever the path.
_NEVER_HOT = frozenset({b"CONNECT", b"OPTIONS"})
# Bytes that must come between two checks for the client to count as sending.
MIN_PROGRESS = 4096
# Bytes that are parsed in one go, and seconds after which the rest of a piece waits for the loop's next turn.
_SLICE, _TURN = 1 << 14, 0.004
# The size of a chunk at the end of a text, and the bytes in which it is looked for.
_CHUNK_SIZE = re.compile(rb"\n0*([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\n]*)?\r?\n\Z")
_TAIL = 64
# Tells clients that closed their side and are gone from those that wait for an answer.
_ARE_YOU_THERE = b"HTTP/1.1 102 Processing\r\n\r\n"
_FIRST_LOOK, _LAST_LOOK = 0.05, 5.0  # seconds
# Default timeouts for clients, and the time between two checks of all connections; in seconds.
RECEIVE_TIMEOUT, SEND_TIMEOUT, KEEP_ALIVE = 60.0, 60.0, 75.0
CHECK_SECONDS = 5.0


@dataclass(slots=True)
class Listener:
    """What the connections of one listener share. Times are in seconds, sizes in bytes."""

    hot: HotRoutes | None
    max_body: int
    on_response: OnResponse
    receive_timeout: float = RECEIVE_TIMEOUT
    send_timeout: float = SEND_TIMEOUT
    keep_alive: float = KEEP_ALIVE
    intake: Intake = field(default_factory=lambda: Intake(1 << 29))
    outgoing: Outgoing = field(default_factory=lambda: Outgoing(1 << 29))
    guard: Guard | None = None
    cors: Cors | None = None
    connections: set[HttpProtocol] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def check(self, now: float) -> None:
        """Closes connections that are too slow or idle for too long; to be called every few seconds."""
        for protocol in list(self.connections):
            protocol.check(now)


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_app", "_came", "_chunk", "_counted", "_exchange", "_first_piece", "_framing", "_header_bytes",
        "_held", "_in_head", "_incoming", "_last_piece", "_lingers", "_listener", "_looking", "_loop",
        "_offer", "_parser", "_peer", "_pipeline", "_raw_headers", "_read_paused", "_receiving",
        "_refused", "_running", "_seen", "_tail", "_unparsed", "_url", "_waiting_since", "_writable",
        "client", "cors", "cycle", "delivery", "scheme", "server", "transport", "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport
    delivery: Delivery

    def __init__(self, app: ASGIApp, listener: Listener) -> None:
        self._app = app
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._parser = _new_parser(self)
        self.cors = listener.cors
        # For the scope of the application.
        self.server: tuple[str, int | None] | None = None
        self.client: tuple[str, int] | None = None
        self.scheme = "http"
        self._url = b""
        self._raw_headers: list[tuple[bytes, bytes]] = []
        # Bytes of the pieces received within a head, of the piece that it began in, and of the last piece.
        self._header_bytes = self._first_piece = self._last_piece = 0
        self._in_head = True
        # Bytes since the last ones of a body: sizes of chunks, trailers.
        self._framing = 0
        # Bytes of the chunk that is being received, -1 outside of chunks; the end of the last piece.
        self._chunk = -1
        self._tail = b""
        # The head offers an upgrade: it is read again without the offer.
        self._offer = False
        # The part of the last piece that has not been parsed yet.
        self._unparsed: memoryview | None = None
        # What comes is dropped; the last answer is written, and the client may read it.
        self._refused = self._lingers = False
        # The newest request, and those that wait for their turn, the newest first.
        self.cycle: Request | None = None
        self._pipeline: deque[Request] = deque()
        # The exchange whose request is being received, the one whose turn it is, and the request that the
        # application responds to.
        self._incoming: ConnectionExchange | None = None
        self._exchange: ConnectionExchange | None = None
        self._running: AsgiCycle | None = None
        self._read_paused = self.write_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        # Since when we wait for the rest of a request (or, between requests, for a new one).
        self._waiting_since = monotonic()
        self._receiving = False
        self._seen = 0
        # Bytes of the request that is being received, and how many of them the intake counts.
        self._came = self._counted = 0
        self._held = False
        # The client has closed its side: the timer of the next look whether it is there.
        self._looking: asyncio.TimerHandle | None = None
        self._peer = "unix"

    # -- from the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it writes, too
        self._listener.connections.add(self)
        self.transport = transport
        self.delivery = Delivery(transport, self._listener.outgoing)
        self.server, self.client = local_address(transport), remote_address(transport)
        if transport.get_extra_info("sslcontext"):
            self.scheme = "https"
        self._peer = shown_address(self.client)

    def data_received(self, data: bytes | memoryview) -> None:
        if self._refused:
            self._drop(len(data))
            return
        if self._unparsed is not None:
            # The application resumed reading.
            self._unparsed = memoryview(b"".join((self._unparsed, data)))
            self.pause_reading()
            return
        size = len(data)
        if size > _SLICE and not self._is_of_one_body(size):
            self._parse_slices(memoryview(data))
            return
        self._last_piece = size
        if self._in_head:
            self._header_bytes += size
        else:
            self._framing += size
        if not self._receiving:
            self._receiving = True
            self._waiting_since = monotonic()
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                self._decline_upgrade(memoryview(data)[offer.args[0] :])
        except httptools.HttpParserCallbackError:
            # Not the client's fault: a hot endpoint raised an error that it should have answered.
            _log.exception("Failure while receiving a request")
            if not self._refused:
                self._refuse(InternalError(), self._exchange)
            return
        except httptools.HttpParserError:
            if not self._refused:
                self._refuse(invalid_message())
            return
        if self._receiving and not self._refused:
            self._count_piece(data)

    def _is_of_one_body(self, size: int) -> bool:
        """Whether that many bytes are only part of an announced body, which is parsed at once."""
        exchange = self._incoming
        return exchange is not None and exchange.announced - exchange.received >= size

    def _parse_slices(self, left: memoryview) -> None:
        until = perf_counter() + _TURN
        while left and not self._refused:
            self.data_received(left[:_SLICE])
            left = left[_SLICE:]
            if left and (self._pipeline or perf_counter() > until):
                # After the pipelined requests, or in the loop's next turn.
                self._unparsed = left
                self.pause_reading()
                if not self._pipeline:
                    self._loop.call_soon(self._parse_rest)
                return

    def _parse_rest(self) -> None:
        rest, self._unparsed = self._unparsed, None
        if rest is not None and not self.transport.is_closing():
            self._parse_slices(rest)
            if self._unparsed is None and not self._pipeline:
                self.resume_reading()

    def _decline_upgrade(self, rest: memoryview) -> None:
        """Handles a head that offers an upgrade, and the ``rest`` behind it, as an ordinary request.

        No upgrades are supported, and such a request has a body like any other (RFC 9110, 7.8). The parser
        takes what follows for another protocol, so a new parser reads the head again, without the offer.
        """
        while not self._refused:
            self._offer = False
            method, version = self._parser.get_method(), self._parser.get_http_version()
            lines = [b"%b %b HTTP/%b" % (method, self._url, version.encode())]
            lines += [b"%b: %b" % header for header in self._raw_headers if header[0].lower() != b"upgrade"]
            self._parser = _new_parser(self)
            self._parser.feed_data(b"\r\n".join([*lines, b"", b""]))
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
            else:
                return

    def _count_piece(self, data: bytes | memoryview) -> None:
        """The last piece is part of a request that is not complete yet."""
        if not self._in_head:
            self._check_chunk(data)
            if self._refused:
                return
        self._came += self._last_piece
        cycle = self.cycle
        answered = not self._in_head and cycle is not None and cycle.response_complete
        self._count(0 if answered else self._came)
        if self._pipeline:
            # The request waits for its turn; the application may have resumed reading.
            self.pause_reading()
            return
        listener = self._listener
        if (self._header_bytes if self._in_head else self._framing) > HEADER_LIMIT:
            self._refuse(HeadersTooLarge(), self._incoming)
        elif answered:
            # The rest of a body after its answer is dropped, within the limit.
            if self._came > listener.max_body:
                self.close_gently()
        elif listener.intake.is_over:
            self._refuse(IntakeFull(listener.intake.limit), self._incoming)

    def _check_chunk(self, data: bytes | memoryview) -> None:
        """Refuses a chunk that begins in this piece if its size is over the limit: nobody waits for it."""
        start = len(data) - self._chunk
        if self._chunk >= 0 < start:
            before = self._tail if start < _TAIL else b""
            size = _CHUNK_SIZE.search(before + bytes(data[max(0, start - _TAIL) : start]))
            if size is not None and int(size[1], 16) > self._listener.max_body:
                self._refuse(too_large(self._listener.max_body), None if self._pipeline else self._incoming)
        self._tail = (self._tail + bytes(data[-_TAIL:]))[-_TAIL:]

    def _drop(self, size: int) -> None:
        """Counts bytes that nobody reads: the client may send the rest of a body, but not without end."""
        self._came += size
        self._receiving = True
        if self._lingers and self._came > self._listener.max_body + HEADER_LIMIT:
            self.transport.close()

    def _count(self, held: int) -> None:
        """Tells the intake how many bytes the request being received holds."""
        self._listener.intake.add(held - self._counted)
        self._counted = held

    def eof_received(self) -> bool:
        """The client closed its side; True keeps the connection for the pending answers."""
        cycle = self.cycle
        if self._refused or self._receiving or cycle is None or cycle.response_complete:
            return False
        if self._looking is None:
            self._ask_whether_there(cycle)
            self._look_for_client(_FIRST_LOOK)
        return True

    def _ask_whether_there(self, cycle: Request) -> None:
        """A client that is gone looks like one that still reads until something is sent to it."""
        if not cycle.begun and cycle.http_version == "1.1" and not self._pipeline:
            self.transport.write(_ARE_YOU_THERE)

    def _look_for_client(self, pause: float) -> None:
        if self.transport.is_closing():
            return
        if is_reset(self.transport):
            self.transport.abort()
        else:
            self._looking = self._loop.call_later(pause, self._look_for_client, min(2 * pause, _LAST_LOOK))

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.connections.discard(self)
        self._count(0)
        self.delivery.forget()
        exchange, running, newest = self._exchange, self._running, self.cycle
        # These refer to the connection: break the reference cycle.
        self._exchange = self._running = self._incoming = self.cycle = None
        del self._parser
        self._pipeline.clear()
        self._unparsed = None
        if self._looking is not None:
            self._looking.cancel()
        for request in (running, exchange, newest):
            if request is not None:
                request.leave()
        self._let_write()

    # -- from the parser

    def on_message_begin(self) -> None:
        self._url = b""
        self._raw_headers = []
        self._first_piece = self._last_piece
        self._in_head = True
        self._incoming = None

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # After a body it is a trailer: it must not become a header, which nothing would check.
        if self._in_head:
            self._raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        most = self._first_piece + self._header_bytes
        self._header_bytes = self._framing = 0
        if self._refused:
            return
        if most > HEADER_LIMIT and self._head_size() > HEADER_LIMIT:
            self._refuse(HeadersTooLarge())
            return
        parser, hot = self._parser, self._listener.hot
        method = parser.get_method()
        if parser.should_upgrade() and method != b"CONNECT":
            self._offer = True
            return
        if self._listener.guard is not None and self._stop(self._listener.guard, method):
            return
        version = parser.get_http_version()
        if version not in SUPPORTED_VERSIONS:
            self._refuse(UnsupportedVersion(version))
            return
        target = None if hot is None or method in _NEVER_HOT else hot.find(self._url)
        if target is None:
            fault = fault_of(self._raw_headers, version)
            if fault is None:
                self._take_long_way(method, version)
            else:
                self._refuse(fault)
            return
        keep_alive = version != "1.0" and parser.should_keep_alive()
        exchange = ConnectionExchange(self, target, method, version, self._raw_headers, keep_alive)
        if exchange.doubt and (fault := fault_of(self._raw_headers, version)) is not None:
            self._refuse(fault)
            return
        before = self.cycle
        self._incoming = self.cycle = exchange
        if before is None or before.response_complete:
            self._begin(exchange)
        else:
            self.pause_reading()
            self._pipeline.appendleft(exchange)

    def _take_long_way(self, method: bytes, version: str) -> None:
        """Leaves the request to the application."""
        target = None if method == b"CONNECT" else read_target(self._url)
        if target is None:
            self._refuse(invalid_message())
            return
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        before = self.cycle
        self.cycle = cycle = AsgiCycle(self, target, method, version, self._raw_headers, keep_alive)
        if before is None or before.response_complete:
            self._begin_long_way(cycle)
        else:
            self.pause_reading()
            self._pipeline.appendleft(cycle)

    def _stop(self, guard: Guard, method: bytes) -> bool:
        """Refuses a request that the guard rejects; preflight requests of browsers have no token."""
        if self.cors is not None and is_preflight(method.decode(), self._raw_headers):
            return False
        error = guard.check(method, self._url, self._raw_headers)
        if error is None:
            return False
        before = self.cycle
        if before is not None and not before.response_complete:
            self._refuse(error)
            return True
        target = read_target(self._url) or Target("/", b"", "-")
        version = self._parser.get_http_version()
        exchange = ConnectionExchange(self, target, method, version, self._raw_headers, keep_alive=False)
        self.cycle = self._exchange = exchange
        self._refuse(error, exchange)
        return True

    def _head_size(self) -> int:
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._raw_headers)

    def on_chunk_header(self) -> None:
        self._chunk = 0

    def on_chunk_complete(self) -> None:
        self._chunk = -1

    def on_body(self, body: bytes) -> None:
        self._framing = 0
        if self._refused:
            return
        if self._chunk >= 0:
            self._chunk += len(body)
        exchange = self._incoming
        if exchange is None:
            if self.cycle is not None:
                self.cycle.receive(body)
        elif exchange.receive(body) > self._listener.max_body and exchange is self._exchange:
            self._refuse(too_large(self._listener.max_body), exchange)

    def on_message_complete(self) -> None:
        if self._offer:
            return
        self._receiving = False
        if self._came:
            self._came = 0
            self._count(0)
        if self._refused:
            if self._lingers and not self.transport.can_write_eof():
                # Clients over TLS see the end only now.
                self.transport.close()
            return
        exchange, self._incoming = self._incoming, None
        if exchange is None:
            if self.cycle is not None:
                self.cycle.complete()
            return
        exchange.complete()
        if exchange is self._exchange:
            self._serve(exchange)

    def _start(self, request: Request) -> None:
        """It is a request's turn: its head is complete, its body may not be."""
        if self._refused and request.more_body:
            self._refuse(invalid_message())
        elif isinstance(request, ConnectionExchange):
            self._begin(request)
        else:
            self._begin_long_way(request)

    def _begin_long_way(self, cycle: AsgiCycle) -> None:
        if announced_length(cycle.headers) > self._listener.max_body:
            exchange = ConnectionExchange(
                self, cycle.target, cycle.method, cycle.http_version, cycle.headers, keep_alive=False
            )
            self._refuse(too_large(self._listener.max_body), exchange)
        elif self.write_paused:
            self._pipeline.append(cycle)
            self._hold()
        else:
            self._running = cycle
            tasks = self._listener.tasks
            task = self._loop.create_task(cycle.run(self._app))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def _begin(self, exchange: ConnectionExchange) -> None:
        """Starts the exchange: it is its turn."""
        if exchange.announced > self._listener.max_body:
            self._refuse(too_large(self._listener.max_body), exchange)
            return
        if self.write_paused:
            self._pipeline.append(exchange)
            self._hold()
            return
        self._exchange = exchange
        if exchange.expects_continue:
            self.transport.write(CONTINUE)
        if not exchange.more_body:
            # A pipelined request whose body arrived while the one before it was being answered.
            self._serve(exchange)

    def _serve(self, exchange: ConnectionExchange) -> None:
        if len(exchange.body) > self._listener.max_body:
            # A pipelined body: its size was not checked while it arrived.
            self._refuse(too_large(self._listener.max_body), exchange)
            return
        listener = self._listener
        if listener.outgoing.is_tight and not listener.outgoing.has_room():
            exchange.fail(OutgoingFull(listener.outgoing.limit), kserve=is_kserve(exchange.target.path))
            return
        assert listener.hot is not None  # noqa: S101 - there is no exchange without
        listener.hot.serve(exchange)

    # -- answers

    def finish(
        self, exchange: ConnectionExchange, status: int, answer: bytes, body: bytes = b"", *, keep: bool
    ) -> None:
        """Writes an exchange's answer, and its body if that is separate; starts the next request."""
        now = monotonic()
        self._listener.on_response(
            self._peer, exchange.method.decode(), exchange.target.text, exchange.http_version, status,
            now - exchange.started, exchange.request_id,
        )  # fmt: skip
        if self._exchange is exchange:
            self._exchange = None
        exchange.body = b""
        transport = self.transport
        if exchange.disconnected or transport.is_closing():
            return
        exchange.response_complete = True
        # Before it is written, which may begin the time that the client has.
        self.delivery.written += len(answer) + len(body)
        transport.write(answer)
        if body:
            transport.write(body)
            if transport.get_write_buffer_size():
                self.delivery.count(len(body))
        if not keep:
            exchange.keep_alive = False
            self.close_gently()
            return
        self._answered(now)

    def wrote(self, size: int) -> None:
        """So many bytes of an answer in parts were written."""
        self.delivery.written += size
        if self.write_paused:
            self.delivery.count(self.transport.get_write_buffer_size())

    def write(self, data: bytes) -> None:
        """Writes a part of the application's response."""
        self.delivery.written += len(data)
        self.transport.write(data)

    def responded(self) -> None:
        """The application's response is written."""
        self._running = None
        self._answered(monotonic())

    def _answered(self, now: float) -> None:
        if self._lingers:
            return
        self._waiting_since = now
        if self._looking is not None and not self._pipeline:
            self.transport.close()
        elif self.write_paused:
            if not self.transport.is_closing():
                self._hold()
        elif (
            self._pipeline or self._read_paused or self._unparsed is not None
        ) and not self.transport.is_closing():
            self._next()

    def _hold(self) -> None:
        """The client does not read: it gets no further answers until it has read the earlier ones."""
        self._held = True
        self.pause_reading()

    # -- flow

    def pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable.clear()
        self.delivery.count(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._let_write()
        self.delivery.waited()
        if self._held:
            self._held = False
            self._next()

    async def writable(self) -> None:
        """Waits until the client has read enough of what was written."""
        await self._writable.wait()

    def _let_write(self) -> None:
        self.write_paused = False
        self._writable.set()

    def _next(self) -> None:
        if self._unparsed is None:
            self.resume_reading()
        if self._pipeline:
            self._start(self._pipeline.pop())
        if self._unparsed is not None and not self._pipeline:
            # This may be the rest of the request whose turn it is now.
            self._loop.call_soon(self._parse_rest)

    def _refuse(self, error: ModelServerError, exchange: ConnectionExchange | None = None) -> None:
        """Answers a request that will not be read to its end, and closes the connection."""
        self._refused = True
        self._count(0)
        if exchange is not None:
            exchange.fail(error, kserve=is_kserve(exchange.target.path))
            return
        # Unless it ends in the same piece.
        self._receiving = True
        cycle = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            # Good requests came before: they are still answered, then the connection is closed.
            cycle.keep_alive = False
            return
        if cycle is not None and cycle.more_body:
            if self._pipeline:
                # It is answered after those before it.
                return
            if cycle.response_complete:
                # It was answered before its body was complete.
                self.close_gently()
                return
            # Anything else that the application answers to this request is dropped.
            cycle.leave()
        unread = ConnectionExchange(self, UNREAD, b"-", "1.1", [], keep_alive=False)
        unread.fail(error, kserve=is_kserve(self._url.decode("latin-1")))

    def close_gently(self) -> None:
        """Closes after the client had a chance to read the answer.

        If the connection were closed while the client still sends, its system would drop the answer. So
        the rest is received and dropped, until the client closes its side or :meth:`check` finds that
        nothing comes any more.
        """
        cycle = self.cycle
        within = self._receiving or self._in_head or (cycle is not None and cycle.more_body)
        if not (within or self._pipeline or self._read_paused or self._unparsed is not None):
            self.transport.close()
            return
        if self._lingers or self.transport.is_closing():
            return
        self._refused = self._lingers = True
        self._held = False
        # What belongs to the rest is not needed any more.
        self._incoming = self._unparsed = self.cycle = None
        self._pipeline.clear()
        self._count(0)
        self._waiting_since, self._seen = monotonic(), -1
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.resume_reading()

    # -- timeouts and the end

    def shutdown(self) -> None:
        """Closes the connection now if it is idle, or behind the response to its newest request."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def check(self, now: float) -> None:
        """Closes the connection if the client is gone, or does not send or read for too long."""
        unsent = self.transport.get_write_buffer_size()
        stalled = self.delivery.stalled(unsent, now) > self._listener.send_timeout
        if stalled or (self._read_paused and is_reset(self.transport)):
            # A regular close would wait for a client that does not read.
            self.transport.abort()
            return
        if self._lingers:
            self._check_rest(unsent, now)
            return
        cycle = self.cycle
        if self._read_paused or (unsent and not self._receiving):
            # The rest of a request cannot arrive, or an answer is being read.
            self._waiting_since = now
        elif cycle is not None and not cycle.response_complete and not self.write_paused:
            if self._pipeline or not cycle.more_body or cycle.received - self._seen >= MIN_PROGRESS:
                self._waiting_since = now
            self._seen = cycle.received
        if unsent:
            self.delivery.count(unsent)
        limit = self._listener.receive_timeout if self._receiving else self._listener.keep_alive
        if now - self._waiting_since <= limit:
            return
        if self.transport.is_closing():
            self.transport.abort()
        else:
            self.transport.close()

    def _check_rest(self, unsent: int, now: float) -> None:
        """Closes a connection whose last answer is written, if the client sends no more, or for too long."""
        if unsent:
            self._waiting_since = now
            return
        is_quiet, self._seen = self._seen == self._came, self._came
        if self.transport.is_closing():
            self.transport.abort()
        elif is_quiet or now - self._waiting_since > self._listener.receive_timeout:
            self.transport.close()


def check_regularly(
    loop: asyncio.AbstractEventLoop, listeners: list[Listener], every: float = CHECK_SECONDS
) -> None:
    """Checks all connections now and every ``every`` seconds from then on."""
    now = monotonic()
    for listener in listeners:
        listener.check(now)
    loop.call_later(every, check_regularly, loop, listeners, every)


def _new_parser(target: HttpProtocol) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(target)
    # Data after a request that closes the connection must not prevent its answer.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
