"""The console: a page that shows models, their load and workers."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

from modelserver.ext.console.arrivals import arrivals_of, follow_arrivals
from modelserver.ext.console.late import LateConsole
from modelserver.ext.console.logs.ring import LogRing
from modelserver.ext.console.minutes import Minutes
from modelserver.extension import Endpoints, Host
from modelserver.models.version import ModelVersion


class Extension:
    """On with ``enable_console``."""

    def __init__(self) -> None:
        self._console: LateConsole | None = None
        self._ring: LogRing | None = None

    async def open(self, host: Host) -> None:
        # As the log files.
        folder = Path(os.environ.get("LOG_LOCATION") or "logs")
        ring = self._ring = LogRing(folder if host.settings.log_files else None)
        ring.attach()
        minutes = Minutes(host.registry)

        def prepare(model: ModelVersion) -> None:
            arrivals_of(model, time.monotonic())

        def make(endpoints: Endpoints) -> LateConsole:
            self._console = LateConsole(endpoints, ring, minutes)
            return self._console

        host.mount("management", "/console", make)
        host.prepare(prepare)
        host.run(partial(follow_arrivals, host.registry))
        host.run(minutes.run)
        host.settle(self._settle)

    async def _settle(self, _: float) -> None:
        if self._console is not None:
            self._console.close()

    async def close(self, grace: float) -> None:
        """Keeps no more lines of the log."""
        if self._ring is not None:
            self._ring.detach()
