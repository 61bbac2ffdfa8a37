"""Models that are loaded for their first request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from modelserver.ext.parking.keeper import Keeper
from modelserver.ext.parking.meters import ParkingMeters
from modelserver.ext.parking.needs import Needs

if TYPE_CHECKING:
    from modelserver.extension import Host
    from modelserver.surface.api.application import Application
    from modelserver.surface.api.services import Services


class Extension:
    """Always on; without such models it does nothing."""

    def __init__(self) -> None:
        self._needs = Needs()

    async def open(self, host: Host) -> None:
        await asyncio.to_thread(self._needs.load)
        meters = ParkingMeters(host.services.metrics, host.registry)
        keeper = Keeper(host.settings.max_models_memory, self._needs, meters)
        meters.show(keeper.residents, lambda: keeper.budget)

        def add(app: Application, services: Services) -> None:
            from modelserver.ext.parking.routes import add_parking  # noqa: PLC0415 - with FastAPI

            add_parking(app, services.registry, keeper)

        host.prepare(keeper.keep)
        host.run(keeper.run)
        host.routes("management", add)

    async def close(self, grace: float) -> None:
        await asyncio.to_thread(self._needs.save)
