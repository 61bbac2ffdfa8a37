"""The client's side of a call, for comparisons: blocking, over a connection of its own."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from modelserver.ext.grpc.codes import StatusCode
from modelserver.ext.grpc.framing import PREFIX
from modelserver.ext.grpc.http2.client import post

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator

_PREFIX = struct.Struct(">BI")


class Replied(NamedTuple):
    """How a call ended. ``content`` are its messages, each with its prefix; ``text`` tells a failure."""

    code: StatusCode
    text: bytes
    content: bytes


def ask(
    connection: socket.socket,
    url: str,
    metadata: Iterable[tuple[bytes, bytes]],
    content: bytes,
    patience: float,
) -> Replied:
    """Sends messages, with their prefixes, over a new connection to the server of the URL, whose path is the
    method's; waits at most ``patience`` seconds.

    Raises OSError, Broken, and ValueError for an answer that is not gRPC's.
    """
    own = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
    reply = post(connection, url, (*metadata, *own), content, patience)
    if (status := reply.fields.get(b"grpc-status")) is None:
        raise ValueError(f"no answer of gRPC: status {reply.fields.get(b':status', b'-').decode('latin-1')}")
    text = unquote_to_bytes(reply.fields.get(b"grpc-message", b""))
    return Replied(StatusCode(int(status)), text, reply.body)


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
