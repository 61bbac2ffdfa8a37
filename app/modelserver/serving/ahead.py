"""Has torch imported while the server itself still is: one after the other would take longer."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Final

from modelserver.archives.urls import scheme
from modelserver.auth.given import VARIABLES
from modelserver.pools.preloading import heavy_imports
from modelserver.pools.spawner import Spawner, can_fork

if TYPE_CHECKING:
    from modelserver.serving.wanted import Wanted
    from modelserver.settings.settings import Settings

_LARGEST: Final = 1 << 20  # bytes of a script


class Ahead:
    """The spawner that imports, None if it is not known that the workers need it."""

    def __init__(self, wanted: Wanted, settings: Settings) -> None:
        self.spawner: Spawner | None = None
        self._importing: asyncio.Task[None] | None = None
        handler, modules = needs_of(wanted)
        if not (handler or modules) or settings.worker_start != "auto" or settings.blacklist_env_vars:
            return
        if can_fork():
            secret = VARIABLES.values()
            environment = {name: value for name, value in os.environ.items() if name not in secret}
            self.spawner = Spawner()
            self._importing = asyncio.create_task(self.spawner.preload(handler, modules, environment))

    async def close(self) -> None:
        """Ends it; needed only if no server has taken it over."""
        if self._importing is not None:
            self._importing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._importing
        if self.spawner is not None:
            await self.spawner.close()


def needs_of(wanted: Wanted) -> tuple[str, list[str]]:
    """The built-in handler, and the packages, that workers will certainly import."""
    if scheme(wanted.registration.url or "") == "torchvision":
        return "image_classifier", []
    file = wanted.file
    if file is None or not file.is_file():
        return "", []
    if file.suffix != ".py":
        return ("base_handler" if wanted.is_model_file else ""), []
    with contextlib.suppress(OSError):
        if file.stat().st_size <= _LARGEST:
            return "", sorted(heavy_imports(file.read_text("utf-8", "replace")))
    return "", []
