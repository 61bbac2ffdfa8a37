"""The console: a page that shows models, their load and workers."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.ext.console.arrivals import arrivals_of, follow_arrivals
from modelserver.ext.console.logs.ring import LogRing
from modelserver.ext.console.minutes import Minutes
from modelserver.extension import Endpoints, Host
from modelserver.models.version import ModelVersion

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from modelserver.ext.console.console import Console


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


class LateConsole:
    """Everything below ``/console``, imported for its first request; nobody watches tries of models."""

    def __init__(self, endpoints: Endpoints, ring: LogRing, minutes: Minutes) -> None:
        self._endpoints = endpoints
        self._ring = ring
        self._minutes = minutes
        self._making: asyncio.Future[Console] | None = None
        self._closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._making is None:
            self._making = asyncio.ensure_future(asyncio.to_thread(self._made))
        console = await asyncio.shield(self._making)
        if self._closed:
            console.close()
        await console(scope, receive, send)

    def _made(self) -> Console:
        module = import_module("modelserver.ext.console.console")
        console: Console = module.Console(self._endpoints, self._ring, self._minutes)
        return console

    async def settle(self, _: float) -> None:
        """Ends its streams, which would not end by themselves."""
        self._closed = True
        if self._making is not None and self._making.done():
            self._making.result().close()
