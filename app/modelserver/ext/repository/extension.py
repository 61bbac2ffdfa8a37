"""KServe's model repository, over REST and gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.ext.repository.rpcs import repository_rpcs
from modelserver.extension import Host
from modelserver.surface.api.services import Services

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application


class Extension:
    """Always on."""

    async def open(self, host: Host) -> None:
        def add(app: Application, services: Services, *, everybody: bool = True) -> None:
            from modelserver.ext.repository.routes import add_repository  # noqa: PLC0415 - with FastAPI

            add_repository(app, services, everybody=everybody)

        def add_near(app: Application, services: Services) -> None:
            add(app, services, everybody=False)

        # An address that has both roles gets the routes twice; the first ones serve.
        host.routes("management", add)
        host.routes("inference", add_near)
        for name, respond in repository_rpcs(host.services).items():
            host.rpc(name, respond)

    async def close(self, grace: float) -> None:
        """Nothing is open."""
