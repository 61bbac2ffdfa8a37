"""What clients connect to: the hot routes, the applications and the listeners.

The server imports this while the first models load, which takes about as long.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from modelserver.engine.telemetry.access import OnResponse
from modelserver.extension import Endpoints, Host, Listener
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.run.binding import roles_by_address
from modelserver.surface.api.services import LateApp, Role, Services
from modelserver.surface.auth.guard import Guard
from modelserver.surface.auth.origins import check_host, check_origin, tells_about_models
from modelserver.surface.http.connection import HttpListener
from modelserver.surface.http.cors import Cors
from modelserver.surface.http.edge import Check, Edge
from modelserver.surface.http.protocol import HttpProtocol
from modelserver.surface.inference.inference import InferenceApi
from modelserver.surface.tls.context import Certificate
from modelserver.surface.watching import Watch, joined

BACKLOG = 2048


class Listeners:
    """All listeners of the server: those of HTTP, and those of extensions.

    Args:
        endpoints: what answers.
        others: listeners of extensions, and the address of HTTP that each takes over.
    """

    def __init__(self, endpoints: Endpoints, others: Sequence[tuple[Listener, Address | None]] = ()) -> None:
        certificate = endpoints.certificate
        self._tls = {} if certificate is None else certificate.server_arguments()
        self._endpoints = endpoints
        # What takes over an address of HTTP opens and closes with it, and the others after it.
        self._instead = {address: listener for listener, address in others if address is not None}
        self._others = [listener for listener, address in others if address is None]
        self._servers: list[asyncio.Server] = []
        self._listeners: list[HttpListener] = []

    async def open(self) -> None:
        """Starts to accept connections.

        Raises:
            ConfigError: a listener of an extension cannot be opened.
            OSError: another process listens on an address.
        """
        loop = asyncio.get_running_loop()
        endpoints = self._endpoints
        for instead in self._instead.values():
            await instead.open()
        for address, roles in endpoints.roles.items():
            if address in self._instead:
                continue
            listener = self._make(address, roles)
            make = partial(HttpProtocol, listener)
            bound = endpoints.sockets[address]
            if bound.family == socket.AF_UNIX:
                server = await loop.create_unix_server(make, sock=bound, backlog=BACKLOG)
            else:
                tls = self._tls if address.scheme == "https" else {}
                server = await loop.create_server(make, sock=bound, backlog=BACKLOG, **tls)
            self._servers.append(server)
            self._listeners.append(listener)
            listener.check_regularly()
        for other in self._others:
            await other.open()

    def _make(self, address: Address, roles: AbstractSet[Role]) -> HttpListener:
        endpoints, services = self._endpoints, self._endpoints.services
        tokens, settings = services.tokens, services.settings
        hot, ping_token = endpoints.hot if "inference" in roles else None, settings.ping_token
        return HttpListener(
            endpoints.edge(address),
            hot,
            settings.max_request_size,
            endpoints.on_response,
            guard=None if tokens is None else Guard(tokens.verifier, roles, hot, ping_token=ping_token),
            cors=Cors.of(settings),
            intake=services.intake,
            outgoing=services.outgoing,
        )

    def certify(self, certificate: Certificate) -> None:
        if self._tls:
            certificate.renew(self._tls["ssl"])
        for other in (*self._instead.values(), *self._others):
            other.certify(certificate)

    async def refuse(self) -> None:
        """Accepts no more connections; existing ones close after their current request."""
        for instead in self._instead.values():
            await instead.refuse()
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            for connection in list(listener.connections):
                connection.shutdown()
        for other in self._others:
            await other.refuse()

    async def close(self, grace: float) -> None:
        """Waits at most ``grace`` seconds for pending answers, and closes all connections."""
        await self.refuse()
        deadline = asyncio.get_running_loop().time() + grace
        for instead in self._instead.values():
            await instead.close(grace)
        while any(listener.connections for listener in self._listeners):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)
        for listener in self._listeners:
            for connection in list(listener.connections):
                connection.transport.abort()
        for other in self._others:
            await other.close(grace)


def watch_of(host: Host, *, requests: bool, whole_calls: bool) -> Watch | None:
    """All watches of one kind, or of both."""
    return joined(watch for watch, whole in host.watches if (whole_calls if whole else requests))


def make_listeners(
    host: Host, sockets: Mapping[Address, socket.socket], on_response: OnResponse, *, stamped_log: bool
) -> tuple[Listeners, list[LateApp]]:
    """The listeners, which do not accept connections yet, and the applications to build.

    ``sockets`` are bound to the addresses; the extensions of ``host`` are open.
    """
    services = host.services
    roles = roles_by_address(services.settings)
    apps: dict[Address, LateApp] = {}

    def edge(address: Address) -> Edge:
        return make_edge(address, apps[address], services, on_response)

    endpoints = Endpoints(
        services,
        hot=hot_routes(host, watch_of(host, requests=True, whole_calls=True)),
        unwatched=hot_routes(host, None),
        paths=tuple((protocol.name, protocol.paths) for protocol in host.protocols),
        watch_request=watch_of(host, requests=True, whole_calls=False),
        watch_call=watch_of(host, requests=False, whole_calls=True),
        edge=edge,
        roles=roles,
        sockets=sockets,
        on_response=on_response,
        certificate=host.certificate,
        stamped_log=stamped_log,
    )
    for address, own in roles.items():
        mounts = {path: make(endpoints) for role, path, make in host.mounts if role in own}
        apps[address] = LateApp(own, services, host.added_routes, mounts)
    others = [(make(endpoints), at) for make, at in host.listeners]
    return Listeners(endpoints, others), list(apps.values())


def hot_routes(host: Host, watch: Watch | None) -> InferenceApi:
    """The routes of inference, whose requests are watched."""
    services, settings = host.services, host.settings
    return InferenceApi(
        services.registry,
        settings.max_request_size,
        services.off_loop,
        services.limits,
        services.shared,
        watch,
        host.protocols,
    )


def make_edge(address: Address, app: LateApp, services: Services, on_response: OnResponse) -> Edge:
    """The ASGI application of an address."""
    settings = services.settings
    check = None if services.tokens is not None else check_of_pages(address, settings)
    return Edge(app, on_response, settings.max_request_size, Cors.of(settings), check)


def check_of_pages(address: Address, settings: Settings) -> Check:
    """What an address without tokens checks: a page would have none. Off loopback every client is allowed."""
    roles = roles_by_address(settings)[address]
    names = frozenset((settings.management_hosts or "").lower().replace(",", " ").split())
    allowed = settings.cors_allowed_origin or ""
    is_local = settings.management_address.is_loopback
    # Pages cannot connect to unix sockets.
    checks_host = address.is_loopback and address.scheme != "unix"

    def check(method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if is_local:
            check_origin(method, headers, allowed, names)
        if checks_host and tells_about_models(roles, method, path):
            check_host(headers, names)

    return check
