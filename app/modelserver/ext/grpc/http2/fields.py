"""Header blocks to fields (RFC 7541), and which blocks are requests, or trailers (RFC 9113, 8.1 to 8.3)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.hpack import Decoder

from modelserver.ext.grpc.http2.frames import Code, Http2Error

Fields: TypeAlias = "list[tuple[bytes, bytes]]"

# Blocks that are remembered, and the bytes of fields that one of them may have.
_MOST_KNOWN = 64
_LARGEST_KNOWN = 4096
# The first bits of a block that changes the size of the table.
_RESIZES, _RESIZE = 0xE0, 0x20


_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTIONS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NAME = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]+")
# Spaces around values would be malformed as well, but clients of gRPC send them in metadata.
_NOT_IN_VALUES = re.compile(rb"[\0\r\n]")
_LENGTH = re.compile(rb"[0-9]{1,18}")


class FieldDecoder:
    """The decoder of a connection.

    Clients repeat blocks, as those refer to fields in the table: what ``read`` made of a block's fields is
    remembered until the table changes.
    """

    def __init__(self, limit: int, read: Callable[[Fields], Any]) -> None:
        self._decoder = Decoder(limit)
        self._read = read
        self._known: dict[bytes, Any] = {}

    def decode(self, block: bytes) -> Any:
        """Returns what ``read`` makes of the fields of a whole block. Raises Http2Error."""
        known = self._known.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table.dynamic_entries
        size, newest = len(table), table[0] if table else None
        try:
            fields: Fields = [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, str(error)) from error
        except HPACKError as error:
            raise Http2Error(Code.COMPRESSION_ERROR, str(error)) from error
        value = self._read(fields)
        # What a table was too small for would be added after a resize.
        resizes = bool(block) and block[0] & _RESIZES == _RESIZE
        if resizes or len(table) != size or (table and table[0] is not newest):
            self._known.clear()
        elif block and len(block) + _size(fields) <= _LARGEST_KNOWN:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[block] = value
        return value


def _size(fields: Fields) -> int:
    return sum(len(name) + len(value) for name, value in fields)


@dataclass(frozen=True, slots=True)
class HeaderBlock:
    """A header block: the head of a request, trailers, or neither. ``length`` is the content-length."""

    head: Any = None
    is_request: bool = False
    is_trailers: bool = False
    length: int | None = None


_MALFORMED, _TRAILERS = HeaderBlock(), HeaderBlock(is_trailers=True)


def read_block(fields: Fields, read: Callable[[Fields], Any]) -> HeaderBlock:
    """Classifies the fields of a block; ``read`` makes the head of a request from them."""
    pseudo: dict[bytes, bytes] = {}
    length: int | None = None
    is_pseudo = True
    for name, value in fields:
        if _NOT_IN_VALUES.search(value):
            return _MALFORMED
        if name in _PSEUDO:
            if not is_pseudo or name in pseudo:
                return _MALFORMED
            pseudo[name] = value
            continue
        is_pseudo = False
        if not _NAME.fullmatch(name) or name in _OF_CONNECTIONS:
            return _MALFORMED
        if name == b"te" and value.lower() != b"trailers":
            return _MALFORMED
        if name == b"content-length":
            if length is not None or not _LENGTH.fullmatch(value):
                return _MALFORMED
            length = int(value)
    if not pseudo:
        return _TRAILERS
    path = pseudo.get(b":path", b"")
    if pseudo.get(b":method") and pseudo.get(b":scheme") and (path[:1] == b"/" or path == b"*"):
        return HeaderBlock(read(fields), is_request=True, length=length)
    return _MALFORMED
