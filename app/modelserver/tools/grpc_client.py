"""The client's side of a call, for comparisons: over a connection of its own."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes, urlsplit

from modelserver.ext.grpc.framing import PREFIX
from modelserver.ext.grpc.http2 import frames
from modelserver.ext.grpc.http2.fields import FieldDecoder
from modelserver.ext.grpc.http2.frames import Code, Http2Error, SettingId
from modelserver.ext.grpc.statuses import StatusCode

if TYPE_CHECKING:
    import ssl

Fields: TypeAlias = "Iterable[tuple[bytes, bytes]]"
_PREFIX = struct.Struct(">BI")
_STREAM = 1
_MOST_FIELDS = 1 << 16  # bytes of header fields


class CallResult(NamedTuple):
    """How a call ended. ``content`` are its messages, each with its prefix; ``text`` tells a failure."""

    code: StatusCode
    text: bytes
    content: bytes


async def send_call(
    url: str, metadata: Fields, content: bytes, patience: float, tls: ssl.SSLContext | None = None
) -> CallResult:
    """Sends messages, with their prefixes, to the server of the URL, whose path is the method's.

    Raises as :func:`post`, and ValueError for an answer that is not gRPC's.
    """
    own = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
    reply = await post(url, (*metadata, *own), content, patience, tls)
    if (status := reply.fields.get(b"grpc-status")) is None:
        raise ValueError(f"no answer of gRPC: status {reply.fields.get(b':status', b'-').decode('latin-1')}")
    text = unquote_to_bytes(reply.fields.get(b"grpc-message", b""))
    return CallResult(StatusCode(int(status)), text, reply.body)


def messages_of(content: bytes) -> Iterator[bytes]:
    """The messages, without their prefixes. Raises ValueError for one that is compressed, or cut off."""
    at = 0
    while at < len(content):
        flag, size = _PREFIX.unpack_from(content, at) if at + PREFIX <= len(content) else (1, 0)
        end = at + PREFIX + size
        if flag or end > len(content):
            raise ValueError("a message cannot be read")
        yield content[at + PREFIX : end]
        at = end


class Http2Response(NamedTuple):
    """A response; ``fields`` are those of the head and of the trailers."""

    fields: dict[bytes, bytes]
    body: bytes


async def post(
    url: str, fields: Fields, body: bytes, patience: float, tls: ssl.SSLContext | None = None
) -> Http2Response:
    """The reply over a new connection to the server of the URL.

    Raises OSError, Http2Error, and TimeoutError after ``patience`` seconds.
    """
    return await asyncio.wait_for(_post(url, fields, body, tls), patience)


async def _post(url: str, fields: Fields, body: bytes, tls: ssl.SSLContext | None) -> Http2Response:
    parts = urlsplit(url)
    scheme, authority, path, _, _ = (part.encode() for part in parts)
    own = [(b":method", b"POST"), (b":scheme", scheme), (b":path", path), (b":authority", authority)]
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
    try:
        exchange = _Exchange(reader, writer)
        exchange.begin(b"".join(frames.field(*each) for each in (*own, *fields)))
        await exchange.send(body)
        return await exchange.reply()
    finally:
        writer.transport.abort()


class _Exchange:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._fields: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._decoder = FieldDecoder(_MOST_FIELDS, dict)
        self._block = b""
        self._ends = self._ended = False
        # Bytes that may be sent: on the connection, on the stream, and on a new stream.
        self._window = self._stream_window = self._initial = frames.DEFAULT_WINDOW

    def begin(self, block: bytes) -> None:
        """Sends the head, and lets the server send without waiting."""
        limits = frames.settings(
            [(SettingId.ENABLE_PUSH, 0), (SettingId.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW)]
        )
        wide = frames.window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, _STREAM, block)
        self._writer.write(frames.PREFACE + limits + wide + head)

    async def send(self, body: bytes) -> None:
        """Sends the body as the server's windows admit it, unless the reply ends first."""
        rest = memoryview(body)
        while not self._ended:
            size = min(len(rest), frames.DEFAULT_FRAME, self._window, self._stream_window)
            if rest and size <= 0:
                await self._take()
                continue
            last = size == len(rest)
            flags = frames.END_STREAM if last else 0
            self._writer.write(frames.frame(frames.DATA, flags, _STREAM, bytes(rest[:size])))
            rest = rest[size:]
            self._window -= size
            self._stream_window -= size
            if last:
                return

    async def reply(self) -> Http2Response:
        """What came until the end of the stream."""
        while not self._ended:
            await self._take()
        return Http2Response(self._fields, b"".join(self._body))

    async def _take(self) -> None:
        """Reads a frame and does what it says. Raises OSError, Http2Error."""
        word, flags, stream = frames.HEAD.unpack(await self._read(frames.HEAD.size))
        kind, size = word & 0xFF, word >> 8
        if size > frames.DEFAULT_FRAME:
            raise Http2Error(Code.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
        payload = await self._read(size)
        if kind == frames.SETTINGS and not flags & frames.ACK:
            self._set(payload)
        elif kind == frames.PING and not flags & frames.ACK:
            self._writer.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.WINDOW_UPDATE:
            if stream:
                self._stream_window += frames.NUMBER.unpack(payload)[0]
            else:
                self._window += frames.NUMBER.unpack(payload)[0]
        elif kind == frames.GOAWAY and frames.NUMBER.unpack_from(payload)[0] < _STREAM:
            raise Http2Error(Code(frames.NUMBER.unpack_from(payload, 4)[0]), "the connection was refused")
        elif kind == frames.RST_STREAM:
            raise Http2Error(Code(frames.NUMBER.unpack(payload)[0]), "the stream was reset")
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(Code.PROTOCOL_ERROR, "a promise that nobody asked for")
        elif kind in {frames.HEADERS, frames.CONTINUATION}:
            self._add_fields(kind, flags, payload)
        elif kind == frames.DATA:
            self._body.append(_without_padding(flags, payload))
            self._ended = bool(flags & frames.END_STREAM)

    def _add_fields(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == frames.HEADERS:
            self._ends = bool(flags & frames.END_STREAM)
            payload = _without_padding(flags, payload)
            if flags & frames.WITH_PRIORITY:
                payload = payload[5:]
        self._block += payload
        if flags & frames.END_HEADERS:
            self._fields |= self._decoder.decode(self._block)
            self._block = b""
            self._ended = self._ends

    def _set(self, payload: bytes) -> None:
        for name, value in frames.SETTING.iter_unpack(payload):
            if name == SettingId.INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._initial
                self._initial = value
        self._writer.write(frames.frame(frames.SETTINGS, frames.ACK, 0))

    async def _read(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("closed by the server") from error


def _without_padding(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & frames.PADDED else payload
