"""Models at a path of their own, by their option ``route``: /api instead of /predictions/NAME."""

from __future__ import annotations

from modelserver.ext.paths.own_paths import NAME, NONE, OwnPaths
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """Always on."""
    paths = OwnPaths(host.registry)
    host.prepare(paths.claim)
    host.answer(NAME, NONE, find=paths.finder)
