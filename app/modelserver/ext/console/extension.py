"""The console: a page that shows models, their load and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelserver.ext.console.late import LateConsole
from modelserver.surface.auth.scopes import CONSOLE_PATH

if TYPE_CHECKING:
    from modelserver.extension import Endpoints, Host


class Extension:
    """On with ``enable_console``."""

    def __init__(self) -> None:
        self._console: LateConsole | None = None

    async def open(self, host: Host) -> None:
        host.mount("management", CONSOLE_PATH, self._make)
        host.settle(self._settle)

    def _make(self, endpoints: Endpoints) -> LateConsole:
        self._console = LateConsole(endpoints)
        return self._console

    async def _settle(self, _: float) -> None:
        if self._console is not None:
            self._console.close()

    async def close(self, grace: float) -> None:
        """Nothing is open."""
