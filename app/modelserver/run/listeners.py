"""What clients connect to: the hot routes, the applications and the listeners.

The server imports this while the first models load, which takes about as long.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence

from modelserver.engine.telemetry.access import OnResponse
from modelserver.extension import Endpoints, Host, Listener
from modelserver.models.settings.address import Address
from modelserver.models.settings.settings import Settings
from modelserver.run.binding import roles_by_address
from modelserver.surface.api.late_app import LateApp
from modelserver.surface.api.services import Services
from modelserver.surface.auth.origins import check_host, check_origin, tells_about_models
from modelserver.surface.http.cors import Cors, configured_pairs
from modelserver.surface.http.edge import Check, Edge
from modelserver.surface.http.protocol import HttpServer
from modelserver.surface.inference.inference import InferenceApi
from modelserver.surface.tls.context import Certificate
from modelserver.surface.watching import Watch, joined

BACKLOG = 2048


class HttpAddress:
    """HTTP at one address; see :class:`modelserver.extension.Listener`."""

    def __init__(self, address: Address, endpoints: Endpoints) -> None:
        services, roles = endpoints.services, endpoints.roles[address]
        tokens, settings = services.tokens, services.settings
        self._server = HttpServer(
            endpoints.edge(address),
            endpoints.hot if "inference" in roles else None,
            settings.max_request_size,
            endpoints.on_response,
            intake=services.intake,
            outgoing=services.outgoing,
            headers=endpoints.headers,
            verifier=None if tokens is None else tokens.verifier,
            roles=roles,
            ping_token=settings.ping_token,
        )
        self._socket = endpoints.sockets[address]
        certificate = endpoints.certificate if address.scheme == "https" else None
        self._tls = {} if certificate is None else certificate.server_arguments()
        self._accepting: asyncio.Server | None = None

    async def open(self) -> None:
        loop, connect, bound = asyncio.get_running_loop(), self._server.connect, self._socket
        if bound.family == socket.AF_UNIX:
            self._accepting = await loop.create_unix_server(connect, sock=bound, backlog=BACKLOG)
        else:
            self._accepting = await loop.create_server(connect, sock=bound, backlog=BACKLOG, **self._tls)
        self._server.check_regularly()

    def certify(self, certificate: Certificate) -> None:
        if self._tls:
            certificate.renew(self._tls["ssl"])

    async def refuse(self) -> None:
        if self._accepting is not None:
            self._accepting.close()
        self._server.shutdown()

    async def close(self, grace: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while self._server.connections:
            if loop.time() > deadline:
                break
            await asyncio.sleep(0.02)
        self._server.abort()


class Listeners:
    """All listeners of the server: those of HTTP, and those of extensions.

    Args:
        endpoints: what answers.
        others: listeners of extensions, and the address of HTTP that each takes over.
    """

    def __init__(self, endpoints: Endpoints, others: Sequence[tuple[Listener, Address | None]] = ()) -> None:
        instead = {address: listener for listener, address in others if address is not None}
        self._all = [instead.get(address) or HttpAddress(address, endpoints) for address in endpoints.roles]
        self._all += [listener for listener, address in others if address is None]

    async def open(self) -> None:
        """Starts to accept connections.

        Raises:
            ConfigError: a listener of an extension cannot be opened.
            OSError: another process listens on an address.
        """
        for listener in self._all:
            await listener.open()

    def certify(self, certificate: Certificate) -> None:
        for listener in self._all:
            listener.certify(certificate)

    async def refuse(self) -> None:
        """Accepts no more connections; existing ones close after their current request."""
        for listener in self._all:
            await listener.refuse()

    async def close(self, grace: float) -> None:
        """Waits at most ``grace`` seconds for pending answers, and closes all connections."""
        await self.refuse()
        await asyncio.gather(*(listener.close(grace) for listener in self._all))


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
        headers=configured_pairs(services.settings),
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
    headers = configured_pairs(settings)
    return Edge(app, on_response, settings.max_request_size, Cors(headers) if headers else None, check)


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
