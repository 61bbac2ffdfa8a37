"""Sends the events of an answer while it is generated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from modelserver_handlers.language.responses import EVENTS
from modelserver_handlers.streaming import ClientsGone

if TYPE_CHECKING:
    from modelserver_handlers.context import Context

# Bytes that may wait for the end of the loop's turn.
_MOST: Final = 8192


class EventStream:
    """The events of one request. Those of one turn of the event loop are sent as one part.

    ``has_sent``: a part was sent, so an error can only be an event.
    """

    def __init__(self, context: Context) -> None:
        context.set_response_content_type(0, EVENTS)
        self.has_sent = False
        self._stream: Any = context._ms_state.stream
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        if self._stream is not None:
            # All parts come from the loop, which then writes those of all requests together.
            self._stream.loop = self._loop  # type: ignore[attr-defined]
        self._flushing: asyncio.Handle | None = None

    def write(self, event: bytes) -> None:
        """Sends an event at the end of this turn."""
        self._buffer += event
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    async def breathe(self) -> None:
        """Lets others run if much waits: the source of the events may never wait for anything."""
        if len(self._buffer) > _MOST:
            await asyncio.sleep(0)

    async def drain(self) -> None:
        """Waits while the client has not taken most of what was sent."""
        await self.breathe()
        if (gate := getattr(self._stream, "gate", None)) is not None:
            await gate.wait()

    def close(self) -> bytes:
        """The end of the stream: the events that are not sent, for the last part."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _flush(self) -> None:
        self._flushing = None
        part = bytes(self._buffer)
        self._buffer.clear()
        try:
            self._stream.send({0: part})
            self.has_sent = True
        except ClientsGone:
            # The call is cancelled as well.
            pass
