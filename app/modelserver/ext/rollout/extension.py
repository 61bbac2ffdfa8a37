"""Traffic between the versions of a model."""

from __future__ import annotations

from modelserver.ext.rollout.router import TrafficRouter
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """Always on."""
    router = TrafficRouter(host.registry, host.services.metrics, host.settings.shadow_bodies)
    host.route(router)
    host.routes("management", "modelserver.ext.rollout.routes", router)
