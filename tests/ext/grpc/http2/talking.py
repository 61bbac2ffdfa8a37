"""A client of a connection in memory: it writes frames by their bytes, and reads what comes back."""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from hpack import Decoder, Encoder
from tests.transports import Transport

from modelserver.ext.grpc.http2.connection import Http2Connection, Http2Listener
from modelserver.ext.grpc.http2.stream import Http2Limits, Http2Stream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END, WHOLE, PADDED, WITH_PRIORITY = 1, 4, 8, 32
POST = ((":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "x"))


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame, whose length may be a lie."""
    length = len(payload) if length is None else length
    return struct.pack(">I", length)[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def number(value: int) -> bytes:
    return struct.pack(">I", value)


def setting(name: int, value: int) -> bytes:
    return struct.pack(">HI", name, value)


def frames_of(written: bytes) -> Iterator[Frame]:
    while written:
        length = int.from_bytes(written[:3], "big")
        yield Frame(written[3], written[4], *struct.unpack(">I", written[5:9]), written[9 : 9 + length])
        written = written[9 + length :]


class Noted(Http2Stream):
    """Records its events, and acknowledges the received bytes unless this is turned off."""

    __slots__ = ("body", "calls", "takes")

    def __init__(self, connection: Http2Connection, number: int) -> None:
        super().__init__(connection, number)
        self.calls: list[Any] = []
        self.body = b""
        self.takes = True

    def on_head(self, head, *, ended: bool) -> None:
        self.calls.append(("begun", head, ended))

    def on_data(self, piece: bytes, *, ended: bool) -> None:
        self.body += piece
        if ended:
            self.calls.append("whole")
        if self.takes:
            self.take(len(piece))

    def on_end(self) -> None:
        self.calls.append("gone")

    def cut(self) -> None:
        self.calls.append("stalled")
        super().cut()

    def on_shutdown(self) -> None:
        self.calls.append("closing")


class Client:
    """Talks to a connection that it has made; ``streams`` are all that the connection has made."""

    def __init__(self, **limits) -> None:
        self.streams: dict[int, Noted] = {}
        self.listener = Http2Listener(self._make, dict, Http2Limits(**limits))
        self.connection = Http2Connection(self.listener)
        self.transport = Transport(has_socket=True)
        self.encoder = Encoder()
        self._read = 0
        self._decoder = Decoder()
        self.connection.connection_made(self.transport)

    def _make(self, connection: Http2Connection, number: int) -> Noted:
        made = self.streams[number] = Noted(connection, number)
        return made

    def send(self, *sent: bytes) -> None:
        self.connection.data_received(b"".join(sent))

    def greet(self, **settings: int) -> "Client":
        """Sends the preface and settings, of which ``s4`` is number 4, and skips the server's."""
        data = b"".join(setting(int(name[1:]), value) for name, value in settings.items())
        self.send(PREFACE, frame(SETTINGS, 0, 0, data))
        self.receive()
        return self

    def head(self, stream: int, flags: int = WHOLE, fields=POST) -> bytes:
        """A HEADERS frame."""
        return frame(HEADERS, flags, stream, self.encoder.encode(fields))

    def receive(self) -> list[Frame]:
        """The frames that have come since."""
        self.connection._flush()
        new = self.transport.written[self._read :]
        self._read += len(new)
        return list(frames_of(new))

    def body(self, received: list[Frame], stream: int = 1) -> bytes:
        """What DATA frames of a stream have."""
        return b"".join(each.payload for each in received if each.kind == DATA and each.stream == stream)

    def fields(self, block: bytes) -> list[tuple[str, str]]:
        """What a header block says."""
        return [(str(name), str(value)) for name, value in self._decoder.decode(block)]

    def ending(self) -> int | None:
        """The code of the GOAWAY frame with which the connection has ended."""
        results = [each for each in self.receive() if each.kind == GOAWAY]
        if not results or not self.transport.closed:
            return None
        return int.from_bytes(results[-1].payload[4:8], "big")
