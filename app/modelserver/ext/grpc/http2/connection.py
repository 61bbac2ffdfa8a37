"""One connection: frames to streams and back (RFC 9113). Priorities are ignored, nothing is pushed."""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from modelserver.ext.grpc.http2 import frames
from modelserver.ext.grpc.http2.fields import FieldDecoder, Fields, HeaderBlock, read_block
from modelserver.ext.grpc.http2.frames import HEAD, NUMBER, SETTING, Code, Http2Error, SettingId
from modelserver.ext.grpc.http2.stream import Http2Limits, Http2Stream, StreamCarrier

# Frames that bring nothing, and requests that are given up, since the last check: attacks consist of those.
# Settings cost more than others, as all streams change with them; data that is sent makes up for some.
MOST_WASTE = 10_000
_SETTINGS, _MADE_UP = 50, 4
# DATA frames of ended streams count too if they have fewer bytes: those of uploads, on the way, are larger.
_SMALL = 1024
# Parts of a header block.
_MOST_PARTS = 64
# Bytes that are sent at once.
_LARGEST_WRITE = 512 << 10
# Seconds, and new streams, after which the frames that are left of a piece wait for the loop's next turn.
_TURN = 0.004
_MOST_NEW = 64
# Seconds between the announcement that no new streams are served and their refusal.
_NOTICE = 0.1
# How requests of HTTP/1.1 begin, and the response to them.
_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC")
_PLAIN_TEXT = b"This port is for gRPC (HTTP/2 without an upgrade).\n"
_HTTP1_RESPONSE = b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
    len(_PLAIN_TEXT),
    _PLAIN_TEXT,
)


@dataclass(slots=True)
class Http2Listener:
    """The state that the connections of a port share.

    ``make`` makes the stream of a request, ``read`` what the stream gets of its header fields. ``count`` is
    called with a connection or stream and the bytes of answers that it holds; it may :meth:`cut` others.
    """

    make: Callable[[StreamCarrier, int], Http2Stream]
    read: Callable[[Fields], Any]
    limits: Http2Limits = field(default_factory=Http2Limits)
    count: Callable[[Any, int], None] = lambda *_: None
    connections: set[Http2Connection] = field(default_factory=set)
    closing: bool = False

    def check(self) -> None:
        """Ends what makes no progress; to be called every few seconds."""
        now = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            connection.check(now)

    def refuse(self) -> None:
        """Takes no new streams; connections end with their last one."""
        self.closing = True
        for connection in list(self.connections):
            connection.drain()
            for stream in list(connection.streams.values()):
                stream.on_shutdown()


class FrameProtocol(asyncio.Protocol):
    """Bytes to frames and back, for a client that speaks HTTP/2 from its first byte.

    ``window`` is how many bytes the client takes over all streams.
    """

    def __init__(self, limits: Http2Limits, count: Callable[[Any, int], None]) -> None:
        self.limits = limits
        self.count = count
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.window = frames.DEFAULT_WINDOW
        self._peer_frame = frames.DEFAULT_FRAME
        self._transport: asyncio.Transport | None = None
        # Received bytes that are no whole frame yet, how many they are, and how many can be one.
        self._pieces: list[bytes] = []
        self._have, self._need = 0, len(frames.PREFACE)
        # Whether frames among them wait for the loop's next turn; nothing is read until then.
        self._postponed = False
        self._has_preface = False
        self._received_at = self.now()
        # The newest stream of the client.
        self._last = 0
        self._out: list[bytes | memoryview] = []
        self._out_size = 0
        self._flushing = False
        self._paused_since: float | None = None
        # Streams that can send as soon as the connection can, first come first served.
        self._waiting: OrderedDict[int, Http2Stream] = OrderedDict()
        self._over_since: float | None = None

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        raise NotImplementedError

    # -- receiving

    def data_received(self, data: bytes) -> None:
        if self._over_since is not None:
            return
        self._received_at = self.now()
        self._have += len(data)
        if self._have < self._need or self._postponed:
            self._pieces.append(data)
            return
        if self._pieces:
            self._pieces.append(data)
            data = b"".join(self._pieces)
            self._pieces.clear()
        self._take(data)

    def _go_on(self) -> None:
        """Reads what was postponed, unless the client takes nothing: then as soon as it does."""
        if not self._postponed or self._paused_since is not None or self._over_since is not None:
            return
        self._postponed = False
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._take(data)
        over = self._over_since is not None
        if not (self._postponed or over) and self._paused_since is None and self._transport is not None:
            self._transport.resume_reading()

    def _postpone(self) -> None:
        """A piece may have thousands of frames: others get their turn in between."""
        self._postponed = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._loop.call_soon(self._go_on)

    def _take(self, data: bytes) -> None:
        self._flushing = True  # once, at the end
        try:
            self._read(data)
        except Http2Error as broken:
            self.write(frames.goaway(self._last, broken.code, broken.text))
            self._flush()
            self._close()
        finally:
            self._flush()

    def _read(self, data: bytes) -> None:
        at, size = 0, len(data)
        if not self._has_preface:
            at = len(frames.PREFACE)
            if data[:at] != frames.PREFACE:
                if data.startswith(_METHODS):
                    self.write(_HTTP1_RESPONSE)
                raise Http2Error(Code.PROTOCOL_ERROR, "this port speaks HTTP/2 only")
            self._has_preface = True
        largest, until, most = self.limits.frame, perf_counter() + _TURN, self._last + 2 * _MOST_NEW
        need = HEAD.size
        while size - at >= HEAD.size:
            first, flags, number = HEAD.unpack_from(data, at)
            length = first >> 8
            if length > largest:
                raise Http2Error(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            end = at + HEAD.size + length
            if end > size:
                need = HEAD.size + length
                break
            self._on_frame(first & 0xFF, flags, number & frames.MAX_WINDOW, data[at + HEAD.size : end])
            at = end
            if at < size and (perf_counter() > until or self._last > most) and self._over_since is None:
                self._postpone()
                break
        self._have, self._need = size - at, need
        if self._have:
            self._pieces.append(data[at:] if at else data)

    # -- sending

    def pause_writing(self) -> None:
        self._paused_since = self.now()
        if self._transport is not None:
            self._transport.pause_reading()
            self.count(self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._paused_since = None
        self.count(self, 0)
        if self._postponed:
            self._loop.call_soon(self._go_on)
        elif self._transport is not None:
            self._transport.resume_reading()
        self._pump()

    @property
    def sendable(self) -> int:
        """Bytes that a frame may have now."""
        if self._paused_since is not None or self._out_size > _LARGEST_WRITE:
            return 0
        return min(self.window, self._peer_frame)

    def write(self, data: bytes | memoryview) -> None:
        """Sends frames, together with all others of this turn of the loop."""
        if self._over_since is not None:
            return
        self._out.append(data)
        self._out_size += len(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        out, self._out, self._out_size = self._out, [], 0
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._waiting and self.sendable > 0:
            self._loop.call_soon(self._pump)

    def wait(self, stream: Http2Stream) -> None:
        """The stream sends what waits as soon as there is room."""
        if stream.is_ready:
            self._waiting[stream.id] = stream
            self._pump()

    def _pump(self) -> None:
        while self._waiting and self.sendable > 0:
            _, stream = self._waiting.popitem(last=False)
            stream.pump()
            if stream.is_ready:
                self._waiting[stream.id] = stream

    # -- the end

    def waited(self) -> float:
        """Seconds for which the client has not read what was sent."""
        return 0.0 if self._paused_since is None else self.now() - self._paused_since

    def _close(self) -> None:
        """Ends the connection when what was written is sent."""
        self._over_since = self.now()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Drops what the client has not read, with all streams."""
        self._over_since = self.now()
        if self._transport is not None:
            self._transport.abort()

    # As holders of unsent bytes have it.
    cut = abort


class Http2Connection(FrameProtocol):
    """Frames to streams and back, over one connection.

    ``peer`` is the client's address: `127.0.0.1:5000`. ``peer_window`` is how many bytes it takes over a new
    stream.
    """

    def __init__(self, listener: Http2Listener) -> None:
        super().__init__(listener.limits, listener.count)
        self.listener = listener
        self.peer = ""
        self.peer_window = frames.DEFAULT_WINDOW
        self.streams: dict[int, Http2Stream] = {}
        self._decoder = FieldDecoder(listener.limits.fields, lambda fields: read_block(fields, listener.read))
        # A header block that continues in CONTINUATION frames: the stream, the flags, the parts.
        self._block: tuple[int, int, list[bytes]] | None = None
        # Streams that ended on our side first, so that frames of the client may still be on the way: the
        # newest, as many as a client may have open.
        self._closed: dict[int, None] = {}
        self._receives = listener.limits.connection_window
        self._credit = 0
        self._waste = 0
        # draining: the connection ends with its last stream; goaway_sent: new streams are refused.
        self._draining = self._goaway_sent = False
        self._timers: list[asyncio.TimerHandle] = []

    # -- from the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as a server has
        self._transport = transport
        self.listener.connections.add(self)
        limits = self.limits
        self.peer = _address(transport.get_extra_info("peername"))
        own: socket.socket = transport.get_extra_info("socket")
        # The kernel notices clients that vanish without closing the connection.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        values = (
            (SettingId.MAX_CONCURRENT_STREAMS, limits.streams),
            (SettingId.INITIAL_WINDOW_SIZE, limits.window),
            (SettingId.MAX_FRAME_SIZE, limits.frame),
            (SettingId.MAX_HEADER_LIST_SIZE, limits.fields),
        )
        self.write(frames.settings(values))
        self.write(frames.window_update(0, limits.connection_window - frames.DEFAULT_WINDOW))
        if limits.age is not None:
            self._later(limits.age, self.drain)
            if limits.age_grace is not None:
                self._later(limits.age + limits.age_grace, self.abort)
        if self.listener.closing:
            self.drain()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.append(self._loop.call_later(seconds, act))

    def connection_lost(self, _: Exception | None) -> None:
        self._over_since = self.now()
        self.listener.connections.discard(self)
        self.count(self, 0)
        for timer in self._timers:
            timer.cancel()
        for stream in list(self.streams.values()):
            stream.end()
        self._pieces.clear()
        self._out.clear()

    # -- frames

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or number != self._block[0]):
            raise Http2Error(Code.PROTOCOL_ERROR, "a header block was interrupted")
        if kind == frames.DATA:
            self._on_data(flags, number, payload)
        elif kind == frames.HEADERS:
            self._on_headers(flags, number, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window_update(number, payload)
        elif kind == frames.RST_STREAM:
            self._on_reset(number, payload)
        elif kind == frames.CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == frames.SETTINGS:
            self._on_settings(flags, number, payload)
        elif kind == frames.PING:
            self._on_ping(flags, number, payload)
        elif kind == frames.GOAWAY:
            self._on_goaway(number, payload)
        elif kind == frames.PRIORITY:
            self._on_priority(number, payload)
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(Code.PROTOCOL_ERROR, "clients do not push")
        else:
            self._wasted()

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._receives -= size
        if self._receives < 0:
            raise Http2Error(Code.FLOW_CONTROL_ERROR, "more was sent than allowed")
        self._credit += size
        if self._credit * 2 >= self.limits.connection_window:
            self._receives += self._credit
            self.write(frames.window_update(0, self._credit))
            self._credit = 0
        stream, piece = self._of(number), _unpadded(flags, payload)
        if stream is None:
            if size < _SMALL:
                self._wasted()
            self._skip(flags, number, Code.STREAM_CLOSED)
            return
        stream.receives -= size
        if stream.receives < 0:
            stream.fail(Code.FLOW_CONTROL_ERROR)
        elif stream.whole:
            stream.fail(Code.STREAM_CLOSED)
        else:
            if size != len(piece):
                stream.take(size - len(piece))
            ended = stream.whole = bool(flags & frames.END_STREAM)
            if not piece and not ended:
                self._wasted()
            _deliver(stream, piece, ended=ended)

    def _skip(self, flags: int, number: int, code: Code) -> None:
        """Ignores a frame of a stream that we have ended. Raises Http2Error with the code for others."""
        if number not in self._closed:
            raise Http2Error(code, f"stream {number} has ended")
        if flags & frames.END_STREAM:
            del self._closed[number]

    def _remember(self, number: int) -> None:
        """Remembers that frames of the stream may still be on the way."""
        self._closed[number] = None
        if len(self._closed) > self.limits.streams:
            del self._closed[next(iter(self._closed))]

    def _of(self, number: int) -> Http2Stream | None:
        """An open stream; None for one that has ended. Raises Http2Error for one that never began."""
        stream = self.streams.get(number)
        if stream is None and (number > self._last or not number & 1):
            raise Http2Error(Code.PROTOCOL_ERROR, f"stream {number} is idle")
        return stream

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        block = _unpadded(flags, payload)
        if flags & frames.WITH_PRIORITY:
            if len(block) < 5:
                raise Http2Error(Code.FRAME_SIZE_ERROR, "no room for a priority")
            _check_priority(number, block[:5])
            block = block[5:]
        if len(block) > self.limits.fields:
            # Decoding it, to find out the same, takes long.
            raise Http2Error(Code.ENHANCE_YOUR_CALM, "the header block is too large")
        if flags & frames.END_HEADERS:
            self._on_block(flags, number, block)
        else:
            self._block = number, flags, [block]

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise Http2Error(Code.PROTOCOL_ERROR, "nothing to continue")
        number, first, parts = self._block
        parts.append(payload)
        if sum(map(len, parts)) > self.limits.fields or len(parts) > _MOST_PARTS:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, "the header block is too large")
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(first, number, b"".join(parts))

    def _on_block(self, flags: int, number: int, encoded: bytes) -> None:
        block, ended = self._decoder.decode(encoded), bool(flags & frames.END_STREAM)
        stream = self.streams.get(number)
        if stream is not None:
            self._on_trailers(stream, block, ended=ended)
        elif number <= self._last or not number & 1:
            is_last = number and number == self._last
            self._skip(flags, number, Code.STREAM_CLOSED if is_last else Code.PROTOCOL_ERROR)
        else:
            self._last = number
            self._begin(number, block, ended=ended)

    def _begin(self, number: int, block: HeaderBlock, *, ended: bool) -> None:
        refused = self._goaway_sent or len(self.streams) >= self.limits.streams
        if refused or not block.is_request or (ended and block.length):
            self._wasted()
            self.write(frames.reset(number, Code.REFUSED_STREAM if refused else Code.PROTOCOL_ERROR))
            if not ended:
                self._remember(number)
            return
        stream = self.streams[number] = self.listener.make(self, number)
        stream.whole, stream.length = ended, block.length
        stream.on_head(block.head, ended=ended)

    def _on_trailers(self, stream: Http2Stream, block: HeaderBlock, *, ended: bool) -> None:
        if stream.whole:
            stream.fail(Code.STREAM_CLOSED)
            return
        stream.whole = ended
        if ended and block.is_trailers:
            _deliver(stream, b"", ended=True)
        else:
            stream.fail(Code.PROTOCOL_ERROR)

    def _on_window_update(self, number: int, payload: bytes) -> None:
        size = _number(payload) & frames.MAX_WINDOW
        self._wasted()
        if number:
            stream = self._of(number)
            if stream is None:
                return
            if not size or stream.window + size > frames.MAX_WINDOW:
                stream.fail(Code.FLOW_CONTROL_ERROR if size else Code.PROTOCOL_ERROR)
                return
            stream.window += size
            self.wait(stream)
        else:
            if not size or self.window + size > frames.MAX_WINDOW:
                code = Code.FLOW_CONTROL_ERROR if size else Code.PROTOCOL_ERROR
                raise Http2Error(code, f"a window larger by {size}")
            self.window += size
            self._pump()

    def _on_reset(self, number: int, payload: bytes) -> None:
        _number(payload)
        stream = self._of(number)
        if stream is None:
            self._closed.pop(number, None)
        else:
            stream.whole = True
            stream.end()
        self._wasted()

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2Error(Code.PROTOCOL_ERROR, "settings of a stream")
        if len(payload) % SETTING.size or (flags & frames.ACK and payload):
            raise Http2Error(Code.FRAME_SIZE_ERROR, "settings of an odd size")
        if flags & frames.ACK:
            self._wasted()
            return
        self._wasted(_SETTINGS)
        # If a setting comes twice, its last value counts.
        for name, value in dict(SETTING.iter_unpack(payload)).items():
            self._set(name, value)
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        # Streams send after the acknowledgement: until then clients take no more than before.
        for stream in list(self.streams.values()):
            self.wait(stream)

    def _set(self, name: int, value: int) -> None:
        if name == SettingId.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise Http2Error(Code.FLOW_CONTROL_ERROR, f"a window of {value}")
            more, self.peer_window = value - self.peer_window, value
            for stream in self.streams.values():
                stream.window += more
        elif name == SettingId.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
                raise Http2Error(Code.PROTOCOL_ERROR, f"frames of {value}")
            self._peer_frame = value
        elif name == SettingId.ENABLE_PUSH and value > 1:
            raise Http2Error(Code.PROTOCOL_ERROR, f"push {value}")

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) != 8:
            code = Code.PROTOCOL_ERROR if number else Code.FRAME_SIZE_ERROR
            raise Http2Error(code, "a ping of a wrong form")
        self._wasted()
        if not flags & frames.ACK:
            self.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, number: int, payload: bytes) -> None:
        if number or len(payload) < 2 * NUMBER.size:
            raise Http2Error(
                Code.PROTOCOL_ERROR if number else Code.FRAME_SIZE_ERROR, "a farewell of a wrong form"
            )
        self._wasted()
        self.drain()

    def _on_priority(self, number: int, payload: bytes) -> None:
        self._wasted()
        if not number:
            raise Http2Error(Code.PROTOCOL_ERROR, "a priority of no stream")
        if len(payload) != 5:
            raise Http2Error(Code.FRAME_SIZE_ERROR, "a priority of another size than 5 bytes")
        _check_priority(number, payload)

    def _wasted(self, weight: int = 1) -> None:
        self._waste += weight
        if self._waste > MOST_WASTE:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def progressed(self) -> None:
        """Data goes to the client, who may answer it with frames that bring nothing else."""
        if self._waste > _MADE_UP:
            self._waste -= _MADE_UP

    def forget(self, stream: Http2Stream) -> None:
        """The stream has ended on our side."""
        self.streams.pop(stream.id, None)
        if not stream.whole:
            self._remember(stream.id)
        self._waiting.pop(stream.id, None)
        if self._goaway_sent and not self.streams:
            self._loop.call_soon(self._end)

    # -- the end

    def check(self, now: float) -> None:
        limits = self.limits
        self._waste = 0
        if self._over_since is not None:
            if now - self._over_since > limits.send_timeout:
                self.abort()
            return
        for stream in list(self.streams.values()):
            stream.check(now)
        stuck = self._paused_since is not None and now - self._paused_since > limits.send_timeout
        silent = (self._have or not self._has_preface) and now - self._received_at > limits.receive_timeout
        if stuck or silent:
            self.abort()

    def drain(self) -> None:
        """Ends with the last stream, and takes no new ones from a moment on."""
        if not self._draining and self._over_since is None:
            self._draining = True
            self.write(frames.goaway(frames.MAX_WINDOW, Code.NO_ERROR))
            self._later(_NOTICE, self._refuse_streams)

    def _refuse_streams(self) -> None:
        self._goaway_sent = True
        self.write(frames.goaway(self._last, Code.NO_ERROR))
        self._end()

    def _end(self) -> None:
        if self._over_since is None and not self.streams:
            self._flush()
            self._close()


def _address(name: tuple[str, int] | None) -> str:
    if not name:
        return ""
    host, port = name[:2]
    if "." in host:
        # A client with IPv4 has such an address at an IPv6 socket.
        host = host.removeprefix("::ffff:")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _deliver(stream: Http2Stream, piece: bytes, *, ended: bool) -> None:
    """Passes a piece of the body on, unless the body is longer or shorter than its head says."""
    if stream.length is not None:
        stream.length -= len(piece)
        if stream.length < 0 or (ended and stream.length):
            stream.fail(Code.PROTOCOL_ERROR)
            return
    stream.on_data(piece, ended=ended)


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & frames.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def _check_priority(number: int, payload: bytes) -> None:
    if NUMBER.unpack_from(payload)[0] & frames.MAX_WINDOW == number:
        raise Http2Error(Code.PROTOCOL_ERROR, f"stream {number} depends on itself")


def _number(payload: bytes) -> int:
    if len(payload) != NUMBER.size:
        raise Http2Error(Code.FRAME_SIZE_ERROR, "a number of another size than 4 bytes")
    number: int = NUMBER.unpack(payload)[0]
    return number
