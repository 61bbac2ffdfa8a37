"""From the bytes of a connection to its requests, with firm limits.

* Requests on hot routes become a :class:`ConnectionExchange` and never an ASGI task; all others become an
  :class:`AsgiCycle`.
* A body over the limit is answered with 413 before it is read whole, a head over its limit with 431, and
  malformed HTTP with 400.
* Offers to upgrade are ignored, and trailers are dropped.
* Large pieces are parsed in slices, so that thousands of requests in one do not block the event loop.
* Header names keep the client's case for handlers that look them up by it (reference 7.3).
"""

from __future__ import annotations

import asyncio
import logging
import re
from time import monotonic, perf_counter

import httptools

from modelserver.errors import InternalError, PayloadTooLarge
from modelserver.surface.auth.guard import Guard
from modelserver.surface.http.asgi_cycle import AsgiCycle
from modelserver.surface.http.connection import Arrival, Http1Connection, HttpListener
from modelserver.surface.http.connection_exchange import ConnectionExchange
from modelserver.surface.http.cors import is_preflight
from modelserver.surface.http.exchange import Target, read_target
from modelserver.surface.http.head import (
    HEADER_LIMIT,
    SUPPORTED_VERSIONS,
    HeadersTooLarge,
    UnsupportedVersion,
    fault_of,
    invalid_message,
)
from modelserver.surface.http.sockets import is_reset

_log = logging.getLogger("modelserver.api")

# Methods that never predict, whatever the path.
_NEVER_HOT = frozenset({b"CONNECT", b"OPTIONS"})
# Bytes that are parsed in one go, and seconds after which the rest of a piece waits for the loop's next turn.
_SLICE, _TURN = 1 << 14, 0.004
# The size of a chunk at the end of a text, and the bytes in which it is looked for.
_CHUNK_SIZE = re.compile(rb"\n0*([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\n]*)?\r?\n\Z")
_TAIL = 64
# Distinguishes clients that closed their side and are gone from those that wait for a response.
_INTERIM_RESPONSE = b"HTTP/1.1 102 Processing\r\n\r\n"
# Seconds until the first check whether such a client is gone, and between two later ones at most.
_FIRST_CHECK, _LONGEST_PAUSE = 0.05, 5.0


class HttpProtocol(asyncio.Protocol):
    """Receives the bytes of one connection; :class:`Http1Connection` responds to the requests in them."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._parser = _new_parser(self)
        self._arrival = Arrival(listener.intake)
        self.url = b""
        self._raw_headers: list[tuple[bytes, bytes]] = []
        # Bytes of the pieces received within a head, of the piece that it began in, and of the last piece.
        self._header_bytes = self._first_piece = self._last_piece = 0
        self.in_head = True
        # Bytes since the last ones of a body: sizes of chunks, trailers.
        self._framing = 0
        # Bytes of the chunk that is being received, -1 outside of chunks; the end of the last piece.
        self._chunk = -1
        self._tail = b""
        # The head offers an upgrade: it is read again without the offer.
        self._offer = False
        # The part of the last piece that has not been parsed yet.
        self.unparsed: memoryview | None = None
        # The exchange whose request is being received.
        self.incoming: ConnectionExchange | None = None
        # The client has closed its side: the timer of the next check whether it is gone.
        self._checking: asyncio.TimerHandle | None = None

    # -- from the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it writes, too
        self._connection = connection = Http1Connection(self, self._listener, transport, self._arrival)
        self._listener.connections.add(connection)
        if self._listener.is_closing:
            transport.close()

    def data_received(self, data: bytes | memoryview) -> None:
        connection, arrival = self._connection, self._arrival
        if connection.refused:
            self._drop(len(data))
            return
        if self.unparsed is not None:
            # The application resumed reading.
            self.unparsed = memoryview(b"".join((self.unparsed, data)))
            connection.pause_reading()
            return
        size = len(data)
        if size > _SLICE and not self._is_of_one_body(size):
            self._parse_slices(memoryview(data))
            return
        self._last_piece = size
        if self.in_head:
            self._header_bytes += size
        else:
            self._framing += size
        if not arrival.receiving:
            arrival.receiving = True
            arrival.since = monotonic()
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                self._decline_upgrade(memoryview(data)[offer.args[0] :])
        except httptools.HttpParserCallbackError:
            # Not the client's fault: a hot endpoint raised an error that it should have answered.
            _log.exception("Failure while receiving a request")
            if not connection.refused:
                connection.refuse(InternalError(), connection.exchange)
            return
        except httptools.HttpParserError:
            if not connection.refused:
                connection.refuse(invalid_message())
            return
        if arrival.receiving and not connection.refused:
            self._count_piece(data)

    def _is_of_one_body(self, size: int) -> bool:
        """Whether that many bytes are only part of an announced body, which is parsed at once."""
        exchange = self.incoming
        return exchange is not None and exchange.announced - exchange.received >= size

    def _parse_slices(self, left: memoryview) -> None:
        connection, until = self._connection, perf_counter() + _TURN
        while left and not connection.refused:
            self.data_received(left[:_SLICE])
            left = left[_SLICE:]
            if left and (connection.pipeline or perf_counter() > until):
                # After the pipelined requests, or in the loop's next turn.
                self.unparsed = left
                connection.pause_reading()
                if not connection.pipeline:
                    self._loop.call_soon(self.parse_rest)
                return

    def parse_rest(self) -> None:
        """Parses what was put off of the last piece."""
        rest, self.unparsed = self.unparsed, None
        if rest is not None and not self._connection.transport.is_closing():
            self._parse_slices(rest)
            if self.unparsed is None and not self._connection.pipeline:
                self._connection.resume_reading()

    def _decline_upgrade(self, rest: memoryview) -> None:
        """Handles a head that offers an upgrade, and the ``rest`` behind it, as an ordinary request.

        No upgrades are supported, and such a request has a body like any other (RFC 9110, 7.8). The parser
        takes what follows for another protocol, so a new parser reads the head again, without the offer.
        """
        while not self._connection.refused:
            self._offer = False
            method, version = self._parser.get_method(), self._parser.get_http_version()
            lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
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
        connection, arrival, listener = self._connection, self._arrival, self._listener
        if not self.in_head:
            self._check_chunk(data)
            if connection.refused:
                return
        arrival.size += self._last_piece
        newest = connection.newest
        answered = not self.in_head and newest is not None and newest.response_complete
        arrival.hold(0 if answered else arrival.size)
        if connection.pipeline:
            # The request waits for its turn; the application may have resumed reading.
            connection.pause_reading()
        elif (self._header_bytes if self.in_head else self._framing) > HEADER_LIMIT:
            connection.refuse(HeadersTooLarge(), self.incoming)
        elif answered:
            # The rest of a body after its response is dropped, within the limit.
            if arrival.size > listener.max_body:
                connection.close_gently()
        elif listener.intake.is_over:
            connection.refuse(listener.intake.refusal(), self.incoming)

    def _check_chunk(self, data: bytes | memoryview) -> None:
        """Refuses a chunk that begins in this piece if its size is over the limit: nobody waits for it."""
        start = len(data) - self._chunk
        if self._chunk >= 0 < start:
            before = self._tail if start < _TAIL else b""
            size = _CHUNK_SIZE.search(before + bytes(data[max(0, start - _TAIL) : start]))
            if size is not None and int(size[1], 16) > self._listener.max_body:
                exchange = None if self._connection.pipeline else self.incoming
                self._connection.refuse(PayloadTooLarge.of(self._listener.max_body), exchange)
        self._tail = (self._tail + bytes(data[-_TAIL:]))[-_TAIL:]

    def _drop(self, size: int) -> None:
        """Counts bytes that nobody reads: the client may send the rest of a body, but not without end."""
        self._arrival.size += size
        self._arrival.receiving = True
        if self._connection.lingers and self._arrival.size > self._listener.max_body + HEADER_LIMIT:
            self._connection.transport.close()

    def eof_received(self) -> bool:
        """The client closed its side; True keeps the connection for the pending responses."""
        connection = self._connection
        newest = connection.newest
        if connection.refused or self._arrival.receiving or newest is None or newest.response_complete:
            return False
        if not connection.half_closed:
            connection.half_closed = True
            if not newest.sent_status and newest.http_version == "1.1" and not connection.pipeline:
                # A client that is gone looks like one that still reads until something is sent to it; one
                # that reads a stream of events gets a comment.
                connection.transport.write(_INTERIM_RESPONSE)
            elif no_event := getattr(newest, "no_event", b""):
                connection.transport.write(no_event)
            self._check_client(_FIRST_CHECK)
        return True

    def _check_client(self, pause: float) -> None:
        """Ends the connection if its client is gone, or checks again after a pause."""
        transport = self._connection.transport
        if transport.is_closing():
            return
        if is_reset(transport):
            transport.abort()
        else:
            next_pause = min(2 * pause, _LONGEST_PAUSE)
            self._checking = self._loop.call_later(pause, self._check_client, next_pause)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.lost()
        if self._checking is not None:
            self._checking.cancel()
        self.incoming = self.unparsed = None
        # These refer to the protocol: break the reference cycles.
        del self._parser, self._connection
        self._listener.on_lost()

    # -- from the parser

    def on_message_begin(self) -> None:
        self.url = b""
        self._raw_headers = []
        self._first_piece = self._last_piece
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # After a body it is a trailer: it must not become a header, which nothing would check.
        if self.in_head:
            self._raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.in_head = False
        most = self._first_piece + self._header_bytes
        self._header_bytes = self._framing = 0
        connection = self._connection
        if connection.refused:
            return
        if most > HEADER_LIMIT and self._head_size() > HEADER_LIMIT:
            connection.refuse(HeadersTooLarge())
            return
        parser, listener = self._parser, self._listener
        method = parser.get_method()
        if parser.should_upgrade() and method != b"CONNECT":
            self._offer = True
            return
        if listener.guard is not None and self._stop(listener.guard, method):
            return
        version = parser.get_http_version()
        if version not in SUPPORTED_VERSIONS:
            connection.refuse(UnsupportedVersion(version))
            return
        hot = listener.hot
        target = None if hot is None or method in _NEVER_HOT else hot.find(self.url)
        if target is None:
            self._add_cycle(method, version)
            return
        keep_alive = version != "1.0" and parser.should_keep_alive()
        exchange = ConnectionExchange(connection, target, method, version, self._raw_headers, keep_alive)
        if exchange.doubt and (fault := fault_of(self._raw_headers, version)) is not None:
            connection.refuse(fault)
            return
        self.incoming = exchange
        connection.add(exchange)

    def _add_cycle(self, method: bytes, version: str) -> None:
        """Leaves the request to the application."""
        connection = self._connection
        fault = fault_of(self._raw_headers, version)
        target = None if method == b"CONNECT" else read_target(self.url)
        if fault is not None or target is None:
            connection.refuse(fault or invalid_message())
            return
        keep_alive = version != "1.0" and self._parser.should_keep_alive()
        connection.add(AsgiCycle(connection, target, method, version, self._raw_headers, keep_alive))

    def _stop(self, guard: Guard, method: bytes) -> bool:
        """Refuses a request that the guard rejects; preflight requests of browsers have no token."""
        connection = self._connection
        if self._listener.cors is not None and is_preflight(method.decode(), self._raw_headers):
            return False
        error = guard.check(method, self.url, self._raw_headers)
        if error is None:
            return False
        if connection.newest is not None and not connection.newest.response_complete:
            connection.refuse(error)
            return True
        target = read_target(self.url) or Target("/", b"", "-")
        version = self._parser.get_http_version()
        exchange = ConnectionExchange(
            connection, target, method, version, self._raw_headers, keep_alive=False
        )
        connection.newest = connection.exchange = exchange
        connection.refuse(error, exchange)
        return True

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self._raw_headers)

    def on_chunk_header(self) -> None:
        self._chunk = 0

    def on_chunk_complete(self) -> None:
        self._chunk = -1

    def on_body(self, body: bytes) -> None:
        self._framing = 0
        connection = self._connection
        if connection.refused:
            return
        if self._chunk >= 0:
            self._chunk += len(body)
        exchange = self.incoming
        if exchange is None:
            if connection.newest is not None:
                connection.newest.receive(body)
        elif exchange.receive(body) > self._listener.max_body and exchange is connection.exchange:
            connection.refuse(PayloadTooLarge.of(self._listener.max_body), exchange)

    def on_message_complete(self) -> None:
        if self._offer:
            return
        connection, arrival = self._connection, self._arrival
        arrival.receiving = False
        if arrival.size:
            arrival.size = 0
            arrival.hold(0)
        if connection.refused:
            if connection.lingers and not connection.transport.can_write_eof():
                # Clients over TLS see the end only now.
                connection.transport.close()
            return
        exchange, self.incoming = self.incoming, None
        if exchange is None:
            if connection.newest is not None:
                connection.newest.complete()
            return
        exchange.complete()
        if exchange is connection.exchange:
            connection.serve(exchange)


class HttpServer(HttpListener):
    """Serves the connections of one listener, whichever process accepts them."""

    __slots__ = ()

    def connect(self) -> HttpProtocol:
        """The protocol of one connection."""
        return HttpProtocol(self)


def _new_parser(target: HttpProtocol) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(target)
    # Data after a request that closes the connection must not prevent its response.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
