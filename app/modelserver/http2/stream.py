"""One request and its answer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from modelserver.http2 import frames
from modelserver.http2.frames import Code

if TYPE_CHECKING:
    from modelserver.http2.connection import Connection


class Stream:
    """Subclasses say what comes of a request: ``begun``, ``received`` and ``gone`` are called for them.

    ``window`` is how many bytes the client takes at the moment, ``unsent`` how many wait for that.
    """

    __slots__ = (
        "_credit",
        "_queue",
        "_room",
        "connection",
        "ended",
        "id",
        "receives",
        "unsent",
        "whole",
        "window",
    )

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.id = number
        self.window = connection.peer_window
        # Bytes that the client may still send, and that we have taken since we last said so.
        self.receives = connection.listener.limits.window
        self._credit = 0
        self._queue: deque[memoryview | bytes] = deque()
        self.unsent = 0
        self._room: asyncio.Event | None = None
        # Whether our side of the stream is closed, and whether the client's is.
        self.ended = self.whole = False

    # -- for subclasses

    def begun(self, head: Any, *, ended: bool) -> None:
        """The head has come, as the listener reads it; ``ended``: without a body."""
        raise NotImplementedError

    def received(self, piece: bytes, *, ended: bool) -> None:
        """A piece of the body has come, which :meth:`take` has to acknowledge."""
        raise NotImplementedError

    def gone(self) -> None:
        """The client has given up, or is gone; nothing can be sent."""
        raise NotImplementedError

    def closing(self) -> None:
        """The server stops: who waits for more from the client need not go on."""

    # -- receiving

    def take(self, size: int) -> None:
        """The client may send as many bytes more."""
        self._credit += size
        if self._credit * 2 >= self.connection.listener.limits.window:
            self.receives += self._credit
            self.connection.write(frames.window_update(self.id, self._credit))
            self._credit = 0

    # -- sending

    def send(self, head: bytes, body: bytes, trailers: bytes | None = None) -> None:
        """Sends header frames, a body, and header fields that end the stream, each if not empty or None."""
        connection = self.connection
        if head:
            head = frames.frame(frames.HEADERS, frames.END_HEADERS, self.id, head)
        size = len(body)
        if not self._queue and size <= connection.sendable and size <= self.window:
            if size:
                self.window -= size
                connection.window -= size
                head += frames.frame(frames.DATA, 0, self.id, body)
            if trailers is not None:
                head += self._last(trailers)
            connection.write(head)
            return
        if head:
            connection.write(head)
        if body:
            self._queue.append(memoryview(body))
            self.unsent += size
        if trailers is not None:
            self._queue.append(trailers)
        connection.wait(self)

    def _last(self, trailers: bytes) -> bytes:
        self.ended = True
        self.connection.forget(self)
        last = frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, self.id, trailers)
        # A client that still sends need not go on.
        return last if self.whole else last + frames.reset(self.id, Code.NO_ERROR)

    def pump(self) -> bool:
        """Sends what may be sent now, one frame at most; whether more could be sent at once."""
        connection = self.connection
        first = self._queue[0]
        if isinstance(first, bytes):
            self._queue.popleft()
            connection.write(self._last(first))
            return False
        size = min(len(first), self.window, connection.sendable)
        if size <= 0:
            return False
        connection.write(frames.frame(frames.DATA, 0, self.id, bytes(first[:size])))
        self.window -= size
        connection.window -= size
        self.unsent -= size
        if size == len(first):
            self._queue.popleft()
        else:
            self._queue[0] = first[size:]
        if self._room is not None and not self.unsent:
            self._room.set()
        return bool(self._queue)

    @property
    def waits(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._queue)

    async def room(self) -> None:
        """Returns when nothing waits to be sent, or nothing can be."""
        if self._room is None:
            self._room = asyncio.Event()
        while self.unsent and not self.ended:
            self._room.clear()
            await self._room.wait()

    def reset(self, code: Code) -> None:
        """Ends the stream at once; what was not sent is dropped."""
        if not self.ended:
            self.connection.write(frames.reset(self.id, code))
            self.lost()

    def lost(self) -> None:
        """Nothing more comes or goes."""
        self.ended = True
        self._queue.clear()
        self.unsent = 0
        self.connection.forget(self)
        if self._room is not None:
            self._room.set()
