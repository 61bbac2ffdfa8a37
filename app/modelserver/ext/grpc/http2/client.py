"""A client for comparisons: one request, blocking, over a connection of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from modelserver.ext.grpc.http2.errors import Broken
from modelserver.ext.grpc.http2.fields import FieldDecoder
from modelserver.ext.grpc.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEADERS,
    MAX_WINDOW,
    NUMBER,
    PADDED,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Code,
    Setting,
    field,
    frame,
    settings,
    window_update,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

_STREAM = 1
_MOST_FIELDS = 1 << 16  # bytes of header fields


@dataclass(frozen=True, slots=True)
class Reply:
    """``fields`` are those of the head and of the trailers."""

    fields: dict[bytes, bytes]
    body: bytes


def post(
    connection: socket.socket, url: str, fields: Iterable[tuple[bytes, bytes]], body: bytes, patience: float
) -> Reply:
    """The reply over a new connection to the server of the URL, at the latest after ``patience`` seconds.

    Raises OSError and Broken.
    """
    scheme, authority, path, _, _ = (part.encode() for part in urlsplit(url))
    own = [(b":method", b"POST"), (b":scheme", scheme), (b":path", path), (b":authority", authority)]
    exchange = _Exchange(connection, time.monotonic() + patience)
    exchange.begin(b"".join(field(*each) for each in (*own, *fields)))
    exchange.send(body)
    return exchange.reply()


class _Exchange:
    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._received = b""
        self._fields: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._decoder = FieldDecoder(_MOST_FIELDS, dict)
        self._block = b""
        self._ends = self._ended = False
        # Bytes that may be sent: on the connection, on the stream, and on a new stream.
        self._window = self._stream_window = self._initial = DEFAULT_WINDOW

    def begin(self, block: bytes) -> None:
        """Sends the head, and lets the server send without waiting."""
        limits = settings([(Setting.ENABLE_PUSH, 0), (Setting.INITIAL_WINDOW_SIZE, MAX_WINDOW)])
        wide = window_update(0, MAX_WINDOW - DEFAULT_WINDOW)
        self._connection.sendall(PREFACE + limits + wide + frame(HEADERS, END_HEADERS, _STREAM, block))

    def send(self, body: bytes) -> None:
        """Sends the body as the server's windows admit it, unless the reply ends first."""
        rest = memoryview(body)
        while not self._ended:
            size = min(len(rest), DEFAULT_FRAME, self._window, self._stream_window)
            if rest and size <= 0:
                self._take()
                continue
            last = size == len(rest)
            self._connection.sendall(frame(DATA, END_STREAM if last else 0, _STREAM, bytes(rest[:size])))
            rest = rest[size:]
            self._window -= size
            self._stream_window -= size
            if last:
                return

    def reply(self) -> Reply:
        """What came until the end of the stream."""
        while not self._ended:
            self._take()
        return Reply(self._fields, b"".join(self._body))

    def _take(self) -> None:
        """Reads a frame and does what it says. Raises OSError, Broken."""
        word, flags, stream = HEAD.unpack(self._read(HEAD.size))
        kind, size = word & 0xFF, word >> 8
        if size > DEFAULT_FRAME:
            raise Broken(Code.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
        payload = self._read(size)
        if kind == SETTINGS and not flags & ACK:
            self._set(payload)
        elif kind == PING and not flags & ACK:
            self._connection.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            if stream:
                self._stream_window += NUMBER.unpack(payload)[0]
            else:
                self._window += NUMBER.unpack(payload)[0]
        elif kind == GOAWAY and NUMBER.unpack_from(payload)[0] < _STREAM:
            raise Broken(Code(NUMBER.unpack_from(payload, 4)[0]), "the connection was refused")
        elif kind == RST_STREAM:
            raise Broken(Code(NUMBER.unpack(payload)[0]), "the stream was reset")
        elif kind == PUSH_PROMISE:
            raise Broken(Code.PROTOCOL_ERROR, "a promise that nobody asked for")
        elif kind in {HEADERS, CONTINUATION}:
            self._add_fields(kind, flags, payload)
        elif kind == DATA:
            self._body.append(_without_padding(flags, payload))
            self._ended = bool(flags & END_STREAM)

    def _add_fields(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._ends = bool(flags & END_STREAM)
            payload = _without_padding(flags, payload)
            if flags & WITH_PRIORITY:
                payload = payload[5:]
        self._block += payload
        if flags & END_HEADERS:
            self._fields |= self._decoder.decode(self._block)
            self._block = b""
            self._ended = self._ends

    def _set(self, payload: bytes) -> None:
        for name, value in SETTING.iter_unpack(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._initial
                self._initial = value
        self._connection.sendall(frame(SETTINGS, ACK, 0))

    def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            self._connection.settimeout(left)
            if not (more := self._connection.recv(1 << 16)):
                raise ConnectionResetError("closed by the server")
            self._received += more
        taken, self._received = self._received[:size], self._received[size:]
        return taken


def _without_padding(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
