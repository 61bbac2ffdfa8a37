"""Events: what has happened, kept and told over the management API."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from modelserver.ext.events.routes import Followers
from modelserver.ext.events.store import EventStore
from modelserver.extension import Host

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


async def extend(host: Host) -> None:
    """Always on: records of the log are looked at when they are logged, and requests log none."""
    # As the log files.
    folder = Path(os.environ.get("LOG_LOCATION") or "logs")
    followers = Followers()
    place = folder if host.settings.log_files else None
    store = EventStore(place, lambda *named: named in host.registry, followers.wake)
    followers.loop = asyncio.get_running_loop()
    models = host.settings.model_store
    folders = [folder, models] if isinstance(models, Path) else [folder]

    async def write() -> None:
        while not followers.closed:
            following = followers.next_event()
            await asyncio.to_thread(store.write)
            await following

    async def settle(_: float) -> None:
        followers.close()

    async def close() -> None:
        """Writes the last ones."""
        followers.close()
        logging.getLogger().removeHandler(store)
        await asyncio.to_thread(store.write)

    logging.getLogger().addHandler(store)
    host.closing.push_async_callback(close)
    await asyncio.to_thread(store.read)
    host.run(write)
    host.run(lambda: watch_disks(folders))
    host.settle(settle)
    host.routes("management", "modelserver.ext.events.routes", store, followers)
