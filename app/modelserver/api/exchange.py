"""One HTTP request on a hot route, and the way to answer it.

Inference is most of what the server does, so its requests take a short way: no task, no ASGI messages, one
look at each header, one write per answer. Everything else goes through the ASGI application.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import httptools
import msgspec

from modelserver.api.answers import JSON, NO_CACHE_BLOCK, clean, error_body, status_line
from modelserver.api.ids import accept_request_id, make_request_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.api.http_protocol import HttpProtocol
    from modelserver.errors import ModelServerError


_log = logging.getLogger("modelserver.api")

_pack = msgspec.msgpack.Encoder().encode

# Pieces of a body with fewer bytes than this are kept joined: each object of its own costs more than they do.
_SMALL_PIECE = 4096
# A body with more bytes than this is not copied to stand behind its head.
_JOINED = 1 << 16
# What makes a head worth a second look: no Host, or two; a transfer coding; a length of many digits.
_NO_HOST = 1 << 20
_SHORT_LENGTH = 12
# Bytes of an answer in parts that may wait for a client that reads slowly: as many as a whole answer may have
# by default (max_response_size).
MAX_UNSENT = 6_553_500


@dataclass(frozen=True, slots=True)
class Target:
    """What the first line of a request names: ``path`` is decoded, ``text`` as it was sent.

    ``route`` is the endpoint's own.
    """

    path: str
    query: bytes
    text: str
    route: Any = None


def read_target(url: bytes) -> Target | None:
    """The parts of a URL as it stands in the first line, or None if it is none."""
    try:
        parsed = httptools.parse_url(url)
        path = parsed.path.decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
        return None
    query = parsed.query or b""
    text = f"{path}?{query.decode('latin-1')}" if query else path
    return Target(unquote(path) if "%" in path else path, query, text)


class _NoEvent:
    """Stands where uvicorn would wake a task that reads the body."""

    def set(self) -> None:
        pass


class Exchange:
    """A request whose body is complete when the endpoint sees it.

    It is answered by exactly one :meth:`reply`, or in parts by :meth:`begin`, :meth:`send` and :meth:`end`.

    ``headers`` are (name, value) as the client wrote them; what the server itself reads of them is in
    ``announced`` (content length, 0 without one), ``doubt`` (0 where nobody could understand the head in
    another way, see :mod:`modelserver.api.head`), ``content_type``, ``encoding``, ``deadline_ms`` (0: none)
    and ``request_id`` (the client's or a new one). ``on_disconnect`` is called if the client leaves before
    the end of the answer. ``begun`` is the status of an answer in parts between :meth:`begin` and
    :meth:`end`, otherwise 0.

    While it is the connection's current request it stands in for uvicorn's ``RequestResponseCycle``.
    """

    __slots__ = (
        "announced",
        "answered",
        "begun",
        "body",
        "content_type",
        "deadline_ms",
        "disconnected",
        "doubt",
        "encoding",
        "expects_continue",
        "headers",
        "http_version",
        "keep_alive",
        "method",
        "more_body",
        "on_disconnect",
        "pieces",
        "protocol",
        "received",
        "request_id",
        "response_complete",
        "started",
        "target",
    )

    message_event: ClassVar[_NoEvent] = _NoEvent()

    def __init__(  # noqa: PLR0917 - called for each request
        self,
        protocol: HttpProtocol,
        target: Target,
        method: bytes,
        http_version: str,
        headers: list[tuple[bytes, bytes]],
        keep_alive: bool,
    ) -> None:
        self.protocol = protocol
        self.target = target
        self.method = method
        self.http_version = http_version
        self.headers = headers
        self.keep_alive = keep_alive
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.answered = False
        self.begun = 0
        self.on_disconnect: Callable[[], None] | None = None
        self.body = b""
        self.pieces: list[bytes | bytearray] = []
        self.received = 0
        self.announced = 0
        self.doubt = _NO_HOST
        self.content_type = ""
        self.encoding = b""
        self.deadline_ms = 0
        self.expects_continue = False
        self.request_id = ""
        for name, value in headers:
            read = _READERS.get(name)
            if read is None:
                # Few clients spell a name in a way of their own.
                read = _READERS.get(name.lower())
            if read is not None:
                read(self, value)
        if not self.request_id:
            self.request_id = make_request_id()
        self.started = time.monotonic()

    def __str__(self) -> str:
        """Method and route, without the names in it."""
        return f"{self.method.decode()} {self.target.route.template}"

    def receive(self, piece: bytes) -> int:
        """Takes in a piece of the body; returns the bytes received so far."""
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
        """The body is whole."""
        self.more_body = False
        pieces = self.pieces
        # The first piece is never a bytearray.
        self.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)  # type: ignore[assignment]
        self.pieces = []

    def packed_headers(self) -> bytes:
        """``headers`` in msgpack, as workers get them."""
        return _pack(self.headers)

    def reply(
        self, status: int, body: bytes, content_type: str = "", extra: bytes = b"", phrase: str = ""
    ) -> None:
        """Writes the whole answer. ``extra`` are further header lines, each with its line end.

        As in TorchServe, an answer of 400 and above closes the connection.
        """
        if self.answered:
            return
        self.answered = True
        self.on_disconnect = None
        keep = self.keep_alive and status < 400
        parts = self._head(status, content_type, extra, phrase)
        if status != 204:
            parts.append(b"content-length: %d\r\n" % len(body))
        parts.append(b"connection: keep-alive\r\n\r\n" if keep else b"connection: close\r\n\r\n")
        # These have no body, whatever the handler returned: a client would take it for the next answer.
        if status in (204, 304) or self.method == b"HEAD":
            body = b""
        if len(body) <= _JOINED:
            parts.append(body)
            body = b""
        self.protocol.finish(self, status, b"".join(parts), body, keep=keep)

    def _head(self, status: int, content_type: str, extra: bytes, phrase: str) -> list[bytes]:
        cors = self.protocol.cors
        if cors is not None:
            extra += cors.lines(extra)
        parts = [
            status_line(status, phrase),
            b"x-request-id: ",
            self.request_id.encode("latin-1"),
            b"\r\n",
            NO_CACHE_BLOCK,
            extra,
        ]
        if content_type:
            parts.append(_type_line(content_type))
        return parts

    def begin(self, status: int, content_type: str = "", extra: bytes = b"", phrase: str = "") -> None:
        """Writes the head of an answer that comes in parts; the arguments are those of :meth:`reply`.

        A client of HTTP/1.0 gets the parts as they are, and the end of the connection as their end.
        """
        if self.answered:
            return
        self.answered = True
        self.begun = status
        self.keep_alive = self.keep_alive and status < 400
        parts = self._head(status, content_type, extra, phrase)
        if self._chunked:
            parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"connection: keep-alive\r\n\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self._write(b"".join(parts))

    def send(self, part: bytes) -> None:
        """Writes one part of an answer as one chunk; none for a part without bytes, which would be the end.

        What the client has not taken may be ``MAX_UNSENT`` bytes: a part that comes on top of more ends the
        connection, and ``on_disconnect`` is called, as for a client that leaves.
        """
        if not self.begun or not part or not self._has_body or self.disconnected:
            return
        transport = self.protocol.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > MAX_UNSENT:
            _log.warning(
                "Request %s: the client reads its answer too slowly, more than %d bytes wait for it; "
                "the connection is closed.", self.request_id, MAX_UNSENT
            )  # fmt: skip
            transport.abort()
        else:
            self._write(b"%x\r\n%b\r\n" % (len(part), part) if self._chunked else part)

    def unsent(self) -> int:
        """The bytes that the client has not taken yet, as far as that is known here."""
        protocol = getattr(self, "protocol", None)
        return 0 if protocol is None else protocol.transport.get_write_buffer_size()

    def end(self, complete: bool = True) -> None:
        """Ends an answer in parts; if it is not ``complete``, the connection, without the last chunk.

        That counts as an answer of 500, which the client cannot be told any more.
        """
        if not self.begun:
            return
        status, chunked = self.begun, self._chunked
        self.begun = 0
        self.on_disconnect = None
        if complete:
            self.protocol.finish(self, status, b"0\r\n\r\n" if chunked else b"", keep=self.keep_alive)
            return
        transport = self.protocol.transport
        self.protocol.finish(self, 500, b"", keep=False)
        if not chunked:
            # An end in order would be the end of the answer.
            transport.abort()

    @property
    def _has_body(self) -> bool:
        return self.begun not in (204, 304) and self.method != b"HEAD"

    @property
    def _chunked(self) -> bool:
        return self.http_version != "1.0" and self._has_body

    def _write(self, data: bytes) -> None:
        transport = self.protocol.transport
        if not self.disconnected and not transport.is_closing():
            transport.write(data)
            self.protocol.written += len(data)

    def fail(
        self,
        error: ModelServerError,
        *,
        kserve: bool = False,
        extra: bytes = b"",
        batch_id: str | None = None,
    ) -> None:
        """Answers with an error; see :func:`error_body`."""
        status, body = error_body(error, kserve=kserve, batch_id=batch_id)
        for name, value in error.headers:
            extra += name + b": " + value + b"\r\n"
        self.reply(status, body, JSON, extra)


@lru_cache(256)
def _type_line(content_type: str) -> bytes:
    return b"content-type: %b\r\n" % clean(content_type).encode("latin-1", "replace")


def _read_length(exchange: Exchange, value: bytes) -> None:
    exchange.announced = int(value[:20])
    if len(value) > _SHORT_LENGTH:
        exchange.doubt += 1


def _read_host(exchange: Exchange, _: bytes) -> None:
    exchange.doubt -= _NO_HOST


def _read_coding(exchange: Exchange, _: bytes) -> None:
    exchange.doubt += 1


def _read_type(exchange: Exchange, value: bytes) -> None:
    exchange.content_type = value.decode("latin-1")


def _read_id(exchange: Exchange, value: bytes) -> None:
    exchange.request_id = accept_request_id(value)


def _read_encoding(exchange: Exchange, value: bytes) -> None:
    exchange.encoding = value


def _read_deadline(exchange: Exchange, value: bytes) -> None:
    if value.isdigit():
        exchange.deadline_ms = int(value[:12])


def _read_expectation(exchange: Exchange, value: bytes) -> None:
    exchange.expects_continue = value.lower() == b"100-continue"


_READERS: dict[bytes, Callable[[Exchange, bytes], None]] = {
    b"content-length": _read_length,
    b"content-type": _read_type,
    b"content-encoding": _read_encoding,
    b"expect": _read_expectation,
    b"host": _read_host,
    b"transfer-encoding": _read_coding,
    b"x-request-id": _read_id,
    # The client's own deadline in milliseconds: ours, and the one that Envoy sets for services behind it.
    b"x-request-timeout-ms": _read_deadline,
    b"x-envoy-expected-rq-timeout-ms": _read_deadline,
}
# As most clients write them.
_READERS |= {name.title(): reader for name, reader in _READERS.items()}
