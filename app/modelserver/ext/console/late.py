"""The console's application, which is imported for its first request."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from modelserver.ext.console.logs.ring import LogRing
from modelserver.ext.console.minutes import Minutes
from modelserver.extension import Endpoints

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from modelserver.ext.console.console import Console


class LateConsole:
    """Everything below ``/console``; tries of models go to the routes that nobody watches."""

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
