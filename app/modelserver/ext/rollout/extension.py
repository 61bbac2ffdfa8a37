"""Traffic between the versions of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelserver.extension import Host
    from modelserver.surface.api.application import Application
    from modelserver.surface.api.services import Services


class Extension:
    """Always on."""

    async def open(self, host: Host) -> None:
        def add(app: Application, services: Services) -> None:
            from modelserver.ext.rollout.routes import add_traffic  # noqa: PLC0415 - with FastAPI

            add_traffic(app, services.registry)

        host.routes("management", add)

    async def close(self, grace: float) -> None:
        """Nothing is open."""
