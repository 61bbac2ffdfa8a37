"""The wire format of calls of the server's functions in another process.

A frame is its size (u64) and msgpack. Arguments and results are decoded by the function's annotations, which
must therefore exist at run time.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

if TYPE_CHECKING:
    import socket

_SIZE = struct.Struct("<Q")

_lock = threading.Lock()

encode = msgspec.msgpack.Encoder().encode


class OffloadCall(msgspec.Struct, array_like=True):
    """A call of ``function`` in ``module``, which may use ``seconds`` of CPU time."""

    module: str
    function: str
    seconds: float
    arguments: msgspec.Raw


class CallEnded(msgspec.Struct, array_like=True):
    """The end of a call: ``value``, or an error by name and text; the name is "" for an unexpected one."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str | None = None
    text: str = ""


class HelperClosed(Exception):
    """The peer has closed the connection."""


def send(connection: socket.socket, message: OffloadCall | CallEnded) -> None:
    """Writes one frame. Raises OSError."""
    frame = encode(message)
    connection.sendall(_SIZE.pack(len(frame)))
    connection.sendall(frame)


def receive(connection: socket.socket) -> bytearray:
    """Reads one frame. Raises HelperClosed, OSError."""
    (size,) = _SIZE.unpack(_exactly(connection, _SIZE.size))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view, position = memoryview(buffer), 0
    while position < size:
        count = connection.recv_into(view[position:])
        if not count:
            raise HelperClosed
        position += count
    return buffer


def _decoders(
    function: Callable[..., Any],
) -> tuple[msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[Any]]:
    """For the function's arguments and its result.

    One thread at a time makes them: msgspec 0.22 lets a thread use what another has not completed yet of a
    Struct, and the process crashes.
    """
    with _lock:
        return _cached_decoders(function)


@lru_cache
def _cached_decoders(
    function: Callable[..., Any],
) -> tuple[msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[Any]]:
    kinds = get_type_hints(function)
    result = kinds.pop("return")
    return msgspec.msgpack.Decoder(tuple[tuple(kinds.values())]), msgspec.msgpack.Decoder(result)  # type: ignore[misc]  # made at run time


def read_result(function: Callable[..., Any], value: msgspec.Raw) -> Any:
    """The decoded result of a function; its buffers are views of ``value``."""
    return _decoders(function)[1].decode(value)


def perform(call: OffloadCall) -> CallEnded:
    """Calls the function. Raises what it raises."""
    function = getattr(import_module(call.module), call.function)
    arguments = _decoders(function)[0].decode(call.arguments)
    return CallEnded(msgspec.Raw(encode(function(*arguments))))
