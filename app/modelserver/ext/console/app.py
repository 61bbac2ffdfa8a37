"""The application of the management address with the console, which is imported for its first request."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from modelserver.surface.api.services import LateApp
from modelserver.surface.auth.scopes import CONSOLE_PATH

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from modelserver.ext.console.console import Console
    from modelserver.surface.api.services import Role, Services
    from modelserver.surface.http.exchange import HotRoutes


class AppWithConsole(LateApp):
    """As its base, and the console below ``/console``; tries of models go to ``hot``."""

    def __init__(self, roles: set[Role], services: Services, hot: HotRoutes) -> None:
        super().__init__(roles, services)
        self._hot = hot
        self._making: asyncio.Future[Console] | None = None
        self._closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path != CONSOLE_PATH and not path.startswith(f"{CONSOLE_PATH}/"):
            await super().__call__(scope, receive, send)
            return
        if self._making is None:
            self._making = asyncio.ensure_future(asyncio.to_thread(self._made))
        console = await asyncio.shield(self._making)
        if self._closed:
            console.close()
        await console(scope, receive, send)

    def _made(self) -> Console:
        console: Console = import_module("modelserver.ext.console.console").Console(self._services, self._hot)
        return console

    def close(self) -> None:
        super().close()
        self._closed = True
        if self._making is not None and self._making.done():
            self._making.result().close()
