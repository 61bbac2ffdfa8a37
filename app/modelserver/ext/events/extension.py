"""Events: what has happened, kept and told over the management API."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modelserver.ext.events.routes import Followers
from modelserver.ext.events.store import EventStore
from modelserver.extension import Host
from modelserver.surface.api.services import Services

if TYPE_CHECKING:
    from modelserver.surface.api.application import Application

# Warns of disks that are nearly full: logs, snapshots and archives need room.

_log = logging.getLogger("modelserver.events")

# Percent, as the alert has it; seconds between looks, and between warnings.
FULL: Final = 90.0
LOOKS: Final = 60.0
REMIND: Final = 3600.0


class Disks:
    """The disks of some folders."""

    def __init__(
        self,
        folders: Iterable[Path],
        usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = tuple(folders)
        self._usage = usage
        self._clock = clock
        self._warned: dict[Path, float] = {}

    def look(self) -> None:
        """Warns of each that is too full, again after an hour."""
        now = self._clock()
        for folder in self._folders:
            try:
                total, used, _ = self._usage(folder)
            except OSError:
                continue  # it may be created later
            percent = 100 * used / total if total else 0.0
            if percent <= FULL:
                self._warned.pop(folder, None)
            elif now - self._warned.get(folder, -REMIND) >= REMIND:
                self._warned[folder] = now
                _log.warning("The disk of %s is full to %.0f %%", folder.absolute(), percent)


async def watch_disks(folders: Iterable[Path]) -> None:
    """Looks now and then, for ever, in a thread: a disk may hang."""
    disks = Disks(folders)
    while True:
        await asyncio.to_thread(disks.look)
        await asyncio.sleep(LOOKS)


class Extension:
    """Always on: records of the log are looked at when they are logged, and requests log none."""

    def __init__(self) -> None:
        self._followers = Followers()
        self._store: EventStore | None = None

    async def open(self, host: Host) -> None:
        # As the log files.
        folder = Path(os.environ.get("LOG_LOCATION") or "logs")
        place = folder if host.settings.log_files else None
        store = self._store = EventStore(place, lambda *named: named in host.registry, self._followers.wake)
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
