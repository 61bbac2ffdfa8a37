"""What became of the models that a server began with: a line each, as soon as it is known."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from modelserver.telemetry.text import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from modelserver.models.version import ModelVersion

_log = logging.getLogger("modelserver.models")

LONGEST = 2000  # characters of a reason


async def tell_first_loads(
    models: Iterable[ModelVersion], tell: Callable[[str], None], started: float
) -> bool:
    """Tells log and operator of each model once all its workers have loaded or have not; whether all have.

    ``started``: seconds of the monotonic clock from which the times are counted.
    """
    outcomes = await asyncio.gather(*(_tell_one(model, tell, started) for model in models))
    return all(outcomes)


async def _tell_one(model: ModelVersion, tell: Callable[[str], None], started: float) -> bool:
    workers = list(model.pool.workers)
    if workers:
        await asyncio.wait([worker.first_load for worker in workers])
    # A worker that failed may have come back meanwhile; what counts is now.
    ready = model.pool.statistics().ready
    wanted = model.pool.min_workers
    text = f"{model.name}: {ready}/{wanted} workers ready ({time.monotonic() - started:.1f} s)"
    if ready >= wanted:
        _log.info("%s", text)
    else:
        text = f"{text}: {shortened(model.pool.failure or 'it is not known why', LONGEST)}"
        _log.error("%s", text)
    tell(text)
    return ready >= wanted
