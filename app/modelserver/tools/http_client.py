"""Sends requests to one server by HTTP/1.1: over kept connections, with one request at a time on each.

A request is sent as soon as there is a free connection, and timed from when it was due: a slow server cannot
look better by delaying requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import httptools

if TYPE_CHECKING:
    import ssl

# Of an answer's headers, those that are kept, in the order in which servers send them.
LINES = ("x-batch-id", "x-batch-size", "server-timing")
CUT_OFF = "the connection was closed before the end of the answer"
_LINES = frozenset(name.encode() for name in LINES)


class TimedResponse(NamedTuple):
    """``sent``, or due, in seconds since the requester was made, and ``seconds`` that the answer took.

    ``lines`` are its header lines about batch and timing; ``fault`` says why there is no answer.
    """

    sent: float
    seconds: float
    status: int = 0
    lines: bytes = b""
    body: bytes = b""
    fault: str = ""


class Requester:
    """Has at most ``most`` connections; ``on_answer`` is called with each request's number and its answer."""

    def __init__(
        self,
        host: str,
        port: int,
        most: int,
        on_answer: Callable[[int, TimedResponse], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.began = time.perf_counter()
        # Requests without an answer.
        self.pending = 0
        self._address = host, port
        self._tls = tls
        self._most = most
        self._on_answer = on_answer
        self._due: deque[tuple[int, bytes, float]] = deque()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()

    def send(self, number: int, request: bytes, due: float = 0.0) -> None:
        """Sends the bytes of a request that is ``due`` at a time of ``perf_counter``; 0: when it is sent."""
        self.pending += 1
        self._due.append((number, request, due))
        if self._idle or len(self._open) < self._most:
            self._pump()

    async def drain(self, patience: float) -> None:
        """Waits until all is answered, or nothing was for ``patience`` seconds."""
        while self.pending:
            self._progress.clear()
            try:
                await asyncio.wait_for(self._progress.wait(), patience)
            except asyncio.TimeoutError:
                return

    def close(self) -> None:
        """Closes the connections; what is pending gets no answer."""
        self._due.clear()
        for task in self._opening:
            task.cancel()
        for connection in tuple(self._open):
            connection.close()

    def _pump(self) -> None:
        while self._due and self._idle:
            self._idle.pop().send(*self._due.popleft())
        opening = len(self._opening)
        for _ in range(min(len(self._due), self._most - len(self._open)) - opening):
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._connected)

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self), *self._address, ssl=self._tls
            )
        except (OSError, UnicodeError) as error:  # UnicodeError: of a host name that is none
            if self._due:
                number, _, _ = self._due.popleft()
                now = time.perf_counter() - self.began
                why = getattr(error, "strerror", None) or error
                self.answered(number, TimedResponse(now, 0.0, fault=f"cannot connect: {why}"))

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._pump()

    # -- events of connections

    def free(self, connection: _Connection) -> None:
        """It can take another request."""
        self._open.add(connection)
        if self._due:
            connection.send(*self._due.popleft())
        else:
            self._idle.append(connection)

    def closed(self, connection: _Connection) -> None:
        """It is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._pump()

    def retry(self, number: int, request: bytes, due: float) -> None:
        """The server closed the connection, which it had kept, before it got the request."""
        self._due.appendleft((number, request, due))

    def answered(self, number: int, answer: TimedResponse) -> None:
        """One request less to wait for."""
        self.pending -= 1
        self._progress.set()
        self._on_answer(number, answer)


class _Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._request: tuple[int, bytes, float] | None = None
        self._sent = 0.0
        self._served = 0
        self._status = 0
        self._lines: list[bytes] = []
        self._body: list[bytes] = []

    def send(self, number: int, request: bytes, due: float) -> None:
        """Sends the request."""
        assert self._transport is not None  # noqa: S101 - free connections are connected
        self._request = number, request, due
        self._sent = due or time.perf_counter()
        self._status, self._lines, self._body = 0, [], []
        self._transport.write(request)

    def close(self) -> None:
        """Ends it; a request that it has gets no answer."""
        self._request = None
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._requester.free(self)

    def data_received(self, data: bytes) -> None:
        if self._request is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._answer(f"unreadable answer: {error}")
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        name = name.lower()
        if name in _LINES:
            self._lines.append(name + b": " + value + b"\r\n")

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._status = self._parser.get_status_code()
        if self._status >= 200 and self._request is not None and self._request[1].startswith(b"HEAD "):
            # There is no body, whatever its length is said to be, but the parser waits for one.
            self._answer("")
            self.close()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self._status < 200 or self._request is None:
            # An interim answer, which the real one follows; or there was one before the end.
            return
        self._served += 1
        self._answer("")
        if self._parser.should_keep_alive():
            self._requester.free(self)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._request is not None:
            if self._served and not self._status:
                self._requester.retry(*self._request)
            else:
                self._answer(CUT_OFF)
        self._requester.closed(self)

    def _answer(self, fault: str) -> None:
        if self._request is None:
            return
        requester, sent, number, self._request = self._requester, self._sent, self._request[0], None
        seconds = time.perf_counter() - sent
        status, lines, body = 0 if fault else self._status, b"".join(self._lines), b"".join(self._body)
        requester.answered(number, TimedResponse(sent - requester.began, seconds, status, lines, body, fault))
