"""What the applications of all listeners need, and when they are built.

Building imports FastAPI, which takes longer than everything else that a server needs before it can listen.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from modelserver.engine.tensors.shared_memory import Regions

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from modelserver.engine.telemetry.metrics import ServerMetrics
    from modelserver.ext.otel.spans import Tracing
    from modelserver.ext.payloads.log import PayloadLog
    from modelserver.ext.recording.recorder import Recorder
    from modelserver.ext.workflows.workflows import Workflows
    from modelserver.models.registry import Registry
    from modelserver.models.settings.settings import Settings
    from modelserver.surface.auth.keeper import TokenKeeper
    from modelserver.surface.http.aside import Aside
    from modelserver.surface.http.intake import Intake
    from modelserver.surface.http.outgoing import Outgoing

Role = Literal["inference", "management", "metrics"]


@dataclass(frozen=True, slots=True)
class Services:
    """What the applications of all listeners need."""

    registry: Registry
    metrics: ServerMetrics
    settings: Settings
    tokens: TokenKeeper | None = None
    payloads: PayloadLog | None = None
    aside: Aside | None = None
    intake: Intake | None = None
    workflows: Workflows | None = None
    recorder: Recorder | None = None
    shared: Regions = field(default_factory=lambda: Regions(None, 0))
    tracing: Tracing | None = None
    outgoing: Outgoing | None = None


_ONE_AT_A_TIME = threading.Lock()


class LateApp:
    """The application of a listener with these roles, built by :meth:`build` or for its first request."""

    def __init__(self, roles: set[Role], services: Services) -> None:
        self._roles = roles
        self._services = services
        self._building: asyncio.Future[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = await self.build()
        await app(scope, receive, send)

    def close(self) -> None:
        """Ends the answers that would not end by themselves; the server stops."""
        if self._services.recorder is not None:
            self._services.recorder.close()

    async def build(self) -> ASGIApp:
        """The application; imports and builds it in a thread, once."""
        if self._building is None:
            self._building = asyncio.ensure_future(asyncio.to_thread(self._built))
        return await asyncio.shield(self._building)

    def _built(self) -> ASGIApp:
        with _ONE_AT_A_TIME:
            app: ASGIApp = import_module("modelserver.surface.api.app").build_app(self._roles, self._services)
            return app
