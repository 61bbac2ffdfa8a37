"""The standard health service: of the server (an empty name, or one of its services) and of each model."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelserver.errors import ModelNotFound
from modelserver.ext.grpc.framing import CallRefused
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.statuses import StatusCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator, Mapping

    from modelserver.ext.grpc.call import GrpcCall
    from modelserver.ext.grpc.calls import Method
    from modelserver.ext.grpc.messages import AnyMessage
    from modelserver.models.registry import Registry

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
