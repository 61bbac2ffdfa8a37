"""One stream of events for all viewers; without a viewer nothing is collected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Set
from typing import Final, Protocol
from uuid import uuid4

_log = logging.getLogger("modelserver.console")

# Seconds from one event to the next: at least this ...
PAUSE: Final = 0.5
# ... and so long that collecting takes no larger share of a core, up to so many seconds.
SHARE: Final = 0.008
LONGEST: Final = 5.0

_EXPIRED: Final = b"event: expired\ndata: \n\n"


class EventSource(Protocol):
    """Where a broadcast gets its events."""

    async def collect(self, opened: Set[str]) -> tuple[bytes, float]:
        """The changes since the last call, as one event, and the processor seconds that it took to collect
        them. ``opened``: the versions whose pages viewers have open.
        """

    def whole(self) -> bytes:
        """Everything that was collected last, as one event."""

    def forget(self) -> None:
        """The last viewer has left."""


class Broadcast:
    """Sends the events of ``source`` to every viewer."""

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._viewers: dict[str, _Viewer] = {}
        self._task: asyncio.Task[None] | None = None
        self._has_events = False
        self._closed = False

    def open(self, name: str, version: str) -> None:
        """The viewer of this name has the page of this version open; one that is not here any more does not
        matter.
        """
        if (viewer := self._viewers.get(name)) is not None:
            viewer.opened = version

    async def watch(
        self, allowed: Callable[[], bool], name: str = "", opened: str = ""
    ) -> AsyncIterator[bytes]:
        """The events for one viewer: everything, then changes, while it is ``allowed``.

        By its ``name`` it can open another page.

        A viewer that reads too slowly skips changes, and gets everything again.
        """
        viewer = _Viewer(opened)
        name = name or uuid4().hex
        if (older := self._viewers.get(name)) is not None:
            older.is_over = True
            older.ready.set()
        self._viewers[name] = viewer
        if self._has_events:
            viewer.ready.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._produce())
        try:
            while not self._closed:
                await viewer.ready.wait()
                viewer.ready.clear()
                if viewer.is_over or self._closed:
                    return
                if not allowed():
                    yield _EXPIRED
                    return
                event, viewer.event = viewer.event or self._source.whole(), b""
                viewer.is_behind = False
                yield event
        finally:
            # One that came back under its name may be here already.
            if self._viewers.get(name) is viewer:
                del self._viewers[name]

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for viewer in self._viewers.values():
            viewer.ready.set()

    async def _produce(self) -> None:
        try:
            while self._viewers and not self._closed:
                opened = {viewer.opened for viewer in self._viewers.values()}
                event, spent = await self._source.collect(opened)
                self._has_events = True
                for viewer in self._viewers.values():
                    viewer.put(event)
                await asyncio.sleep(max(PAUSE, min(spent / SHARE, LONGEST)))
        except Exception:  # noqa: BLE001 - the streams end, and their viewers come back
            _log.exception("The console's events could not be made")
            for viewer in self._viewers.values():
                viewer.is_over = True
                viewer.ready.set()
        finally:
            self._task, self._has_events = None, False
            self._source.forget()


class _Viewer:
    """``event`` waits to be sent; ``is_behind``: everything will be sent instead; ``is_over``: nothing."""

    def __init__(self, opened: str) -> None:
        self.opened = opened
        self.ready = asyncio.Event()
        self.event = b""
        self.is_behind = True
        self.is_over = False

    def put(self, event: bytes) -> None:
        if self.event:
            self.event, self.is_behind = b"", True
        elif not self.is_behind:
            self.event = event
        self.ready.set()
