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

# Bytes of a stream that may wait for a departure.
_MOST: Final = 8192
# Bytes of all streams from which they leave in several messages.
_MOST_TOGETHER: Final = 1 << 16
# Seconds between two departures. Engines take longer for a token of all streams; with those that do not, most
# of a token's time would be spent on sending it alone.
_INTERVAL: Final = 0.002


class _Departures:
    """The streams of a loop that have events: one callback sends them all, at the end of the loop's turn.

    After the last one, it waits for the rest of the interval.
    """

    def __init__(self) -> None:
        self._due: deque[EventStream] = deque()
        self._next = 0.0

    def add(self, events: EventStream) -> None:
        if not self._due:
            asyncio.get_running_loop().call_at(self._next, self._send)
        self._due.append(events)

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        self._next = loop.time() + _INTERVAL
        parts, size = list[tuple[Any, bytes]](), 0
        while self._due and size < _MOST_TOGETHER:
            events = self._due.popleft()
            if part := events.take():
                parts.append((events.stream, part))
                size += len(part)
        if self._due:
            loop.call_soon(self._send)
        if parts:
            parts[0][0].send_together(parts)


_departures: WeakKeyDictionary[asyncio.AbstractEventLoop, _Departures] = WeakKeyDictionary()


class EventStream:
    """The events of one request: the first one is sent at once, later ones with those of other requests.

    ``has_sent``: a part was sent, so an error can only be an event.
    """

    def __init__(self, context: Context) -> None:
        context.set_response_content_type(0, EVENTS)
        self.has_sent = False
        self.stream: Any = context._ms_state.stream
        self._buffer = bytearray()
        self._gate: asyncio.Event | None = getattr(self.stream, "gate", None)
        self._loop = loop = asyncio.get_running_loop()
        self._departures = _departures.setdefault(loop, _Departures())

    def write(self, event: bytes) -> None:
        """Sends an event with the next departure, the first one at the end of the loop's turn."""
        if not self._buffer:
            if self.has_sent:
                self._departures.add(self)
            else:
                self._loop.call_soon(self.flush)
        self._buffer += event

    @property
    def is_behind(self) -> bool:
        """Whether the client has not taken most of what was sent, or much waits for a departure."""
        return len(self._buffer) > _MOST or (self._gate is not None and not self._gate.is_set())

    async def drain(self) -> None:
        """Waits while :attr:`is_behind`. Others run meanwhile: the source may never wait for anything."""
        if len(self._buffer) > _MOST:
            self.flush()
            await asyncio.sleep(0)
        if self._gate is not None:
            await self._gate.wait()

    def take(self) -> bytes:
        """The events that wait; whoever takes them sends them, at the end of the stream as its last part."""
        part = bytes(self._buffer)
        self._buffer.clear()
        return part

    def flush(self) -> None:
        """Sends what waits."""
        if not self._buffer:
            return
        try:
            self.stream.send({0: self.take()})
            self.has_sent = True
        except ClientsGone:
            # The call is cancelled as well.
            pass
