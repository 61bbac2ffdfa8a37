"""Frames (RFC 9113, 4 and 6), and header fields as they are sent (RFC 7541)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20

# Length and type, flags, stream.
HEAD = Struct(">IBI")
SETTING = Struct(">HI")
NUMBER = Struct(">I")
MAX_WINDOW = (1 << 31) - 1
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME = 16_384
LARGEST_FRAME = (1 << 24) - 1


class SettingId(IntEnum):
    """The settings of a SETTINGS frame."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """The client broke the rules: the connection ends with ``code``."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def head(kind: int, flags: int, stream: int, size: int) -> bytes:
    """The head of a frame whose payload has ``size`` bytes."""
    return HEAD.pack(size << 8 | kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: Iterable[tuple[SettingId, int]]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*value) for value in values))


def reset(stream: int, code: Code) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def goaway(last: int, code: Code, text: str = "") -> bytes:
    """A GOAWAY frame: streams after ``last`` are not served."""
    return frame(GOAWAY, 0, 0, NUMBER.pack(last) + NUMBER.pack(code) + text.encode())


def window_update(stream: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(size))


def field(name: bytes, value: bytes) -> bytes:
    """A header field as a literal that is not indexed, without Huffman's code."""
    return b"\x00%b%b%b%b" % (_length(name), name, _length(value), value)


def _length(text: bytes) -> bytes:
    """An integer with a prefix of 7 bits (RFC 7541, 5.1)."""
    size = len(text)
    if size < 127:
        return bytes((size,))
    size -= 127
    made = bytearray((127,))
    while size >= 128:
        made.append(size & 127 | 128)
        size >>= 7
    made.append(size)
    return bytes(made)
