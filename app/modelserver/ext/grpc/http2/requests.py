"""Which header blocks are requests, or trailers, and which are malformed (RFC 9113, 8.1 to 8.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.ext.grpc.http2.fields import Fields

_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTIONS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NAME = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]+")
# Spaces around values would be malformed as well, but clients of gRPC send them in metadata.
_NOT_IN_VALUES = re.compile(rb"[\0\r\n]")
_LENGTH = re.compile(rb"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Block:
    """A header block: the head of a request, trailers, or neither. ``length`` is the content-length."""

    head: Any = None
    is_request: bool = False
    is_trailers: bool = False
    length: int | None = None


_MALFORMED, _TRAILERS = Block(), Block(is_trailers=True)


def read_block(fields: Fields, read: Callable[[Fields], Any]) -> Block:
    """What the fields of a block are; ``read`` makes the head of a request from them."""
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
        return Block(read(fields), is_request=True, length=length)
    return _MALFORMED
