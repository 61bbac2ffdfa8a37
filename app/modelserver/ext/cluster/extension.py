"""Workers on other machines."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from modelserver.ext.cluster.opening import open_cluster

if TYPE_CHECKING:
    from modelserver.extension import Host


class Extension:
    """On unless ``worker_launcher=local``."""

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()

    async def open(self, host: Host) -> None:
        host.launch(await self._stack.enter_async_context(open_cluster(host.settings, host.workdir)))

    async def close(self, grace: float) -> None:
        await self._stack.aclose()
