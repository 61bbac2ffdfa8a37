"""What the system knows of a connection, and asyncio does not tell."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from dataclasses import dataclass

_INT = struct.Struct("i")
_MAPPED = "::ffff:"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Both ends of a connection: addresses and ports; the client's is None on a unix socket.

    ``peer`` is the client's in logs.
    """

    server: tuple[str, int | None] | None
    client: tuple[str, int] | None
    scheme: str
    peer: str

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Addresses:
        """Reads the addresses of a transport; an IPv4 address on an IPv6 socket is written as IPv4."""
        server, client = local_address(transport), remote_address(transport)
        scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        return cls(server, client, scheme, address_text(client))


def remote_address(transport: asyncio.BaseTransport) -> tuple[str, int] | None:
    """The client's address and port, IPv4 as such on an IPv6 socket too; None for a unix socket."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return None
    host, port = str(name[0]), int(name[1])
    return (host.removeprefix(_MAPPED) if "." in host else host), port


def local_address(transport: asyncio.BaseTransport) -> tuple[str, int | None] | None:
    """The address and port of this side, or the path of a unix socket."""
    name = transport.get_extra_info("sockname")
    if isinstance(name, tuple):
        return str(name[0]), int(name[1])
    return (name, None) if isinstance(name, str) else None


def address_text(client: tuple[str, int] | None) -> str:
    """The address and port of a client in logs; None is one of a unix socket."""
    if client is None:
        return "unix"
    host, port = client
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the connection was reset; asyncio does not report that while it does not read."""
    connection = transport.get_extra_info("socket")
    return connection is not None and connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def bytes_in_system(transport: asyncio.BaseTransport) -> int:
    """Bytes that were written and that the other side has not received; 0 if the system does not tell."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return 0
    try:
        answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
    except (OSError, ValueError):
        return 0
    size: int = _INT.unpack(answer)[0]
    return size
