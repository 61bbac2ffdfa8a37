"""Models that are loaded for their first request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from modelserver.extension import Host

if TYPE_CHECKING:
    from modelserver.ext.parking.keeper import Keeper
    from modelserver.models.version import ModelVersion

# Seconds for the end of what loads and parks models.
GRACE = 5.0


async def extend(host: Host) -> None:
    """Always on; the rest is imported for the first such model."""
    made: asyncio.Future[Keeper] = asyncio.get_running_loop().create_future()

    def prepare(model: ModelVersion) -> None:
        if model.options.values["load"] != "on-demand":
            return
        if not made.done():
            from modelserver.ext.parking.keeper import make_keeper  # noqa: PLC0415 - as the docstring says

            made.set_result(keeper := make_keeper(host))
            # Stores when models were last used; what they need is stored as soon as it is measured.
            host.closing.push_async_callback(keeper.close)
        made.result().keep(model)

    async def run() -> None:
        keeper = await asyncio.shield(made)
        keeping = asyncio.create_task(keeper.run())
        host.closing.push_async_callback(_end, keeping)
        # Beyond the end of this task: a server that stops still loads models for requests that wait.
        await asyncio.shield(keeping)

    def find() -> Keeper | None:
        return made.result() if made.done() else None

    host.prepare(prepare)
    host.run(run)
    host.routes("management", "modelserver.ext.parking.routes", find)


async def _end(keeping: asyncio.Task[None]) -> None:
    keeping.cancel()
    # Before Python 3.12, wait_for loses a cancellation that comes with the end of its wait.
    await asyncio.wait({keeping}, timeout=GRACE)
