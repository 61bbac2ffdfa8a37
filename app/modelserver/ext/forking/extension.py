"""Workers are forked where that is safe, instead of being new Python processes."""

from __future__ import annotations

from modelserver.ext.forking.spawner import Spawner, can_fork
from modelserver.extension import Host


class Extension:
    """On with ``worker_start=auto``."""

    def __init__(self) -> None:
        self._host: Host | None = None

    async def open(self, host: Host) -> None:
        self._host = host
        if host.spawner is None and can_fork():
            host.spawner = Spawner()

    async def close(self, grace: float) -> None:
        """Ends the process that forks."""
        if self._host is not None and self._host.spawner is not None:
            await self._host.spawner.close()
