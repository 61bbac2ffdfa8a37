"""The workers' address: agents and workers of other machines connect to it, each with a ticket for one use.

Nothing that an unknown peer sends is decoded: it has the greeting's fixed number of bytes and a few seconds
to prove that it has a ticket (see :mod:`modelserver.ext.cluster.greeting`), and only so many may try at once.
When there are more, the oldest of the address with the most has to go, so that whoever has a ticket can get
in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from modelserver.ext.cluster import greeting
from modelserver.ext.cluster.local_socket import address_of

if TYPE_CHECKING:
    from modelserver.surface.tls.context import Certificate

_log = logging.getLogger("modelserver.workers")

# Seconds for a greeting, with the TLS handshake before it.
GREETING_TIME = 10.0
# Connections that have not proven anything yet; for one more, an older one is closed.
MAX_STRANGERS = 512
_BACKLOG = 1024
# Connections that are accepted before other work has its turn, and seconds of rest if no more can be.
_AT_ONCE, _REST = 64, 0.5
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
        self._expected: dict[bytes, tuple[greeting.Invitation, ProtocolFactory]] = {}
        self._listeners: list[socket.socket] = []
        self.port: int = bound.getsockname()[1]
        self.refused = Refusals()
        self.strangers = Strangers()

    async def open(self) -> None:
        """Starts to listen. Raises OSError."""
        context = None if self._certificate is None else self._certificate.server_context(("modelserver",))
        if context is not None:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._listen(self._bound, context)
        if self._path:
            local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with address_of(self._path) as address:
                local.bind(address)
            self._listen(local, None)

    def _listen(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._listeners.append(listener)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener, context)

    def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        """By hand, as a loop's server would tell of a connection only after its TLS handshake."""
        for _ in range(_AT_ONCE):
            try:
                connection, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # There are too many open files, for example.
                self.refused.log(f"none can be accepted: {error.strerror}")
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(_REST, self._accept_again, listener, context)
                return
            _Door(self, connection, peer[0] if isinstance(peer, tuple) else "", context)

    def _accept_again(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener, context)

    def invite(self, make: ProtocolFactory) -> greeting.Invitation:
        """An invitation for one connection, whose protocol is made by ``make`` once it has proven itself."""
        certificate = "" if self._certificate is None else first_certificate(self._certificate.chain.decode())
        invitation = greeting.invite(self._host, self.port, certificate=certificate, path=self._path)
        self._expected[invitation.ticket] = invitation, make
        return invitation

    def revoke(self, invitation: greeting.Invitation) -> None:
        """The invitation is void, if it has not been used."""
        self._expected.pop(invitation.ticket, None)

    def redeem(self, nonce: bytes, response: bytes) -> tuple[bytes, ProtocolFactory]:
        """The confirmation for a response, and what makes the protocol; its ticket is used up.

        Raises GreetingError.
        """
        ticket = greeting.named_ticket(response)
        if ticket not in self._expected:
            raise greeting.GreetingError("an unknown or used ticket")
        invitation, make = self._expected[ticket]
        confirmation = greeting.confirm(invitation, nonce, response)
        del self._expected[ticket]
        return confirmation, make

    def close(self) -> None:
        """Stops listening; connections that have proven themselves stay."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        if self._path:
            Path(self._path).unlink(missing_ok=True)
        self._expected.clear()
        while self.strangers.count:
            self.strangers.oldest().refuse()


class Strangers:
    """The connections that have not proven anything yet, by the address they come from."""

    def __init__(self) -> None:
        self.count = 0
        self._doors: dict[str, dict[_Door, None]] = {}

    def add(self, address: str, door: _Door) -> None:
        self.count += 1
        self._doors.setdefault(address, {})[door] = None

    def remove(self, address: str, door: _Door) -> None:
        self.count -= 1
        doors = self._doors[address]
        del doors[door]
        if not doors:
            del self._doors[address]

    def oldest(self) -> _Door:
        """The oldest connection of the address that has the most."""
        most = max(self._doors, key=lambda address: len(self._doors[address]))
        return next(iter(self._doors[most]))


class Refusals:
    """Logs refused connections, at most one a second; those in between are counted."""

    def __init__(self) -> None:
        self._next = 0.0
        self._unlogged = 0

    def log(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._next:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} others were refused before)" if self._unlogged else ""
        self._next, self._unlogged = now + 1.0, 0
        _log.warning("A connection to the workers' address was refused: %s%s", reason, more)


class _Door(asyncio.Protocol):
    """A connection that has not proven anything yet."""

    def __init__(
        self, hub: Hub, connection: socket.socket, address: str, context: ssl.SSLContext | None
    ) -> None:
        self._hub = hub
        self._connection = connection
        self._address = address
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._nonce = b""
        strangers, loop = hub.strangers, asyncio.get_running_loop()
        while strangers.count >= MAX_STRANGERS:
            strangers.oldest().refuse(f"{MAX_STRANGERS} had not greeted yet, it was the oldest")
        strangers.add(address, self)
        self._is_stranger = True
        self._timer = loop.call_later(GREETING_TIME, self.refuse, "no greeting came in time")
        keep_watch(connection)
        # The connection counts before its handshake, which can be as slow as the greeting.
        self._opening = loop.create_task(self._open(context))

    async def _open(self, context: ssl.SSLContext | None) -> None:
        if not self._is_stranger:
            self._connection.close()
            return
        self._connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self,
                self._connection,
                ssl=context,
                ssl_handshake_timeout=None if context is None else GREETING_TIME,
            )
        except OSError as error:
            self.refuse(f"no TLS handshake: {error.strerror or error}")
        if self._transport is None:
            self.refuse("no TLS handshake: the connection was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._is_stranger:
            first, self._nonce = greeting.challenge()
            self._transport.write(first)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._is_stranger:
            return
        self._received += data
        if len(self._received) < greeting.RESPONSE.size:
            return
        try:
            confirmation, make = self._hub.redeem(self._nonce, self._received)
        except greeting.GreetingError as error:
            self.refuse(str(error))
            return
        self._leave()
        assert self._transport is not None  # noqa: S101 - set when the connection was made
        protocol = make()
        self._transport.set_protocol(protocol)
        self._transport.write(confirmation)
        protocol.connection_made(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def refuse(self, reason: str = "") -> None:
        """Closes the connection, and logs the reason, if there is one."""
        if self._is_stranger:
            self._leave()
            if reason:
                self._hub.refused.log(reason)
        if self._transport is not None:
            self._transport.abort()
        elif self._connection.fileno() >= 0:
            # This ends its handshake.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _leave(self) -> None:
        """The connection is no stranger any more, or gone."""
        if self._is_stranger:
            self._is_stranger = False
            self._hub.strangers.remove(self._address, self)
            self._timer.cancel()


def first_certificate(chain: str) -> str:
    """The server's own of a chain in PEM: those who signed it could also sign another server's."""
    end = "-----END CERTIFICATE-----"
    return f"{chain[chain.index('-----BEGIN CERTIFICATE-----') :].partition(end)[0]}{end}\n"


def keep_watch(connection: socket.socket) -> None:
    """Sends small messages at once, and notices a peer that has gone without a word."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", _PROBE), ("TCP_KEEPINTVL", _PROBE), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
