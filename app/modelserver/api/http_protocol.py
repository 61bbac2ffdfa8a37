"""uvicorn's HTTP protocol, with a short way for hot routes and firm limits for all.

* Requests on hot routes become an :class:`Exchange` and never an ASGI task.
* A body over the limit is answered 413 before it is read whole; a head over its limit 431; what is no HTTP
  at all 400.
* Who sends a head or a body too slowly, or holds an idle connection for too long, is cut off by one timer for
  all connections (F15), instead of one per request.
* Header names keep the client's case for handlers that look them up by it (reference 7.3).

It builds on the attributes of ``HttpToolsProtocol`` and ``RequestResponseCycle``;
``tests/api/test_http_protocol.py`` holds uvicorn to them.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from modelserver.api.answers import JSON, error_body, status_line
from modelserver.api.exchange import Exchange
from modelserver.api.ids import make_request_id
from modelserver.errors import BadRequest, InternalError, ModelServerError, PayloadTooLarge

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from uvicorn.config import Config

_log = logging.getLogger("modelserver.api")

HEADER_LIMIT = 65536
# Bytes of a body that must come between two checks for the client to count as sending.
MIN_PROGRESS = 4096


class HotRoutes(Protocol):
    """The endpoint of the short way."""

    def handles(self, method: str, path: str) -> bool:
        """Whether requests for this path take the short way."""
        ...

    def serve(self, exchange: Exchange) -> None:
        """Answers the exchange, now or later."""
        ...


@dataclass(slots=True)
class Listener:
    """What the connections of one listener share. Times in seconds, sizes in bytes."""

    hot: HotRoutes | None
    max_body: int
    on_response: Callable[[str, str, bytes, str, int, float], None]
    receive_timeout: float = 60.0
    keep_alive: float = 75.0
    state: ServerState = field(default_factory=ServerState)

    def check(self, now: float) -> None:
        """Closes the connections that are too slow or idle for too long; to be called every few seconds."""
        for protocol in list(self.state.connections):
            if isinstance(protocol, HttpProtocol):
                protocol.check(now)


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, config: Config, listener: Listener) -> None:
        super().__init__(config, listener.state, {})
        self._listener = listener
        self._raw_headers: list[tuple[bytes, bytes]] = []
        # What came of a head that is not complete, and what a complete one has.
        self._header_bytes = 0
        self._head_size = 0
        self._in_headers = True
        self._refused = False
        self._exchange: Exchange | None = None
        # Since when the client owes us the rest of a request (or, between requests, a new one).
        self._waiting_since = time.monotonic()
        self._receiving = False
        self._seen = 0
        self._held = False

    # -- from the transport

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_headers:
            self._header_bytes += len(data)
        if not self._receiving:
            self._receiving = True
            self._waiting_since = time.monotonic()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no protocol is offered to upgrade to: the request is answered as it stands
        except httptools.HttpParserCallbackError:
            # Not the client's fault: an endpoint of the short way raised what it should have answered.
            _log.exception("Failure while taking in a request")
            if not self._refused:
                self._refuse(InternalError("The server failed to answer; its log says why."), self._exchange)
            return
        except httptools.HttpParserError:
            if not self._refused:
                self._refuse(BadRequest("Invalid HTTP message."))
            return
        if self._in_headers and self._header_bytes > HEADER_LIMIT and not self._refused:
            self._refuse(_HeadersTooLarge())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.on_disconnect is not None:
            exchange.on_disconnect()

    # -- from the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._raw_headers = []
        self._head_size = 0
        self._in_headers = True

    def on_url(self, url: bytes) -> None:
        self._head_size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_size += len(name) + len(value) + 4
        self._raw_headers.append((name, value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        if self._refused:
            return
        if self._head_size > HEADER_LIMIT:
            self._refuse(_HeadersTooLarge())
            return
        if self.parser.get_method() == b"CONNECT":
            self._refuse(BadRequest("Invalid HTTP message."))
            return
        try:
            super().on_headers_complete()
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            self._refuse(BadRequest("Invalid HTTP message."))

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        exchange = self._exchange
        if exchange is None or exchange.cycle is not self.cycle:
            super().on_body(body)
            return
        collected = self.cycle.body
        collected += body
        if len(collected) > self._listener.max_body:
            self._refuse(too_large(self._listener.max_body), exchange)

    def on_message_complete(self) -> None:
        self._receiving = False
        if self._refused:
            return
        super().on_message_complete()
        exchange = self._exchange
        if exchange is not None and exchange.cycle is self.cycle:
            self._serve(exchange)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Called by uvicorn when it is a request's turn: its headers are there, its body may not be."""
        scope = cycle.scope
        hot = self._listener.hot
        announced = announced_length(scope["headers"])
        if announced > self._listener.max_body:
            self._refuse(too_large(self._listener.max_body), Exchange(self, cycle, self._raw_headers))
            return
        if self.flow.write_paused:
            self.pipeline.append((cycle, app))
            self._hold()
            return
        if hot is None or not hot.handles(scope["method"], scope["path"]):
            super()._start_asgi_task(cycle, app)
            return
        self._exchange = exchange = Exchange(self, cycle, self._raw_headers)
        if cycle.waiting_for_100_continue:
            cycle.waiting_for_100_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not cycle.more_body:
            # A pipelined request whose body came while the one before it was being answered.
            self._serve(exchange)

    def _serve(self, exchange: Exchange) -> None:
        cycle = exchange.cycle
        exchange.body = bytes(cycle.body)
        cycle.body = bytearray()
        if len(exchange.body) > self._listener.max_body:
            # A pipelined body: nobody looked at its size while it came.
            self._refuse(too_large(self._listener.max_body), exchange)
            return
        assert self._listener.hot is not None  # noqa: S101 - there is no exchange without
        self._listener.hot.serve(exchange)

    # -- answers

    def finish(self, exchange: Exchange, status: int, answer: bytes, *, keep: bool) -> None:
        """Writes an exchange's answer and makes way for the next request."""
        cycle = exchange.cycle
        self._listener.on_response(
            self._client(), exchange.method, self._target(exchange), cycle.scope["http_version"], status,
            time.perf_counter() - exchange.started,
        )  # fmt: skip
        if self._exchange is exchange:
            self._exchange = None
        if cycle.disconnected or self.transport.is_closing():
            return
        cycle.response_started = cycle.response_complete = True
        self.transport.write(answer)
        if not keep:
            cycle.keep_alive = False
            self._close_gently()
            return
        cycle.on_response()

    def on_response_complete(self) -> None:
        """uvicorn's own, without a timer per answer."""
        self.server_state.total_requests += 1
        self._waiting_since = time.monotonic()
        if self.transport.is_closing():
            return
        if self.flow.write_paused:
            self._hold()
        else:
            self._next()

    def _hold(self) -> None:
        """The client does not read: it gets no further answers before it took those it has."""
        self._held = True
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._held:
            self._held = False
            self._next()

    def _next(self) -> None:
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)

    def _refuse(self, error: ModelServerError, exchange: Exchange | None = None) -> None:
        """Answers a request that is not going to be read to its end, and closes."""
        self._refused = True
        if exchange is not None:
            exchange.request_id = make_request_id()
            exchange.fail(error)
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # Good requests came before: theirs are the answers that are still owed, then the connection ends.
            cycle.keep_alive = False
            return
        status, body = error_body(error)
        self._listener.on_response(self._client(), "-", b"-", "1.1", status, 0.0)
        head = f"x-request-id: {make_request_id()}\r\ncontent-type: {JSON}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(status_line(status) + head.encode() + b"connection: close\r\n\r\n" + body)
        self._close_gently()

    def _close_gently(self) -> None:
        """Closes once the client had a chance to read the answer.

        Closing at once while it is still sending would make its system throw the answer away.
        """
        if not self._receiving:
            self.transport.close()
            return
        self._refused = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(2.0, self.transport.close)

    # -- limits in time

    def check(self, now: float) -> None:
        """Closes the connection if the client owes us something for too long."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not self.flow.write_paused:
            received = len(cycle.body)
            if self.pipeline or not cycle.more_body or received - self._seen >= MIN_PROGRESS:
                self._waiting_since = now
            self._seen = received
        limit = self._listener.receive_timeout if self._receiving else self._listener.keep_alive
        if now - self._waiting_since <= limit:
            return
        if self.transport.is_closing() or self.flow.write_paused:
            # Closing in order would wait for a client that does not read.
            self.transport.abort()
        else:
            self.transport.close()

    def _client(self) -> str:
        client = self.client
        return f"{client[0]}:{client[1]}" if client else "unix"

    def _target(self, exchange: Exchange) -> bytes:
        scope = exchange.cycle.scope
        raw: bytes = scope["raw_path"]
        return raw + b"?" + exchange.query if exchange.query else raw


class _HeadersTooLarge(BadRequest):
    status = 431

    def __init__(self) -> None:
        super().__init__(f"The request's headers are over the limit of {HEADER_LIMIT} bytes.")


def announced_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """The content length that the client announced, 0 without one."""
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


def too_large(limit: int) -> PayloadTooLarge:
    """The error for a body over the limit."""
    return PayloadTooLarge(f"The request body is larger than max_request_size={limit} bytes.")


def check_regularly(loop: asyncio.AbstractEventLoop, listeners: list[Listener], every: float = 5.0) -> None:
    """Arms the timer that checks all connections, now and for ever."""
    now = time.monotonic()
    for listener in listeners:
        listener.check(now)
    loop.call_later(every, check_regularly, loop, listeners, every)
