"""The workers' address: agents and workers of other machines connect to it, each with a ticket for one use.

Nothing that an unknown peer sends is decoded: it has the greeting's fixed number of bytes and a few seconds
to prove that it has a ticket (see :mod:`modelserver.wire.greeting`), and only so many may try at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import TYPE_CHECKING, TypeAlias, cast

from modelserver.tls.context import server_context
from modelserver.wire.greeting import (
    RESPONSE,
    GreetingError,
    Invitation,
    challenge,
    confirm,
    invite,
    named_ticket,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from modelserver.tls.context import Certificate

_log = logging.getLogger("modelserver.workers")

# Seconds for a greeting, with the TLS handshake before it.
GREETING_TIME = 10.0
# Connections that have not proven anything yet; more are closed at once.
MAX_STRANGERS = 512
_BACKLOG = 1024
# Seconds until the next attempt to accept.
_PAUSE = 0.1
# Seconds between probes of a silent connection, and how many may remain unanswered.
_PROBE, _PROBES = 5, 2

ProtocolFactory: TypeAlias = "Callable[[], asyncio.BaseProtocol]"


class Hub:
    """Listens at ``bound``, and makes the connections of tickets those of their owners' protocols.

    ``advertised`` is the host that other machines connect to. ``certificate``: of the listener; None: no TLS.
    ``folder``: for a socket that workers on this machine use instead; None: they use the address, too.
    """

    def __init__(
        self,
        bound: socket.socket,
        advertised: str,
        *,
        certificate: Certificate | None = None,
        folder: Path | None = None,
    ) -> None:
        self._bound = bound
        self._host = advertised
        self._certificate = certificate
        self._path = "" if folder is None else str(folder / "workers.sock")
        self._expected: dict[bytes, tuple[Invitation, ProtocolFactory]] = {}
        self._context: ssl.SSLContext | None = None
        self._accepting: list[asyncio.Task[None]] = []
        self._strangers: set[asyncio.Task[None]] = set()
        self.refused = Refusals()

    @property
    def port(self) -> int:
        """The port it listens at."""
        port: int = self._bound.getsockname()[1]
        return port

    async def open(self) -> None:
        """Starts to listen. Raises OSError."""
        if self._certificate is not None:
            self._context = server_context(self._certificate, ("modelserver",))
            self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        listening = [self._bound]
        if self._path:
            local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            local.bind(self._path)
            listening.append(local)
        for bound in listening:
            bound.listen(_BACKLOG)
            bound.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(bound)))

    async def _accept(self, listening: socket.socket) -> None:
        """Takes connections, which count as strangers from the first byte of their TLS handshake."""
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:
                    # Out of descriptors, mostly.
                    self.refused.tell(error.strerror or str(error))
                    await asyncio.sleep(_PAUSE)
                    continue
                if len(self._strangers) >= MAX_STRANGERS:
                    connection.close()
                    self.refused.tell(f"{MAX_STRANGERS} others have not greeted yet")
                    continue
                greeting = loop.create_task(self._greet(connection))
                self._strangers.add(greeting)
                greeting.add_done_callback(self._strangers.discard)

    async def _greet(self, connection: socket.socket) -> None:
        """Connects the connection's door, and waits until it has proven itself, for a few seconds."""
        door = _Door(self)
        try:
            keep_watch(connection)
            await asyncio.wait_for(self._meet(door, connection), GREETING_TIME)
        except (OSError, asyncio.TimeoutError) as error:
            door.close()
            connection.close()
            self.refused.tell(str(error) or "no greeting came in time")

    async def _meet(self, door: _Door, connection: socket.socket) -> None:
        secure = self._context if connection.family != socket.AF_UNIX else None
        await asyncio.get_running_loop().connect_accepted_socket(lambda: door, connection, ssl=secure)
        await door.greeted

    def invite(self, make: ProtocolFactory) -> Invitation:
        """An invitation for one connection, whose protocol is made by ``make`` once it has proven itself."""
        certificate = "" if self._certificate is None else self._certificate.chain.decode()
        invitation = invite(self._host, self.port, certificate=certificate, path=self._path)
        self._expected[invitation.ticket] = invitation, make
        return invitation

    def revoke(self, invitation: Invitation) -> None:
        """The invitation is void, if it has not been used."""
        self._expected.pop(invitation.ticket, None)

    def redeem(self, nonce: bytes, response: bytes) -> tuple[bytes, ProtocolFactory]:
        """The confirmation for a response, and what makes the protocol; its ticket is used up.

        Raises GreetingError.
        """
        ticket = named_ticket(response)
        if ticket not in self._expected:
            raise GreetingError("an unknown or used ticket")
        invitation, make = self._expected[ticket]
        confirmation = confirm(invitation, nonce, response)
        del self._expected[ticket]
        return confirmation, make

    def close(self) -> None:
        """Stops listening; connections that have proven themselves stay."""
        for task in (*self._accepting, *self._strangers):
            task.cancel()
        self._expected.clear()


class Refusals:
    """Logs refused connections, at most one a second; those in between are counted."""

    def __init__(self) -> None:
        self._next = 0.0
        self._untold = 0

    def tell(self, reason: str) -> None:
        """Logs the reason, or counts."""
        now = asyncio.get_running_loop().time()
        if now < self._next:
            self._untold += 1
            return
        more = f" ({self._untold} others were refused before)" if self._untold else ""
        self._next, self._untold = now + 1.0, 0
        _log.warning("A connection to the workers' address was refused: %s%s", reason, more)


class _Door(asyncio.Protocol):
    """A connection that has not proven anything yet. ``greeted`` is set when it has, or with an error."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._nonce = b""
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        first, self._nonce = challenge()
        self._transport.write(first)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < RESPONSE.size or self.greeted.done():
            return
        try:
            confirmation, make = self._hub.redeem(self._nonce, self._received)
        except GreetingError as error:
            self.greeted.set_exception(error)
            return
        assert self._transport is not None  # noqa: S101 - set when the connection was made
        self.greeted.set_result(None)
        protocol = make()
        self._transport.set_protocol(protocol)
        self._transport.write(confirmation)
        protocol.connection_made(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(GreetingError("it was closed before a greeting"))

    def close(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.abort()


def keep_watch(connection: socket.socket | None) -> None:
    """Sends small messages at once, and notices a peer that has gone without a word."""
    if connection is None or connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", _PROBE), ("TCP_KEEPINTVL", _PROBE), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
