"""Sockets and the protocol that speaks on them."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from uvicorn.config import Config

from modelserver.api.app import Role, Services, build_app
from modelserver.api.edge import Edge, OnResponse
from modelserver.api.http_protocol import HotRoutes, HttpProtocol, Listener, check_regularly
from modelserver.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from modelserver.settings.settings import Address, Settings

BACKLOG = 2048


def roles_by_address(settings: Settings) -> dict[Address, set[Role]]:
    """Which address plays which roles (reference 1: equal addresses share one listener)."""
    roles: dict[Address, set[Role]] = {}
    roles.setdefault(settings.inference_address, set()).add("inference")
    roles.setdefault(settings.management_address, set()).add("management")
    if settings.enable_metrics_api:
        roles.setdefault(settings.metrics_address, set()).add("metrics")
        if settings.inference_address == settings.management_address:
            roles[settings.inference_address].add("metrics")
    return roles


def bind(address: Address, keys: str) -> socket.socket:
    """A bound socket that does not listen yet.

    Raises:
        ConfigError: the address cannot be had; the message names the setting.
    """
    try:
        if address.scheme == "unix":
            return _bind_unix(address.path)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((address.host, address.port))
        except OSError:
            bound.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"Cannot listen on {keys}={address}: {reason}") from error
    return bound


def _bind_unix(path: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A socket file that nobody listens on is left over from a server that is gone.
        if os.path.exists(path) and bound.connect_ex(path) != 0:
            os.unlink(path)
            bound.close()
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(path)
        os.chmod(path, 0o600)
    except OSError:
        bound.close()
        raise
    return bound


class Listeners:
    """All listeners of the server."""

    def __init__(
        self, settings: Settings, services: Services, hot: HotRoutes, on_response: OnResponse
    ) -> None:
        self._settings = settings
        self._services = services
        self._hot = hot
        self._on_response = on_response
        self._servers: list[asyncio.Server] = []
        self._listeners: list[Listener] = []

    async def open(self, sockets: dict[Address, socket.socket]) -> None:
        """Starts to accept connections."""
        loop = asyncio.get_running_loop()
        for address, roles in roles_by_address(self._settings).items():
            limit = self._settings.max_request_size
            app = Edge(build_app(roles, self._services), self._on_response, limit)
            listener = Listener(self._hot if "inference" in roles else None, limit, self._on_response)
            config = Config(app, log_config=None, lifespan="off", ws="none", loop="none", access_log=False)
            config.load()
            make = _factory(config, listener)
            bound = sockets[address]
            if bound.family == socket.AF_UNIX:
                server = await loop.create_unix_server(make, sock=bound, backlog=BACKLOG)
            else:
                server = await loop.create_server(make, sock=bound, backlog=BACKLOG)
            self._servers.append(server)
            self._listeners.append(listener)
        check_regularly(loop, self._listeners)

    def refuse(self) -> None:
        """Accepts no more connections; those that exist close after the request they are busy with."""
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            for connection in list(listener.state.connections):
                connection.shutdown()

    async def close(self, grace: float) -> None:
        """Waits for the answers on their way, at most ``grace`` seconds, and closes all connections."""
        self.refuse()
        deadline = asyncio.get_running_loop().time() + grace
        while any(listener.state.connections for listener in self._listeners):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)
        for listener in self._listeners:
            for connection in list(listener.state.connections):
                connection.transport.abort()


def _factory(config: Config, listener: Listener) -> Callable[[], HttpProtocol]:
    return lambda: HttpProtocol(config, listener)
