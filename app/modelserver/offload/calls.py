"""Calls of the server's own functions in another process: what they look like on a socket.

A frame is its size (u64) and msgpack. Arguments and results are what msgspec reads by a function's
annotations, which therefore must be there at run time.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_SIZE = struct.Struct("<Q")

encode = msgspec.msgpack.Encoder().encode


class Call(msgspec.Struct, array_like=True):
    """``function`` of ``module`` is called; it may use ``seconds`` of processor time."""

    module: str
    function: str
    seconds: float
    arguments: msgspec.Raw


class Ended(msgspec.Struct, array_like=True):
    """How a call ended: with ``value``, or with the error of this name and text; "" is one nobody foresaw."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str | None = None
    text: str = ""


class Closed(Exception):
    """The other side has ended."""


def send(connection: socket.socket, message: Call | Ended) -> None:
    """Writes one frame. Raises OSError."""
    frame = encode(message)
    connection.sendall(_SIZE.pack(len(frame)))
    connection.sendall(frame)


def receive(connection: socket.socket) -> bytearray:
    """Reads one frame. Raises Closed, OSError."""
    (size,) = _SIZE.unpack(_exactly(connection, _SIZE.size))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view, position = memoryview(buffer), 0
    while position < size:
        count = connection.recv_into(view[position:])
        if not count:
            raise Closed
        position += count
    return buffer


@lru_cache
def _decoders(
    function: Callable[..., Any],
) -> tuple[msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[Any]]:
    kinds = get_type_hints(function)
    result = kinds.pop("return")
    return msgspec.msgpack.Decoder(tuple[tuple(kinds.values())]), msgspec.msgpack.Decoder(result)  # type: ignore[misc]  # made at run time


def read_result(function: Callable[..., Any], value: msgspec.Raw) -> Any:
    """What a function returned. Its buffers are views of ``value``."""
    return _decoders(function)[1].decode(value)


def perform(call: Call) -> Ended:
    """Calls the function. Raises what it raises."""
    function = getattr(import_module(call.module), call.function)
    arguments = _decoders(function)[0].decode(call.arguments)
    return Ended(msgspec.Raw(encode(function(*arguments))))
