"""The gRPC servers: inference and Open Inference on one port, management on another.

Imported only if gRPC is on, as that takes a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from modelserver.engine.telemetry.access import AccessLog
from modelserver.errors import ModelNotFound
from modelserver.ext.grpc import inference, management, open_inference
from modelserver.ext.grpc.call import GrpcCall, GrpcPort
from modelserver.ext.grpc.calls import CallContext, Method, MethodHandler, method_handlers
from modelserver.ext.grpc.framing import CallRefused
from modelserver.ext.grpc.gate import Gate
from modelserver.ext.grpc.heads import read_head
from modelserver.ext.grpc.http2.connection import Http2Connection, Http2Listener
from modelserver.ext.grpc.http2.stream import Http2Limits
from modelserver.ext.grpc.messages import POOL, AnyMessage, message
from modelserver.ext.grpc.ports import GrpcAddress, addresses, taken
from modelserver.ext.grpc.statuses import (
    StatusCode,
    management_status,
    open_inference_status,
    prediction_status,
    torchserve_status,
)
from modelserver.extension import Rpc
from modelserver.models.registry import Registry
from modelserver.surface.api.services import Services
from modelserver.surface.auth.scopes import Scope
from modelserver.surface.tls.context import Certificate
from modelserver.surface.watching import Watch

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor


# The standard health service: of the server (an empty name, or one of its services) and of each model.

NAME = "grpc.health.v1.Health"
EVERY = 0.5  # seconds between checks for watchers
# Watchers on a connection, and on a port: they need no token.
MOST_OF_CLIENT, MOST = 100, 1000

_Answer = message("grpc.health.v1.HealthCheckResponse")


@dataclass(slots=True)
class _Watched:
    """A state that some watchers have seen; ``ended``: it has changed, or the server stops."""

    watchers: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class HealthService:
    """Serving while ``/ping`` says Healthy, or the model has a worker, and the server is not stopping.

    Args:
        registry: of the models.
        services: full names that stand for the whole server.
        stopping: set when the server accepts no more calls.
    """

    def __init__(self, registry: Registry, services: Collection[str], stopping: asyncio.Event) -> None:
        self._registry = registry
        self._services = frozenset(services) | {"", NAME}
        self._stopping = stopping
        self._watchers: Counter[str] = Counter()  # by the address of their connection
        # By name and state; one task looks for all watchers.
        self._watched: dict[tuple[str, int], _Watched] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        return {"Check": self.check, "Watch": self.watch}

    async def check(self, request: AnyMessage, _: GrpcCall) -> AnyMessage:
        """The state now. Raises ModelNotFound."""
        status = self._status(request.service)
        if status == _Answer.SERVICE_UNKNOWN:
            raise ModelNotFound.named(request.service)
        return _Answer(status=status)

    async def watch(self, request: AnyMessage, call: GrpcCall) -> AsyncIterator[AnyMessage]:
        """The state now and whenever it has changed, until the server stops. Raises CallRefused."""
        before = None
        with self._counted(call.client):
            while True:
                status = self._status(request.service)
                if status != before:
                    yield _Answer(status=status)
                if self._stopping.is_set():
                    return
                before = status
                await self._end_of(request.service, status)

    @contextlib.contextmanager
    def _counted(self, client: str) -> Iterator[None]:
        """Counts a watcher while in the context. Raises CallRefused if there are too many."""
        if self._watchers[client] >= MOST_OF_CLIENT or self._watchers.total() >= MOST:
            text = f"A connection may have {MOST_OF_CLIENT} watchers, all together {MOST}."
            raise CallRefused(StatusCode.RESOURCE_EXHAUSTED, text)
        self._watchers[client] += 1
        try:
            yield
        finally:
            self._watchers[client] -= 1
            if not self._watchers[client]:
                del self._watchers[client]

    async def _end_of(self, name: str, status: int) -> None:
        """Returns when the state is another one, or the server stops."""
        state = name, status
        watched = self._watched.setdefault(state, _Watched())
        watched.watchers += 1
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        try:
            await watched.ended.wait()
        finally:
            watched.watchers -= 1
            if not watched.watchers and self._watched.get(state) is watched:
                del self._watched[state]

    async def _look(self) -> None:
        try:
            while self._watched:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), EVERY)
                for (name, status), watched in list(self._watched.items()):
                    if self._stopping.is_set() or self._status(name) != status:
                        del self._watched[name, status]
                        watched.ended.set()
        finally:
            self._looking = None

    def _status(self, name: str) -> int:
        if name in self._services:
            serving = self._registry.healthy
        elif name not in self._registry.names():
            return int(_Answer.SERVICE_UNKNOWN)
        else:
            serving = self._registry.is_ready(name)
        return int(_Answer.SERVING if serving and not self._stopping.is_set() else _Answer.NOT_SERVING)


# The standard reflection service: the services of a port, and the files that describe them.

NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class ReflectionService:
    """Tells of the services with these names, in one of the versions of its protocol."""

    def __init__(self, name: str, services: Collection[str]) -> None:
        self._services = sorted(services)
        self._answer = message(f"{name.rpartition('.')[0]}.ServerReflectionResponse")

    @property
    def methods(self) -> Mapping[str, Method]:
        return {"ServerReflectionInfo": self.respond}

    async def respond(self, requests: AsyncIterator[AnyMessage], _: GrpcCall) -> AsyncIterator[AnyMessage]:
        """An answer to each request."""
        async for request in requests:
            yield self._answer(valid_host=request.host, original_request=request, **self._about(request))

    def _about(self, request: AnyMessage) -> dict[str, object]:
        kind = request.WhichOneof("message_request")
        try:
            if kind == "list_services":
                return {"list_services_response": {"service": [{"name": name} for name in self._services]}}
            if kind == "file_by_filename":
                return _files(POOL.FindFileByName(request.file_by_filename))
            if kind == "file_containing_symbol":
                return _files(_file_of(request.file_containing_symbol))
            if kind == "all_extension_numbers_of_type":
                name = POOL.FindMessageTypeByName(request.all_extension_numbers_of_type).full_name
                return {"all_extension_numbers_response": {"base_type_name": name}}
        except KeyError:
            pass
        # Our messages have no extensions.
        return {"error_response": {"error_code": StatusCode.NOT_FOUND, "error_message": "not found"}}


def _file_of(symbol: str) -> FileDescriptor:
    """The file with a service, method, message, enum or field. Raises KeyError."""
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        return POOL.FindMethodByName(symbol).containing_service.file


def _files(first: FileDescriptor) -> dict[str, object]:
    """A file, and those that it imports."""
    contents: dict[str, bytes] = {}
    waiting = [first]
    while waiting:
        file = waiting.pop()
        if file.name not in contents:
            contents[file.name] = file.serialized_pb
            waiting += file.dependencies
    return {"file_descriptor_response": {"file_descriptor_proto": list(contents.values())}}


if TYPE_CHECKING:
    import ssl

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
            None if tokens is None else tokens.verifier, scope, ping_token=self._services.settings.ping_token
        )
        return CallContext(
            self._services.metrics, self._access, gate, self._calls if scope is Scope.INFERENCE else None
        )

    async def _start(
        self, address: GrpcAddress, held: socket.socket, served: Handlers, around: CallContext
    ) -> None:
        names = {path.partition("/")[0] for path in served}
        checks = HealthService(self._services.registry, names, self._stopping)
        served |= method_handlers(NAME, checks.methods, open_inference_status, around)
        names |= {NAME, *NAMES}
        for name in NAMES:
            service = ReflectionService(name, names)
            served |= method_handlers(name, service.methods, open_inference_status, around)
        port = GrpcPort(served, self._services.largest(address.side), self._services)
        listener = Http2Listener(port.make, read_head, self._limits(address.side), port.outgoing.count)
        tls = {} if self._certificate is None else self._certificate.server_arguments(("h2",))
        own = socket.socket(fileno=held.detach())
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: Http2Connection(listener), sock=own, backlog=_BACKLOG, **tls
            )
        except OSError as error:
            own.close()
            raise taken(address, error.strerror or str(error)) from error
        self._open.append(_Open(server, listener, tls.get("ssl")))
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
        service = management.ManagementService(self._services)
        return method_handlers(management.NAME, service.methods, management_status, around)

    def _limits(self, side: str) -> Http2Limits:
        age, grace = (
            getattr(self._services.settings, f"grpc_{side}_max_connection_{name}_ms")
            for name in ("age", "age_grace")
        )
        return Http2Limits(
            age=None if age is None else age / 1000, age_grace=None if grace is None else grace / 1000
        )

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
