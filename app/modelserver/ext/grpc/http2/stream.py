"""One request and its answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from modelserver.ext.grpc.http2 import frames
from modelserver.ext.grpc.http2.frames import Code

# A client that reads so many bytes per second has not stalled. Its buffers may hold so many, which we do not
# see it read.
_SLOWEST = 64 << 10
_BUFFERED = 8 << 20
# The share of what waits that a client must take in its time, and the least bytes of it.
_SHARE, _LEAST = 10, 4096


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """The limits of a connection. Sizes are in bytes, times in seconds.

    ``age``: it takes no new streams from then on, and ends with its last one, ``age_grace`` later at most.
    """

    streams: int = 4096
    fields: int = 64 << 10
    window: int = 1 << 20
    connection_window: int = 16 << 20
    frame: int = 256 << 10
    receive_timeout: float = 60.0
    send_timeout: float = 60.0
    age: float | None = None
    age_grace: float | None = None


class StreamCarrier(Protocol):
    """The part of a connection that its streams use.

    ``peer`` is the client's address: `127.0.0.1:5000`. ``window`` is how many bytes the client takes over all
    streams, ``peer_window`` over a new one. ``count`` gets the bytes that a stream holds.
    """

    limits: Http2Limits
    count: Callable[[Any, int], None]
    now: Callable[[], float]
    peer: str
    window: int
    peer_window: int

    @property
    def sendable(self) -> int:
        """Bytes that a frame may have now."""

    def write(self, data: bytes | memoryview) -> None:
        """Sends frames, together with all others of this turn of the loop."""

    def progressed(self) -> None:
        """Notes that data is sent: the client may respond with frames (such as pings) that carry no data."""

    def wait(self, stream: Http2Stream) -> None:
        """The stream sends what waits as soon as there is room."""

    def forget(self, stream: Http2Stream) -> None:
        """The stream has ended on our side."""


class Http2Stream:
    """Subclasses say what comes of a request: they have the methods whose names begin with ``on_``.

    ``window`` is how many bytes the client takes at the moment, ``unsent`` how many wait for that.
    ``length`` is how many bytes of the body the client must still send, None if its head does not say.
    """

    __slots__ = (
        "_behind",
        "_credit",
        "_due",
        "_moved",
        "_queue",
        "_queued",
        "_room",
        "_sent",
        "_trailers",
        "connection",
        "ended",
        "id",
        "length",
        "receives",
        "unsent",
        "whole",
        "window",
    )

    def __init__(self, connection: StreamCarrier, number: int) -> None:
        self.connection = connection
        self.id = number
        self.window = connection.peer_window
        # receives: bytes that the client may still send; _credit: bytes taken since the last WINDOW_UPDATE.
        self.receives = connection.limits.window
        self._credit = 0
        # Unsent pieces of the body, then the trailers; when the client last made progress, how much was sent
        # in all, and how much will have been sent when the client makes progress again.
        self._queue: deque[memoryview] = deque()
        self._trailers: bytes | None = None
        self._moved = 0.0
        self._sent = self._due = 0
        # Bytes in memory: of the queue since it was last empty, as pieces are freed whole, and behind it.
        self._queued = self._behind = 0
        self.unsent = 0
        self._room: asyncio.Event | None = None
        # Whether our side of the stream is closed, and whether the client's is.
        self.ended = self.whole = False
        self.length: int | None = None

    # -- for subclasses

    def on_head(self, head: Any, *, ended: bool) -> None:
        """The head has come, as the listener reads it; ``ended``: without a body."""
        raise NotImplementedError

    def on_data(self, piece: bytes, *, ended: bool) -> None:
        """A piece of the body has come, which :meth:`take` has to acknowledge."""
        raise NotImplementedError

    def on_end(self) -> None:
        """The client has given up, or is gone; nothing can be sent."""
        raise NotImplementedError

    def on_shutdown(self) -> None:
        """The server stops: who waits for more from the client need not go on."""

    # -- receiving

    def take(self, size: int) -> None:
        """The client may send as many bytes more."""
        self._credit += size
        if self._credit * 2 >= self.connection.limits.window:
            self.receives += self._credit
            self.connection.write(frames.window_update(self.id, self._credit))
            self._credit = 0

    # -- sending

    def send(self, head: bytes, body: bytes, trailers: bytes | None = None) -> None:
        """Sends header fields, a body, and header fields that end the stream, each if not empty or None."""
        if self.ended:
            return
        connection, size = self.connection, len(body)
        if head:
            head = frames.frame(frames.HEADERS, frames.END_HEADERS, self.id, head)
        if not self._queue and (not size or size <= min(connection.sendable, self.window)):
            if size:
                connection.progressed()
                self.window -= size
                connection.window -= size
                head += frames.frame(frames.DATA, 0, self.id, body)
            if trailers is not None:
                head += self._last(trailers)
            connection.write(head)
            return
        if head:
            connection.write(head)
        is_first = not self._queue
        if body:
            self._queue.append(memoryview(body))
            self.unsent += size
            self._queued += size
            self.hold(0)
        if is_first:
            self._progressed()
        self._trailers = trailers
        connection.wait(self)

    def _last(self, trailers: bytes) -> bytes:
        self.ended = True
        if self._behind:
            self.hold(0)
        self.connection.forget(self)
        last = frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, self.id, trailers)
        # A client that still sends its request can stop.
        return last if self.whole else last + frames.reset(self.id, Code.NO_ERROR)

    @property
    def is_ready(self) -> bool:
        """Whether something waits, and the client takes it."""
        return bool(self._queue) and self.window > 0

    def pump(self) -> None:
        """Sends a frame of what waits, and the trailers if nothing is left; to be called if it is ready and
        its connection can send.
        """
        connection, first = self.connection, self._queue.popleft()
        connection.progressed()
        size = min(len(first), self.window, connection.sendable)
        connection.write(frames.head(frames.DATA, 0, self.id, size))
        connection.write(first[:size])
        self.window -= size
        connection.window -= size
        self.unsent -= size
        self._sent += size
        if self._sent >= self._due:
            self._progressed()
        if size < len(first):
            self._queue.appendleft(first[size:])
        elif not self._queue:
            self._queued = 0
            self.hold(0)
            if self._trailers is not None:
                connection.write(self._last(self._trailers))
        if self._room is not None and not self.unsent:
            self._room.set()

    def _progressed(self) -> None:
        """Restarts the client's time limit: it must take a share of the unsent bytes before that ends."""
        self._moved = self.connection.now()
        self._due = self._sent + max(_LEAST, self.unsent // _SHARE)

    def hold(self, size: int) -> None:
        """So many bytes more, or less, wait behind what is being sent."""
        self._behind += size
        self.connection.count(self, 0 if self.ended else self._queued + self._behind)

    async def room(self) -> None:
        """Returns when nothing waits to be sent, or nothing can be."""
        if not self.unsent:
            return
        if self._room is None:
            self._room = asyncio.Event()
        while self.unsent and not self.ended:
            self._room.clear()
            await self._room.wait()

    # -- the end

    def check(self, now: float) -> None:
        """Ends the stream if its client takes too little of what waits."""
        if self._queue and now - self._moved > self._patience():
            self.cut()

    def waited(self) -> float:
        """Seconds since the client last took a share of what waits."""
        return self.connection.now() - self._moved if self._queue else 0.0

    def cut(self) -> None:
        """Ends the stream, whose client takes too little of what waits."""
        self.fail(Code.ENHANCE_YOUR_CALM)

    def _patience(self) -> float:
        """The time that a client may take to read what was sent, in seconds."""
        return self.connection.limits.send_timeout + min(self._sent, _BUFFERED) / _SLOWEST

    def fail(self, code: Code) -> None:
        """Ends the stream at once with an error, as if the client had given it up."""
        if self.ended:
            self.on_end()
        else:
            self.connection.write(frames.reset(self.id, code))
            self.end()

    def end(self) -> None:
        """Nothing more comes or goes; what was not sent is dropped."""
        self.ended = True
        self._queue.clear()
        self.unsent = 0
        self.hold(0)
        self.connection.forget(self)
        if self._room is not None:
            self._room.set()
        self.on_end()
