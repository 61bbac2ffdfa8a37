"""Has what workers need imported while the server itself still is: one after the other would take longer."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

from modelserver.ext.forking.preloading import heavy_imports
from modelserver.ext.forking.spawner import Spawner, can_fork
from modelserver.models.archives.urls import scheme
from modelserver.models.settings.settings import Settings
from modelserver.surface.auth.scopes import Scope
from modelserver.tools.serve.options import ServeOptions, is_of_hub

_LARGEST: Final = 1 << 20  # bytes of a script
# The module that defines `modelserver.Handler`.
_HANDLER: Final = "modelserver_handlers.typed.handler"


class EarlyImports:
    """The spawner that imports, None if workers may not be forked."""

    def __init__(self, options: ServeOptions, settings: Settings) -> None:
        self.spawner: Spawner | None = None
        self._importing: asyncio.Task[None] | None = None
        if settings.worker_start == "auto" and not settings.blacklist_env_vars and can_fork():
            handler, modules = needs_of(options)
            secret = {scope.variable for scope in Scope}
            environment = {name: value for name, value in os.environ.items() if name not in secret}
            self.spawner = Spawner(for_all=not handler and {*modules} <= {_HANDLER})
            self._importing = asyncio.create_task(self.spawner.preload(handler, modules, environment))

    async def close(self) -> None:
        """Ends it; needed only if no server has taken it over."""
        if self._importing is not None:
            self._importing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._importing
        if self.spawner is not None:
            await self.spawner.close()


def needs_of(options: ServeOptions) -> tuple[str, list[str]]:
    """The built-in handler, and the modules, that workers will certainly import."""
    if scheme(options.registration.url or "") == "torchvision":
        return "image_classifier", []
    if is_of_hub(options.registration.url or "", options.file):
        return "modelserver_handlers.huggingface", []
    file = options.file
    if file is None or not file.is_file():
        return "", []
    if file.suffix != ".py":
        return options.handler, []
    with contextlib.suppress(OSError):
        if file.stat().st_size <= _LARGEST:
            source = file.read_text("utf-8", "replace")
            ours = [_HANDLER] if "modelserver" in source and "Handler" in source else []
            return "", [*sorted(heavy_imports(source)), *ours]
    return "", []
