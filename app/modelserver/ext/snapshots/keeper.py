"""Saves the registered models to disk while the server runs."""

from __future__ import annotations

import asyncio
import logging

from modelserver.ext.snapshots.document import registry_document
from modelserver.ext.snapshots.files import Kind, SnapshotFolder
from modelserver.models.registry import Registry

_log = logging.getLogger("modelserver.models")


class StateKeeper:
    """Writes snapshots of ``registry`` on request; failed writes are logged (F56)."""

    def __init__(self, registry: Registry, folder: SnapshotFolder) -> None:
        self._registry = registry
        self._folder = folder
        self._lock = asyncio.Lock()
        self._requested = 0
        self._written = 0

    async def start(self) -> None:
        """Writes the first snapshot, and from now on one for each change."""
        await self.write("startup")
        self._registry.on_change = self.changed

    async def end(self) -> None:
        """Writes the last one: models that end from here on are still registered."""
        self._registry.on_change = None
        await self.write("shutdown")

    async def changed(self) -> None:
        """Returns once a snapshot with the last change is on disk; concurrent changes share one."""
        await self.write("snapshot", shared=True)

    async def write(self, kind: Kind, *, shared: bool = False) -> None:
        """Writes a snapshot of this kind; a ``shared`` one is skipped if a later one has been written."""
        self._requested += 1
        number = self._requested
        async with self._lock:
            if shared and self._written >= number:
                return
            current = self._requested
            document = registry_document(self._registry)
            try:
                path = await asyncio.to_thread(self._folder.write, kind, document)
            except OSError as error:
                _log.error("Cannot write the snapshot, keeping the last one: %s", error)
                return
            self._written = current
            _log.debug("Snapshot %s written", path)
