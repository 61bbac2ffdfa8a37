"""Models at a path of their own, by their option ``route``: /api instead of /predictions/NAME."""

from __future__ import annotations

from modelserver.ext.paths.own_paths import NAME, NONE, OwnPaths
from modelserver.extension import Host


class Extension:
    """Always on."""

    async def open(self, host: Host) -> None:
        paths = OwnPaths(host.registry)
        host.prepare(paths.claim)
        host.answer(NAME, NONE, find=paths.finder)

    async def close(self, grace: float) -> None:
        """Nothing is open."""
