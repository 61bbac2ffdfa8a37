"""Warns of disks that are nearly full: logs, snapshots and archives need room."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_log = logging.getLogger("modelserver.events")

# Percent, as the alert has it; seconds between looks, and between warnings.
FULL: Final = 90.0
LOOKS: Final = 60.0
REMIND: Final = 3600.0


class Disks:
    """Those of these folders."""

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
