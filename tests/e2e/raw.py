"""HTTP as bytes: requests written out, connections they are sent over, and all that comes back."""

import contextlib
import re
import socket
import time

HOST = "127.0.0.1"
CLOSE = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""A request after which the server ends the connection."""


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode("latin-1")


def post(path: str, body: bytes = b"", *lines: str) -> bytes:
    return head(path, *lines, f"Content-Length: {len(body)}") + body


def connect(port: int, timeout: float = 20.0, *, small: bool = False) -> socket.socket:
    """A connection; ``small``: the system holds little for it of what is not read."""
    if not small:
        return socket.create_connection((HOST, port), timeout)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(timeout)
    connection.connect((HOST, port))
    return connection


def everything(connection: socket.socket) -> bytes:
    """All that comes until the connection ends, in whatever way."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            received += data
    return received


def converse(port: int, *pieces: bytes, half_close: bool = False, pause: float = 0.0) -> bytes:
    """Sends the pieces, with pauses after them; all that comes until the server ends the connection."""
    with connect(port) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        return everything(connection)


def statuses(received: bytes) -> list[int]:
    """Those of the answers, in order."""
    return [int(code) for code in re.findall(rb"(?:\A|[^\n]|\n)HTTP/1\.1 (\d+) ", received)]
