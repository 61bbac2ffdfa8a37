"""What the applications of all listeners need, and when they are built.

Building imports FastAPI, which takes longer than everything else that a server needs before it can listen.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, TypeAlias

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.tensors.limits import RequestLimits
from modelserver.engine.tensors.shared_memory import SharedMemory
from modelserver.models.registry import Registry
from modelserver.models.settings.settings import Settings
from modelserver.surface.http.content import MAX_PARAMETERS_BODY
from modelserver.surface.http.intake import Intake
from modelserver.surface.http.off_loop import OffLoop
from modelserver.surface.http.outgoing import Outgoing

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from modelserver.surface.api.application import Application
    from modelserver.surface.api.management import ManagementApi
    from modelserver.surface.auth.verifier import RequiredTokens

Role = Literal["inference", "management", "metrics"]
AddRoutes: TypeAlias = "Callable[[Application, Services], None]"
"""Adds routes to the application of a listener."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the applications of all listeners need. ``tokens`` is None where none are asked for."""

    registry: Registry
    metrics: ServerMetrics
    settings: Settings
    tokens: RequiredTokens | None
    off_loop: OffLoop
    intake: Intake
    outgoing: Outgoing
    shared: SharedMemory

    @property
    def limits(self) -> RequestLimits:
        """The limits of one inference request."""
        return RequestLimits(self.settings.max_request_instances, self.settings.max_request_tensors)

    def largest(self, role: Role) -> int:
        """Bytes that a message to a listener may have: those of management only have parameters."""
        largest = self.settings.max_request_size
        return min(largest, MAX_PARAMETERS_BODY) if role == "management" else largest

    @property
    def management(self) -> ManagementApi:
        """What clients may do with the models."""
        from modelserver.surface.api.management import ManagementApi  # noqa: PLC0415 - with FastAPI

        return ManagementApi(self.registry, model_api=self.settings.enable_model_api)


_ONE_AT_A_TIME = threading.Lock()


class LateApp:
    """The application of a listener with these roles, built by :meth:`build` or for its first request.

    Args:
        roles: of the listener.
        services: for the routes.
        added: adds the routes of extensions, by role.
        mounts: applications that answer at a path and below it.
    """

    def __init__(
        self,
        roles: set[Role],
        services: Services,
        added: Sequence[tuple[Role, AddRoutes]] = (),
        mounts: Mapping[str, ASGIApp] | None = None,
    ) -> None:
        self._roles = roles
        self._services = services
        self._added = [add for role, add in added if role in roles]
        self._mounts = mounts or {}
        self._building: asyncio.Future[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for path, mounted in self._mounts.items():
            if scope["path"] == path or scope["path"].startswith(f"{path}/"):
                await mounted(scope, receive, send)
                return
        app = await self.build()
        await app(scope, receive, send)

    async def build(self) -> ASGIApp:
        """The application; imports and builds it in a thread, once."""
        if self._building is None:
            self._building = asyncio.ensure_future(asyncio.to_thread(self._built))
        return await asyncio.shield(self._building)

    def _built(self) -> ASGIApp:
        with _ONE_AT_A_TIME:
            module = import_module("modelserver.surface.api.app")
            app: ASGIApp = module.build_app(self._roles, self._services, self._added)
            return app
