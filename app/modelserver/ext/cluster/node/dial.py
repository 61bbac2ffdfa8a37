"""Connects to a server's workers' address, proves itself there, and has the server prove itself."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterable

from modelserver.ext.cluster.greeting import CHALLENGE, CONFIRMATION, GreetingError, Invitation, respond
from modelserver.ext.cluster.local_socket import address_of

# Seconds for the connection and the greeting.
DIAL_TIME = 10.0
# Seconds before each further attempt, if the server cannot be reached, or closes the connection.
PAUSES = (0.2, 1.0, 3.0)
_CLOSED = "the server closed the connection: perhaps it does not know the ticket any more"
_SILENT = "the server does not answer"
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME: a certificate that came with the ticket is not told by a wrong clock.
_ANY_TIME = 0x200000
# The most bytes of a TLS record, all of which must be read at once: what is left would not wake a poll.
_RECORD = 1 << 14
# Set to 0 on a machine, its workers use the network even if the server is on the same one.
LOCAL_SOCKET = "MODELSERVER_NODE_LOCAL_SOCKET"


def dial(invitation: Invitation) -> socket.socket:
    """A connection to the server; an :class:`ssl.SSLSocket` if it is encrypted.

    Through the server's own socket if it runs on this machine and for the same user, otherwise its address.

    Raises:
        GreetingError: whoever answered does not know the ticket.
        OSError: there is no connection.
    """
    if invitation.path and os.environ.get(LOCAL_SOCKET) != "0":
        # On another machine, that may be the socket of another server.
        with contextlib.suppress(OSError):
            return _dial_locally(invitation)
    for pause in PAUSES:
        try:
            return _dial(invitation)
        except OSError as error:  # noqa: PERF203 - a few times
            _check_worth(error)
            time.sleep(pause)
    return _dial(invitation)


def _dial_locally(invitation: Invitation) -> socket.socket:
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        local.settimeout(DIAL_TIME)
        with address_of(invitation.path) as address:
            local.connect(address)
        _greet(local, invitation)
    except BaseException:
        local.close()
        raise
    return local


def _dial(invitation: Invitation) -> socket.socket:
    connection = socket.create_connection((invitation.host, invitation.port), timeout=DIAL_TIME)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if invitation.certificate:
            connection = _context(invitation.certificate).wrap_socket(connection)
        _greet(connection, invitation)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_worth(error: Exception) -> None:
    """Raises the error again if another attempt would end the same way."""
    if isinstance(error, (GreetingError, ssl.SSLCertVerificationError)):
        raise error


def _greet(connection: socket.socket, invitation: Invitation) -> None:
    response, expected = respond(invitation, _receive(connection, CHALLENGE.size))
    connection.sendall(response)
    _check(_receive(connection, CONFIRMATION), expected)
    connection.settimeout(None)


def _check(confirmation: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(confirmation, expected):
        raise GreetingError("the server could not prove that it knows the ticket")


async def dial_streams(invitation: Invitation) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Dials like :func:`dial`, always through the network; returns streams of the running loop."""
    for pause in PAUSES:
        try:
            return await _dial_streams(invitation)
        except OSError as error:  # noqa: PERF203 - a few times
            _check_worth(error)
            await asyncio.sleep(pause)
    return await _dial_streams(invitation)


async def _dial_streams(invitation: Invitation) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = _context(invitation.certificate) if invitation.certificate else None
    opening = asyncio.open_connection(
        invitation.host, invitation.port, ssl=context, server_hostname="" if context else None
    )
    try:
        reader, writer = await asyncio.wait_for(opening, DIAL_TIME)
    except asyncio.TimeoutError:
        raise TimeoutError(_SILENT) from None
    try:
        await asyncio.wait_for(_greet_streams(reader, writer, invitation), DIAL_TIME)
    except asyncio.TimeoutError:
        writer.transport.abort()
        raise TimeoutError(_SILENT) from None
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def _greet_streams(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, invitation: Invitation
) -> None:
    try:
        response, expected = respond(invitation, await reader.readexactly(CHALLENGE.size))
        writer.write(response)
        confirmation = await reader.readexactly(CONFIRMATION)
    except asyncio.IncompleteReadError:
        raise ConnectionAbortedError(_CLOSED) from None
    _check(confirmation, expected)


def _context(certificate: str) -> ssl.SSLContext:
    """Trusts this certificate and no other; the server's name does not matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_ANY_TIME)
    context.load_verify_locations(cadata=certificate)
    return context


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionAbortedError(_CLOSED)
        received += piece
    return received


class SecureConnection:
    """An encrypted connection for a worker's channel, with what the channel uses of a socket.

    One thread may read while another one writes. OpenSSL allows no two calls at once, so each is made without
    waiting, and the wait is for the socket.
    """

    def __init__(self, connection: ssl.SSLSocket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._calling = threading.Lock()
        self._has_ended = False
        self.family = connection.family

    def fileno(self) -> int:
        return self._connection.fileno()

    def recv_into(self, buffer: memoryview, size: int = 0, flags: int = 0, /) -> int:
        """The number of bytes received, 0 at the end of the connection; ``flags`` may be MSG_DONTWAIT.

        The buffer must have room for a record.
        """
        size = size or len(buffer)
        while True:
            event = select.POLLIN
            with self._calling:
                try:
                    received = self._read(buffer, size)
                except ssl.SSLWantWriteError:
                    received, event = 0, select.POLLOUT
            if received or self._has_ended:
                return received
            if flags & socket.MSG_DONTWAIT:
                raise BlockingIOError
            self._wait(event)

    def _read(self, buffer: memoryview, size: int) -> int:
        """Reads the bytes that are there, as whole records."""
        received = 0
        with contextlib.suppress(ssl.SSLWantReadError):
            while not self._has_ended and (not received or size - received >= _RECORD):
                count = self._connection.recv_into(buffer[received:size])
                received += count
                self._has_ended = not count
        return received

    def sendall(self, data: bytes, /) -> None:
        """Sends all of it. Raises OSError."""
        view = memoryview(data)
        while view:
            view = view[self._send(view) :]

    def sendmsg(self, pieces: Iterable[memoryview], /) -> int:
        """Sends the first piece, or a part of it; returns the number of bytes."""
        return self._send(next(iter(pieces)))

    def _send(self, view: memoryview) -> int:
        while True:
            event = select.POLLOUT
            with self._calling:
                try:
                    sent = self._write(view)
                except ssl.SSLWantReadError:
                    sent, event = 0, select.POLLIN
            if sent:
                return sent
            self._wait(event)

    def _write(self, view: memoryview) -> int:
        """Sends as much as there is room for, one TLS record at a time. Returns the number of bytes."""
        sent = 0
        with contextlib.suppress(ssl.SSLWantWriteError):
            while sent < len(view):
                sent += self._connection.send(view[sent : sent + _RECORD])
        return sent

    def _wait(self, event: int) -> None:
        poller = select.poll()
        poller.register(self._connection.fileno(), event)
        poller.poll()

    def shutdown(self, how: int, /) -> None:
        """Closes the connection in both directions, even while a thread waits for it."""
        socket.socket.shutdown(self._connection, how)
