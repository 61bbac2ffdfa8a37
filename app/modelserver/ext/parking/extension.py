"""Models that are loaded for their first request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from modelserver.extension import Host

if TYPE_CHECKING:
    from modelserver.ext.parking.keeper import Keeper
    from modelserver.models.version import ModelVersion
    from modelserver.surface.api.application import Application
    from modelserver.surface.api.services import Services


class Extension:
    """Always on; the rest is imported for the first such model."""

    def __init__(self) -> None:
        self._keeper: Keeper | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def open(self, host: Host) -> None:
        made: asyncio.Future[Keeper] = asyncio.get_running_loop().create_future()

        def prepare(model: ModelVersion) -> None:
            if model.options.values["load"] != "on-demand":
                return
            if not made.done():
                from modelserver.ext.parking.keeper import make_keeper  # noqa: PLC0415 - as the class says

                self._keeper = make_keeper(host)
                made.set_result(self._keeper)
            made.result().keep(model)

        async def run() -> None:
            keeper = await asyncio.shield(made)
            self._keeping = asyncio.create_task(keeper.run())
            # Beyond the end of this task: a server that stops still loads models for requests that wait.
            await asyncio.shield(self._keeping)

        def add(app: Application, services: Services) -> None:
            from modelserver.ext.parking.routes import add_parking  # noqa: PLC0415 - with FastAPI

            add_parking(app, services.registry, lambda: self._keeper)

        host.prepare(prepare)
        host.run(run)
        host.routes("management", add)

    async def close(self, grace: float) -> None:
        """Stores when models were last used; what they need is stored as soon as it is measured."""
        if self._keeping is not None:
            self._keeping.cancel()
            # Before Python 3.12, wait_for loses a cancellation that comes with the end of its wait.
            await asyncio.wait({self._keeping}, timeout=grace)
        if self._keeper is not None:
            await self._keeper.close()
