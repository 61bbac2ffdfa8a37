"""Workers are forked where that is safe, instead of being new Python processes."""

from __future__ import annotations

from modelserver.ext.forking.spawner import Spawner, can_fork
from modelserver.extension import Host


async def extend(host: Host) -> None:
    """On with ``worker_start=auto``."""
    if host.spawner is None and can_fork():
        host.spawner = Spawner()
    if host.spawner is not None:
        host.closing.push_async_callback(host.spawner.close)
