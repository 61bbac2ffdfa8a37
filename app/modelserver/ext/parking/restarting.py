"""Restarts the workers of a version, one after the other."""

from __future__ import annotations

import asyncio

from modelserver.errors import Conflict
from modelserver.models.version import ModelVersion


async def restart(model: ModelVersion) -> int:
    """Replaces each worker by a new one on the same device, once that has loaded; returns how many were.

    Raises:
        Conflict: there are no workers, or one is being replaced already.
        ModelServerError: a new one could not load; the worker stays, and so do those after it.
    """
    crew, count = model.pool.crew, 0
    if not crew.workers:
        raise Conflict(f"Model {model.name} {model.version} has no workers.")
    for worker in list(crew.workers):
        # Others were removed or replaced meanwhile.
        if worker in crew.workers:
            fresh = crew.recycle(worker, "restart", "a restart was requested")
            if fresh is None:
                raise Conflict(f"A worker of model {model.name} {model.version} is being replaced already.")
            await asyncio.shield(fresh.first_load)
            count += 1
    return count
