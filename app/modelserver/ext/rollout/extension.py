"""Traffic between the versions of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.ext.rollout.router import TrafficRouter
from modelserver.extension import Host
from modelserver.surface.api.services import Services

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application


class Extension:
    """Always on."""

    async def open(self, host: Host) -> None:
        router = TrafficRouter(host.registry, host.services.metrics, host.settings.shadow_bodies)

        def add(app: Application, services: Services) -> None:
            from modelserver.ext.rollout.routes import add_traffic  # noqa: PLC0415 - with FastAPI

            add_traffic(app, services.registry, router)

        host.route(router)
        host.routes("management", add)

    async def close(self, grace: float) -> None:
        """Nothing is open."""
