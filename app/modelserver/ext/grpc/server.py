"""The gRPC servers: inference and Open Inference on one port, management on another.

Imported only if gRPC is on, as that takes a moment.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from modelserver.ext.grpc import health, inference, management, open_inference, reflection
from modelserver.ext.grpc.call import GrpcPort
from modelserver.ext.grpc.calls import CallContext, MethodHandler, method_handlers
from modelserver.ext.grpc.gate import Gate
from modelserver.ext.grpc.heads import read_head
from modelserver.ext.grpc.http2.connection import Http2Connection, Http2Listener
from modelserver.ext.grpc.http2.stream import Http2Limits
from modelserver.ext.grpc.ports import GrpcAddress, addresses, taken
from modelserver.ext.grpc.statuses import (
    management_status,
    open_inference_status,
    prediction_status,
    torchserve_status,
)
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.http.content import MAX_PARAMETERS_BODY
from modelserver.surface.tls.context import tls_arguments

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping

    from modelserver.engine.telemetry.access import AccessLog
    from modelserver.extension import Rpc
    from modelserver.surface.api.services import Services
    from modelserver.surface.tls.context import Certificate
    from modelserver.surface.watching import Watch

    Handlers: TypeAlias = dict[str, MethodHandler]

_log = logging.getLogger("modelserver.grpc")
# Seconds between looks at connections that make no progress, and at those that are to end.
_CHECK = 5.0
# Connections that may wait to be accepted, as on the ports of HTTP.
_BACKLOG = 2048
_LOOK = 0.02


@dataclass(frozen=True, slots=True)
class _Open:
    """A port that is listened on."""

    server: asyncio.Server
    listener: Http2Listener
    context: ssl.SSLContext | None


class GrpcServers:
    """Both servers.

    Args:
        services: registry, settings and helpers.
        access: the log of calls.
        certificate: for TLS, used if ``enable_grpc_ssl`` is set.
        requests: called with each request for a model, also each one of a stream, if they are watched.
        calls: called with each call of a model as a whole, if those are watched.
        rpcs: methods of the Open Inference service that extensions add.
    """

    def __init__(
        self,
        services: Services,
        access: AccessLog,
        certificate: Certificate | None = None,
        *,
        requests: Watch | None = None,
        calls: Watch | None = None,
        rpcs: Mapping[str, Rpc],
    ) -> None:
        self._rpcs = rpcs
        self._requests = requests
        self._calls = calls
        self._services = services
        self._certificate = certificate if services.settings.enable_grpc_ssl else None
        self._access = access
        self._stopping = asyncio.Event()
        self._open: list[_Open] = []
        self._checks = asyncio.get_running_loop().create_task(self._check())

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(_CHECK)
            for each in self._open:
                each.listener.check()

    async def open(self, held: Iterable[socket.socket]) -> None:
        """Starts to accept connections. ``held`` are the sockets that keep the ports.

        Raises:
            ConfigError: another process listens on a port.
        """
        inference_at, management_at = zip(addresses(self._services.settings), held, strict=True)
        around = self._around(Scope.INFERENCE)
        await self._start(*inference_at, self._inference(around), around)
        around = self._around(Scope.MANAGEMENT)
        await self._start(*management_at, self._management(around), around)

    def _around(self, scope: Scope) -> CallContext:
        tokens = self._services.tokens
        gate = Gate(
            None if tokens is None else tokens.verifier,
            scope,
            ping_token=self._services.settings.ping_token,
        )
        return CallContext(
            self._services.metrics, self._access, gate, self._calls if scope is Scope.INFERENCE else None
        )

    async def _start(
        self, address: GrpcAddress, held: socket.socket, served: Handlers, around: CallContext
    ) -> None:
        names = {path.partition("/")[0] for path in served}
        checks = health.HealthService(self._services.registry, names, self._stopping)
        served |= method_handlers(health.NAME, checks.methods, open_inference_status, around)
        names |= {health.NAME, *reflection.NAMES}
        for name in reflection.NAMES:
            service = reflection.ReflectionService(name, names)
            served |= method_handlers(name, service.methods, open_inference_status, around)
        intake, outgoing = self._services.intake, self._services.outgoing
        port = GrpcPort(served, self._largest(address.side), intake, outgoing)
        listener = Http2Listener(port.make, read_head, self._limits(address.side), outgoing.count)
        context = None if self._certificate is None else self._certificate.server_context(("h2",))
        own = socket.socket(fileno=held.detach())
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: Http2Connection(listener),
                sock=own,
                backlog=_BACKLOG,
                **tls_arguments(context),
            )
        except OSError as error:
            own.close()
            raise taken(address, error.strerror or str(error)) from error
        self._open.append(_Open(server, listener, context))
        bound = GrpcAddress(address.side, address.host, server.sockets[0].getsockname()[1])
        _log.info("gRPC %s address: %s", address.side, bound)

    def certify(self, certificate: Certificate) -> None:
        for each in self._open:
            if each.context is not None:
                certificate.renew(each.context, ("h2",))

    def _inference(self, around: CallContext) -> Handlers:
        services, watch = self._services, self._requests
        to_status = torchserve_status if services.settings.as_torchserve else prediction_status
        predictions = inference.InferenceService(services.registry, watch, to_status)
        tensors = open_inference.OpenInferenceService(services, self._stopping, watch, self._rpcs)
        made = method_handlers(inference.NAME, predictions.methods, to_status, around)
        if not services.settings.ts_open_inference_protocol:
            return made
        made |= method_handlers(open_inference.NAME, tensors.methods, open_inference_status, around)
        name = open_inference.TORCHSERVE_NAME
        return made | method_handlers(name, tensors.torchserve_methods, open_inference_status, around)

    def _management(self, around: CallContext) -> Handlers:
        service = management.ManagementService(
            self._services.registry, model_api=self._services.settings.enable_model_api
        )
        return method_handlers(management.NAME, service.methods, management_status, around)

    def _limits(self, side: str) -> Http2Limits:
        age, grace = (
            getattr(self._services.settings, f"grpc_{side}_max_connection_{name}_ms")
            for name in ("age", "age_grace")
        )
        return Http2Limits(
            age=None if age is None else age / 1000, age_grace=None if grace is None else grace / 1000
        )

    def _largest(self, side: str) -> int:
        largest = self._services.settings.max_request_size
        # Messages of management only have parameters.
        return min(largest, MAX_PARAMETERS_BODY) if side == "management" else largest

    def refuse(self) -> None:
        """Accepts no more calls; those in progress continue, but streams that wait for their client end."""
        self._stopping.set()
        for each in self._open:
            each.server.close()
            each.listener.refuse()

    async def close(self, grace: float) -> None:
        """Waits at most ``grace`` seconds for calls in progress, and ends the rest."""
        self.refuse()
        deadline = time.monotonic() + grace
        # Polled, as an event would have to be set by each connection.
        while (  # noqa: ASYNC110
            any(each.listener.connections for each in self._open) and time.monotonic() < deadline
        ):
            await asyncio.sleep(_LOOK)
        self._checks.cancel()
        for each in self._open:
            for connection in list(each.listener.connections):
                connection.abort()
