"""An exchange on a connection: its head read once, its body collected, its answer written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from modelserver.engine.ids import accept_request_id, make_uuid
from modelserver.surface.http.answers import ALWAYS_BLOCK, STATUS_LINES, clean, status_line
from modelserver.surface.http.exchange import MAX_UNSENT, Exchange, Target

if TYPE_CHECKING:
    from modelserver.surface.http.cors import Cors

_log = logging.getLogger("modelserver.api")

_pack = msgspec.msgpack.Encoder().encode

# Pieces of a body smaller than this are joined: an object for each would cost more than copying.
_SMALL_PIECE = 4096
# A body larger than this is not copied to be written with its head.
_JOINED = 1 << 16
# What makes a head suspicious: no Host, or two; a transfer coding; a length of many digits.
_NO_HOST = 1 << 20
_SHORT_LENGTH = 12


class ExchangeConnection(Protocol):
    """A source of requests, one after the other, that takes their answers."""

    transport: Any
    cors: Cors | None

    def finish(
        self, exchange: ConnectionExchange, status: int, answer: bytes, body: bytes = b"", *, keep: bool
    ) -> None:
        """Writes the rest of an answer, and starts the next request."""

    def write(self, data: bytes) -> None:
        """Writes a part of an answer."""


class ConnectionExchange(Exchange):
    """An exchange on a connection of this process.

    Headers that the server itself reads also become ``announced`` (content length, 0 without one) and
    ``doubt`` (0 if the head is unambiguous, see :mod:`modelserver.surface.http.head`).

    For the connection, some members are also those of an :class:`AsgiCycle`: ``more_body``, ``received``,
    ``keep_alive``, ``response_complete``, ``no_event`` (a comment, if its answer is a stream of events),
    ``receive``, ``complete`` and ``leave``.
    """

    __slots__ = (
        "announced",
        "connection",
        "doubt",
        "expects_continue",
        "keep_alive",
        "more_body",
        "no_event",
        "pieces",
        "received",
        "response_complete",
    )

    def __init__(  # noqa: PLR0917 - called for each request
        self,
        connection: ExchangeConnection,
        target: Target,
        method: bytes,
        http_version: str,
        headers: list[tuple[bytes, bytes]],
        keep_alive: bool,
    ) -> None:
        # Called for each request: `super()` would double the cost.
        Exchange.__init__(self, target, method, http_version)
        self.connection = connection
        self._headers = headers
        self.keep_alive = keep_alive
        self.more_body = True
        self.response_complete = False
        self.pieces: list[bytes | bytearray] = []
        self.received = 0
        self.announced = 0
        self.doubt = _NO_HOST
        self.expects_continue = False
        for name, value in headers:
            # Few clients use another case than those listed.
            read = _READERS.get(name) or _READERS.get(name.lower())
            if read is not None:
                read(self, value)
        if not self.request_id:
            self.request_id = make_uuid()
        self.started = monotonic()

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return self._headers

    def receive(self, piece: bytes) -> int:
        """Adds a piece of the body; returns the bytes received so far."""
        pieces, size = self.pieces, len(piece)
        if pieces and size < _SMALL_PIECE:
            last = pieces[-1]
            if isinstance(last, bytearray):
                last += piece
            else:
                pieces.append(bytearray(piece))
        else:
            pieces.append(piece)
        self.received += size
        return self.received

    def complete(self) -> None:
        """The body is complete."""
        self.more_body = False
        pieces = self.pieces
        # The first piece is never a bytearray.
        self.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)  # type: ignore[assignment]
        pieces.clear()

    def leave(self) -> None:
        if not (self.disconnected or self.response_complete):
            Exchange.leave(self)

    def packed_headers(self) -> bytes:
        return _pack(self._headers)

    def reply(
        self, status: int, body: bytes, content_type: str = "", extra: bytes = b"", phrase: str = ""
    ) -> None:
        if self.answered:
            return
        self.answered = True
        self.on_disconnect = None
        if self.watcher is not None:
            watcher, self.watcher = self.watcher, None
            watcher.replied(status, body, content_type, extra)
        keep = self.keep_alive and status < 400
        parts = self._head(status, content_type, extra, phrase)
        if status != 204:
            parts.append(b"content-length: %d\r\n" % len(body))
        parts.append(b"connection: keep-alive\r\n\r\n" if keep else b"connection: close\r\n\r\n")
        # These have no body, whatever the handler returned: a client would read it as the next answer.
        if status in (204, 304) or self.method == b"HEAD":
            body = b""
        if len(body) <= _JOINED:
            parts.append(body)
            body = b""
        self.connection.finish(self, status, b"".join(parts), body, keep=keep)

    def _head(self, status: int, content_type: str, extra: bytes, phrase: str) -> list[bytes]:
        cors = self.connection.cors
        if cors is not None:
            extra += cors.lines(extra)
        parts = [
            (not phrase and STATUS_LINES.get(status)) or status_line(status, phrase),
            b"x-request-id: ",
            self.request_id.encode("latin-1"),
            b"\r\n",
            ALWAYS_BLOCK,
            extra,
        ]
        if content_type:
            parts.append(_type_line(content_type))
        return parts

    def begin(self, status: int, content_type: str = "", extra: bytes = b"", phrase: str = "") -> None:
        if self.answered:
            return
        self._note_begin(status, content_type, extra)
        self.keep_alive = self.keep_alive and status < 400
        parts = self._head(status, content_type, extra, phrase)
        if content_type.startswith("text/event-stream") and self._has_body:
            self.no_event = b"3\r\n:\n\n\r\n" if self._chunked else b":\n\n"
        if self._chunked:
            parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"connection: keep-alive\r\n\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self._write(b"".join(parts))

    def send(self, part: bytes) -> None:
        if not self.sent_status or not part or not self._has_body or self.disconnected:
            return
        if self.watcher is not None:
            self.watcher.part(part)
        transport = self.connection.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > MAX_UNSENT:
            _log.warning(
                "Request %s: the client reads its answer too slowly, more than %d bytes wait for it; "
                "the connection is closed.",
                self.request_id,
                MAX_UNSENT,
            )
            transport.abort()
        else:
            self._write(b"%x\r\n%b\r\n" % (len(part), part) if self._chunked else part)

    def unsent(self) -> int:
        size: int = self.connection.transport.get_write_buffer_size()
        return size

    def end(self, complete: bool = True) -> None:
        if not self.sent_status:
            return
        status, chunked = self.sent_status, self._chunked
        self._note_end(complete)
        if complete:
            self.connection.finish(self, status, b"0\r\n\r\n" if chunked else b"", keep=self.keep_alive)
            return
        transport = self.connection.transport
        self.connection.finish(self, 500, b"", keep=False)
        if not chunked:
            # A regular close would mark a complete answer.
            transport.abort()

    @property
    def _has_body(self) -> bool:
        return self.sent_status not in (204, 304) and self.method != b"HEAD"

    @property
    def _chunked(self) -> bool:
        return self.http_version != "1.0" and self._has_body

    def _write(self, data: bytes) -> None:
        connection = self.connection
        if not self.disconnected and not connection.transport.is_closing():
            connection.write(data)


@lru_cache(256)
def _type_line(content_type: str) -> bytes:
    return b"content-type: %b\r\n" % clean(content_type).encode("latin-1", "replace")


def _read_length(exchange: ConnectionExchange, value: bytes) -> None:
    exchange.announced = int(value[:20])
    if len(value) > _SHORT_LENGTH:
        exchange.doubt += 1


def _read_host(exchange: ConnectionExchange, _: bytes) -> None:
    exchange.doubt -= _NO_HOST


def _read_coding(exchange: ConnectionExchange, _: bytes) -> None:
    exchange.doubt += 1


def _read_type(exchange: ConnectionExchange, value: bytes) -> None:
    exchange.content_type = value.decode("latin-1")


def _read_id(exchange: ConnectionExchange, value: bytes) -> None:
    exchange.request_id = accept_request_id(value)


def _read_encoding(exchange: ConnectionExchange, value: bytes) -> None:
    exchange.encoding = value


def _read_deadline(exchange: ConnectionExchange, value: bytes) -> None:
    if value.isdigit():
        exchange.deadline_ms = int(value[:12])


def _read_expectation(exchange: ConnectionExchange, value: bytes) -> None:
    exchange.expects_continue = value.lower() == b"100-continue"


def _read_traceparent(exchange: ConnectionExchange, _: bytes) -> None:
    exchange.has_traceparent = True


_READERS: dict[bytes, Callable[[ConnectionExchange, bytes], None]] = {
    b"content-length": _read_length,
    b"content-type": _read_type,
    b"content-encoding": _read_encoding,
    b"expect": _read_expectation,
    b"host": _read_host,
    b"traceparent": _read_traceparent,
    b"transfer-encoding": _read_coding,
    b"x-request-id": _read_id,
    # The client's deadline in milliseconds: our header, and the one that Envoy sets for its services.
    b"x-request-timeout-ms": _read_deadline,
    b"x-envoy-expected-rq-timeout-ms": _read_deadline,
}
# As most clients write them.
_READERS |= {name.title(): reader for name, reader in _READERS.items()}
