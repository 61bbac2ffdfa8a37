"""Sends the events of an answer while it is generated."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from modelserver_handlers.language.responses import EVENTS
from modelserver_handlers.streaming import ClientsGone

if TYPE_CHECKING:
    from modelserver_handlers.context import Context

# Bytes that may wait for the end of the loop's turn.
_MOST: Final = 8192


class _Turn:
    """The streams of a loop that have events for the end of its turn: one callback sends them all."""

    def __init__(self) -> None:
        self._due: deque[EventStream] = deque()

    def add(self, events: EventStream) -> None:
        if not self._due:
            asyncio.get_running_loop().call_soon(self._send)
        self._due.append(events)

    def _send(self) -> None:
        try:
            while self._due:
                self._due.popleft().flush()
        finally:
            # One that fails does not hold the others.
            if self._due:
                asyncio.get_running_loop().call_soon(self._send)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = WeakKeyDictionary()


class EventStream:
    """The events of one request. Those of one turn of the event loop are sent as one part.

    ``has_sent``: a part was sent, so an error can only be an event.
    """

    def __init__(self, context: Context) -> None:
        context.set_response_content_type(0, EVENTS)
        self.has_sent = False
        self._stream: Any = context._ms_state.stream
        self._buffer = bytearray()
        loop = asyncio.get_running_loop()
        if self._stream is not None:
            # All parts come from the loop, which then writes those of all requests together.
            self._stream.loop = loop  # type: ignore[attr-defined]
        self._gate: asyncio.Event | None = getattr(self._stream, "gate", None)
        self._turn = _turns.setdefault(loop, _Turn())

    def write(self, event: bytes) -> None:
        """Sends an event at the end of this turn."""
        if not self._buffer:
            self._turn.add(self)
        self._buffer += event

    @property
    def is_behind(self) -> bool:
        """Whether the client has not taken most of what was sent, or much waits for the end of the turn."""
        return len(self._buffer) > _MOST or (self._gate is not None and not self._gate.is_set())

    async def drain(self) -> None:
        """Waits while :attr:`is_behind`. Others run meanwhile: the source may never wait for anything."""
        if len(self._buffer) > _MOST:
            await asyncio.sleep(0)
        if self._gate is not None:
            await self._gate.wait()

    def close(self) -> bytes:
        """The end of the stream: the events that are not sent, for the last part."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def flush(self) -> None:
        """Sends what waits. The turn calls this."""
        if not self._buffer:
            return
        part = bytes(self._buffer)
        self._buffer.clear()
        try:
            self._stream.send({0: part})
            self.has_sent = True
        except ClientsGone:
            # The call is cancelled as well.
            pass
