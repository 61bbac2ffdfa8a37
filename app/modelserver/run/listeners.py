"""The server's listeners and their connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING

from uvicorn.config import Config

from modelserver.engine.telemetry.logs import ACCESS_LOGGER
from modelserver.engine.wire.frontend import Setup, Tokens
from modelserver.ext.frontends.processes import Fleet
from modelserver.run.binding import roles_by_address
from modelserver.surface.auth.guard import Guard
from modelserver.surface.auth.origins import check_host, check_origin, tells_about_models
from modelserver.surface.http.connection import HttpProtocol, Listener, check_regularly
from modelserver.surface.http.cors import Cors
from modelserver.surface.http.edge import Edge
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.outgoing import Outgoing
from modelserver.surface.tls.context import renew, server_context, tls_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from modelserver.engine.telemetry.access import OnResponse
    from modelserver.models.settings.address import Address
    from modelserver.models.settings.settings import Settings
    from modelserver.surface.api.services import LateApp, Services
    from modelserver.surface.auth.keeper import TokenKeeper
    from modelserver.surface.http.edge import Check
    from modelserver.surface.http.exchange import HotRoutes
    from modelserver.surface.tls.context import Certificate

BACKLOG = 2048


class Listeners:
    """All listeners of the server.

    Args:
        settings: for addresses and limits.
        services: used by the applications; ``hot`` is the endpoint of the hot routes.
        apps: the application of each address.
        on_response: called for each answer of this process.
        fleet: the front ends of the inference address, if any.
        certificate: of the https addresses.
    """

    def __init__(  # noqa: PLR0917 - each is needed
        self,
        settings: Settings,
        services: Services,
        hot: HotRoutes,
        on_response: OnResponse,
        apps: Mapping[Address, LateApp],
        fleet: Fleet | None = None,
        *,
        certificate: Certificate | None = None,
    ) -> None:
        self._tls = None if certificate is None else server_context(certificate)
        self._settings = settings
        self._services = services
        self._hot = hot
        self._apps = apps
        self._on_response = on_response
        self._fleet = fleet
        self._servers: list[asyncio.Server] = []
        self._listeners: list[Listener] = []

    async def open(self, sockets: dict[Address, socket.socket]) -> None:
        """Starts to accept connections.

        Raises:
            ConfigError: the front ends cannot be started.
            OSError: another process listens on an address.
        """
        loop = asyncio.get_running_loop()
        if self._fleet is not None:
            await self._fleet.open(BACKLOG)
        limit, intake = self._settings.max_request_size, self._services.intake or Intake.of(self._settings)
        outgoing = self._services.outgoing or Outgoing.of(self._settings, intake.give_back)
        tokens, ping_token = self._services.tokens, self._settings.ping_token
        for address, roles in roles_by_address(self._settings).items():
            if self._fleet is not None and "inference" in roles:
                continue
            app = make_edge(address, self._apps[address], self._services, self._on_response)
            listener = Listener(
                self._hot if "inference" in roles else None,
                limit,
                self._on_response,
                guard=None if tokens is None else Guard(tokens.verifier, roles, ping_token=ping_token),
                cors=Cors.of(self._settings),
                intake=intake,
                outgoing=outgoing,
            )
            config = Config(app, log_config=None, lifespan="off", ws="none", loop="none", access_log=False)
            config.load()
            make = partial(HttpProtocol, config, listener)
            bound = sockets[address]
            if bound.family == socket.AF_UNIX:
                server = await loop.create_unix_server(make, sock=bound, backlog=BACKLOG)
            else:
                tls = tls_arguments(self._tls if address.scheme == "https" else None)
                server = await loop.create_server(make, sock=bound, backlog=BACKLOG, **tls)
            self._servers.append(server)
            self._listeners.append(listener)
        check_regularly(loop, self._listeners)

    def certify(self, certificate: Certificate) -> None:
        if self._tls is not None:
            renew(self._tls, certificate)
        if self._fleet is not None:
            self._fleet.certify((certificate.chain, certificate.key, certificate.client_ca))

    async def refuse(self) -> None:
        """Accepts no more connections; existing ones close after their current request."""
        if self._fleet is not None:
            await self._fleet.refuse()
        for app in self._apps.values():
            app.close()
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            for connection in list(listener.state.connections):
                connection.shutdown()

    async def close(self, grace: float) -> None:
        """Waits at most ``grace`` seconds for pending answers, and closes all connections."""
        await self.refuse()
        deadline = asyncio.get_running_loop().time() + grace
        if self._fleet is not None:
            await self._fleet.close(grace)
        while any(listener.state.connections for listener in self._listeners):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)
        for listener in self._listeners:
            for connection in list(listener.state.connections):
                connection.transport.abort()


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


def make_fleet(  # noqa: PLR0917 - mostly those of Listeners
    count: int,
    bound: socket.socket,
    settings: Settings,
    services: Services,
    hot: HotRoutes,
    on_response: OnResponse,
    app: LateApp,
    *,
    stamped_log: bool,
    certificate: Certificate | None = None,
) -> Fleet:
    """``count`` front ends for the socket of the inference address.

    They get hashes of the tokens, and the certificate over a private socket.
    """
    address = settings.inference_address
    roles = roles_by_address(settings)[address]
    tokens = services.tokens
    cors = Cors.of(settings)
    setup = Setup(
        settings.max_request_size,
        Intake.of(settings, count).limit,
        logging.getLogger(ACCESS_LOGGER).isEnabledFor(logging.INFO),
        stamped_log,
        cors.pairs if cors is not None else (),
        () if tokens is None else tuple(sorted(roles)),
        settings.ping_token,
        (certificate.chain, certificate.key, certificate.client_ca)
        if certificate is not None and address.scheme == "https"
        else None,
        names_failures=not settings.as_torchserve,
        max_outgoing=Outgoing.of(settings, front_ends=count).limit,
        probes=settings.log_probes,
    )
    edge = make_edge(address, app, services, on_response)
    fleet = Fleet(count, bound, setup, hot, edge, services.metrics.response, services.metrics.stalled)
    if tokens is not None:
        allow = partial(_allow, fleet, tokens)
        allow()
        tokens.on_change(allow)
    return fleet


def _allow(fleet: Fleet, tokens: TokenKeeper) -> None:
    fleet.allow(Tokens(tuple((one.scope.value, one.digest, one.expires) for one in tokens.fingerprints)))
