"""Events: what has happened, kept and told over the management API."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from modelserver.ext.events.disks import watch_disks
from modelserver.ext.events.followers import Followers
from modelserver.ext.events.store import EventStore

if TYPE_CHECKING:
    from modelserver.extension import Host
    from modelserver.surface.api.application import Application
    from modelserver.surface.api.services import Services


class Extension:
    """Always on: records of the log are looked at when they are logged, and requests log none."""

    def __init__(self) -> None:
        self._followers = Followers()
        self._store: EventStore | None = None

    async def open(self, host: Host) -> None:
        # As the log files.
        folder = Path(os.environ.get("LOG_LOCATION") or "logs")
        place = folder if host.settings.log_files else None
        store = self._store = EventStore(place, host.registry.has, self._followers.wake)
        self._followers.loop = asyncio.get_running_loop()
        logging.getLogger().addHandler(store)
        await asyncio.to_thread(store.read)

        models = host.settings.model_store
        folders = [folder, models] if isinstance(models, Path) else [folder]

        async def write() -> None:
            while not self._followers.closed:
                following = self._followers.next_event()
                await asyncio.to_thread(store.write)
                await following

        def add(app: Application, services: Services) -> None:
            from modelserver.ext.events.routes import add_events  # noqa: PLC0415 - with FastAPI

            add_events(app, store, self._followers, services)

        host.run(write)
        host.run(lambda: watch_disks(folders))
        host.settle(self._settle)
        host.routes("management", add)

    async def _settle(self, _: float) -> None:
        self._followers.close()

    async def close(self, grace: float) -> None:
        """Writes the last ones."""
        self._followers.close()
        if (store := self._store) is not None:
            logging.getLogger().removeHandler(store)
            await asyncio.to_thread(store.write)
