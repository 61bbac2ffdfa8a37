"""The gRPC servers: inference and Open Inference on one port, management on another.

Imported only if gRPC is on, as that takes a moment.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeAlias

import grpc
from grpc_reflection.v1alpha import reflection

from modelserver.auth.scopes import Scope
from modelserver.grpc import health, inference, management, open_inference, payloads
from modelserver.grpc.calls import OnCall, Surroundings, handlers
from modelserver.grpc.gate import Gate
from modelserver.grpc.messages import POOL
from modelserver.grpc.ports import GrpcAddress, addresses, taken
from modelserver.grpc.statuses import tell_management, tell_open_inference, tell_prediction
from modelserver.http.content import MAX_PARAMETERS_BODY

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from modelserver.api.app import Services
    from modelserver.tls.context import Certificate

    Handlers: TypeAlias = dict[str, grpc.GenericRpcHandler]

_log = logging.getLogger("modelserver.grpc")


class GrpcServers:
    """Both servers.

    Args:
        services: registry, settings and helpers.
        on_call: called for each call that has ended.
        certificate: for TLS, used if ``enable_grpc_ssl`` is set.
    """

    def __init__(self, services: Services, on_call: OnCall, certificate: Certificate | None = None) -> None:
        self._services = services
        self._certificate = certificate if services.settings.enable_grpc_ssl else None
        self._on_call = on_call
        self._stopping = asyncio.Event()
        self._servers: list[grpc.aio.Server] = []
        self._ending: list[asyncio.Task[None]] = []

    async def open(self, held: Iterable[socket.socket]) -> None:
        """Starts to accept connections. ``held`` are the sockets that keep the ports until then.

        Raises:
            ConfigError: another process listens on a port.
        """
        for holder in held:
            holder.close()
        inference_at, management_at = addresses(self._services.settings)
        around = self._around(Scope.INFERENCE)
        await self._start(inference_at, self._inference(around), around)
        around = self._around(Scope.MANAGEMENT)
        await self._start(management_at, self._management(around), around)

    def _around(self, scope: Scope) -> Surroundings:
        tokens = self._services.tokens
        gate = Gate(
            None if tokens is None else tokens.verifier,
            scope,
            ping_token=self._services.settings.ping_token,
        )
        return Surroundings(self._on_call, gate, self._stopping)

    async def _start(self, address: GrpcAddress, served: Handlers, around: Surroundings) -> None:
        names = {path.partition("/")[0] for path in served}
        checks = health.HealthService(self._services.registry, names, self._stopping)
        served |= handlers(health.NAME, checks.methods, tell_open_inference, around)
        told = reflection.ReflectionService(names | {health.NAME, reflection.NAME})
        served |= handlers(reflection.NAME, told.methods, tell_open_inference, around)
        port = Port(served, self._largest(address.side), self._services.intake)
        listener = Listener(port.make, read_head)
        loop = asyncio.get_running_loop()
        context = None if self._certificate is None else server_context(self._certificate, ("h2",))
        try:
            server = await loop.create_server(
                lambda: Connection(listener), address.host, address.port, **tls_arguments(context)
            )
        except OSError as error:
            raise taken(address, "Address already in use") from error
        self._listeners.append((server, listener, context))
        shown = GrpcAddress(address.side, address.host, server.sockets[0].getsockname()[1])
        _log.info("gRPC %s address: %s", address.side, shown)

    def certify(self, certificate: Certificate) -> None:
        """New connections use this certificate."""
        if self._certificate is not None:
            self._certificate = certificate

    def _inference(self, around: Surroundings) -> Handlers:
        services, log = self._services, self._services.payloads
        if log is None:
            predictions = inference.InferenceService(services.registry)
            tensors = open_inference.OpenInferenceService(services, self._stopping)
        else:
            predictions = payloads.LoggedInferenceService(services.registry, log)
            tensors = payloads.LoggedOpenInferenceService(services, self._stopping, log)
        made = {inference.NAME: handlers(inference.NAME, predictions.methods, tell_prediction, around)}
        if not services.settings.ts_open_inference_protocol:
            return made
        return made | {
            open_inference.NAME: handlers(open_inference.NAME, tensors.methods, tell_open_inference, around),
            open_inference.TORCHSERVE_NAME: handlers(
                open_inference.TORCHSERVE_NAME, tensors.torchserve_methods, tell_open_inference, around
            ),
        }

    def _management(self, around: Surroundings) -> Handlers:
        service = management.ManagementService(
            self._services.registry, model_api=self._services.settings.enable_model_api
        )
        return {management.NAME: handlers(management.NAME, service.methods, tell_management, around)}

    def _options(self, side: str) -> list[tuple[str, int]]:
        settings = self._services.settings
        largest = settings.max_request_size
        if side == "management":
            # Its messages only have parameters.
            largest = min(largest, MAX_PARAMETERS_BODY)
        options = [
            ("grpc.max_receive_message_length", largest),
            ("grpc.max_send_message_length", -1),
            # Otherwise two servers could share a port and each get some of the calls.
            ("grpc.so_reuseport", 0),
            # By default, gRPC cancels waiting calls beyond a thousand at random, without our knowing.
            ("grpc.server.max_pending_requests", _MOST_PENDING),
            ("grpc.server.max_pending_requests_hard_limit", _MOST_PENDING),
        ]
        for name in ("max_connection_age_ms", "max_connection_age_grace_ms"):
            given = getattr(settings, f"grpc_{side}_{name}")
            if given is not None:
                options.append((f"grpc.{name}", given))
        return options

    def refuse(self) -> None:
        """Accepts no more calls; those in progress continue, but streams that wait for their client end."""
        self._stopping.set()
        if not self._ending:
            self._ending = [asyncio.ensure_future(server.stop(_FOREVER)) for server in self._servers]

    async def close(self, grace: float) -> None:
        """Waits at most ``grace`` seconds for calls in progress, and ends the rest."""
        self.refuse()
        if self._ending:
            await asyncio.wait(self._ending, timeout=grace)
        for server in self._servers:
            await server.stop(None)
        await asyncio.gather(*self._ending)


_FOREVER = 1e6  # seconds
_MOST_PENDING = 1 << 20


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], root_certificates=certificate.client_ca or None
    )
