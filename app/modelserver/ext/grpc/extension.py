"""gRPC: TorchServe's services and the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import socket
from importlib import import_module
from typing import TYPE_CHECKING

from modelserver.ext.grpc.ports import reserved
from modelserver.extension import Endpoints, Host
from modelserver.surface.tls.context import Certificate

if TYPE_CHECKING:
    from modelserver.ext.grpc.server import GrpcServers


async def extend(host: Host) -> None:
    """On with ``enable_grpc_api``."""
    held = host.closing.enter_context(reserved(host.settings))
    host.listen(lambda endpoints: GrpcListener(host, endpoints, held))


class GrpcListener:
    """Both ports of gRPC, whose sockets are ``held``; see :class:`modelserver.extension.Listener`."""

    def __init__(self, host: Host, endpoints: Endpoints, held: list[socket.socket]) -> None:
        self._host = host
        self._endpoints = endpoints
        self._held = held
        self._servers: GrpcServers | None = None

    async def open(self) -> None:
        # In a thread, so that importing it does not delay HTTP, which is served by now.
        module = await asyncio.to_thread(import_module, "modelserver.ext.grpc.server")
        host = self._host
        servers: GrpcServers = module.GrpcServers(
            host.services,
            host.access,
            self._endpoints.certificate,
            requests=self._endpoints.watch_request,
            calls=self._endpoints.watch_call,
            rpcs=host.rpcs,
        )
        await servers.open(self._held)
        self._servers = servers

    def certify(self, certificate: Certificate) -> None:
        if self._servers is not None:
            self._servers.certify(certificate)

    async def refuse(self) -> None:
        if self._servers is not None:
            self._servers.refuse()

    async def close(self, grace: float) -> None:
        if self._servers is not None:
            await self._servers.close(grace)
