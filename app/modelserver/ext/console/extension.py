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


async def extend(host: Host) -> None:
    """On with ``enable_console``."""
    # As the log files.
    folder = Path(os.environ.get("LOG_LOCATION") or "logs")
    ring, minutes = LogRing(folder if host.settings.log_files else None), Minutes(host.registry)
    ring.attach()
    host.closing.callback(ring.detach)

    def make(endpoints: Endpoints) -> LateConsole:
        console = LateConsole(endpoints, ring, minutes)
        host.settle(console.settle)
        return console

    def prepare(model: ModelVersion) -> None:
        arrivals_of(model, time.monotonic())

    host.mount("management", "/console", make)
    host.prepare(prepare)
    host.run(partial(follow_arrivals, host.registry))
    host.run(minutes.run)
