"""Sends a model's files to an agent that asked for them, on a connection of their own."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from modelserver.ext.cluster.packing import PackingFailed

if TYPE_CHECKING:
    from modelserver.ext.cluster.packing import Packed

_log = logging.getLogger("modelserver.workers")


class ArchiveSender(asyncio.Protocol):
    """Sends the stream from ``offset`` to its end, as fast as it is taken, and closes the connection."""

    def __init__(self, packed: Packed, offset: int) -> None:
        self._packed = packed
        self._offset = offset
        self._room = asyncio.Event()
        self._room.set()
        self._sending: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._sending = asyncio.create_task(self._send(cast("asyncio.Transport", transport)))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sending is not None:
            self._sending.cancel()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def _send(self, transport: asyncio.Transport) -> None:
        try:
            async for piece in self._packed.read(self._offset):
                transport.write(piece)
                await self._room.wait()
        except PackingFailed as error:
            # The agent notices that bytes are missing.
            _log.error("%s", error)
        transport.close()
