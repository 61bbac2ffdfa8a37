"""Sends recorded requests again, with the gaps they came in or as fast as they are answered.

With gaps, each request is due at its time whether or not earlier ones were answered, and is timed from then:
a slow server cannot look better by delaying requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import httptools

from modelserver.errors import ConfigError
from modelserver.replaying.finding import trusting

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from modelserver.recording.entries import Call

# Of an answer's headers, those that are kept, in the order in which servers send them.
LINES = ("x-batch-id", "x-batch-size", "server-timing")
CUT_OFF = "the connection was closed before the end of the answer"
_LINES = frozenset(name.encode() for name in LINES)


@dataclass(frozen=True, slots=True)
class Answered:
    """``sent``, in seconds since the replay began, and ``seconds`` that the answer took.

    ``lines`` are its header lines about batch and timing; ``fault`` says why there is no answer.
    """

    sent: float
    seconds: float
    status: int = 0
    lines: bytes = b""
    body: bytes = b""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The server to send to; ``prefix`` precedes each path, ``headers`` are added to each request."""

    host: str
    port: int
    prefix: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, url: str, headers: Sequence[tuple[str, str]], ca_file: str | None) -> Place:
        """Raises ConfigError for an unusable URL or file of authorities."""
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise ConfigError(f"--to={url}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ConfigError(f"--to={url}: http://host:port, or https, is needed")
        tls = trusting(ca_file) if parts.scheme == "https" else None
        return cls(parts.hostname, port, parts.path.rstrip("/"), tuple(headers), tls)

    def request(self, call: Call) -> bytes:
        """The bytes of the request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{call.method.decode()} {self.prefix}{call.target} HTTP/1.1", f"host: {host}:{self.port}"]
        given = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in call.headers)
        lines += [f"{name}: {value}" for name, value in (*given, *self.headers)]
        lines += [f"content-length: {len(call.body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1") + call.body


class Sender:
    """Sends requests over at most ``connections`` connections.

    ``patience``: seconds without any answer after which those that are missing count as lost.
    """

    def __init__(self, place: Place, connections: int, patience: float) -> None:
        self._place = place
        self._most = connections
        self._patience = patience
        self._requests: Sequence[bytes] = ()
        self._answers: list[Answered | None] = []
        self._left = 0
        self._due: deque[tuple[int, float]] = deque()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._heard = asyncio.Event()
        self._began = 0.0

    async def send(self, requests: Sequence[bytes], times: Sequence[float] | None) -> list[Answered]:
        """Sends each request at its time, in seconds from now; without times, as fast as possible."""
        self._requests, self._answers, self._left = requests, [None] * len(requests), len(requests)
        self._began = time.perf_counter()
        for index in range(len(requests)):
            moment = 0.0
            if times is not None:
                moment = self._began + times[index]
                # Also where it is late already, so that answers are read.
                await asyncio.sleep(max(0.0, moment - time.perf_counter()))
            self._due.append((index, moment))
            if times is not None:
                self._pump()
        self._pump()
        while self._left:
            self._heard.clear()
            try:
                await asyncio.wait_for(self._heard.wait(), self._patience)
            except asyncio.TimeoutError:
                break
        return self._end()

    def _end(self) -> list[Answered]:
        for task in self._opening:
            task.cancel()
        for connection in tuple(self._open):
            connection.close()
        lost = Answered(0.0, 0.0, fault=f"no answer within {self._patience:g} s")
        return [answer or lost for answer in self._answers]

    def _pump(self) -> None:
        while self._due and self._idle:
            self._idle.pop().ask(*self._due.popleft())
        for _ in range(min(len(self._due) - len(self._opening), self._most - len(self._open))):
            if len(self._open) + len(self._opening) >= self._most:
                break
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        place = self._place
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self), place.host, place.port, ssl=place.tls
            )
        except OSError as error:
            if self._due:
                index, _ = self._due.popleft()
                self.answered(
                    index, Answered(self.now(), 0.0, fault=f"cannot connect: {error.strerror or error}")
                )
            self._opening.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            self._pump()

    def now(self) -> float:
        """Seconds since the replay began."""
        return time.perf_counter() - self._began

    def bytes_of(self, index: int) -> bytes:
        """The request."""
        return self._requests[index]

    def made(self, connection: _Connection) -> None:
        """It is open."""
        self._open.add(connection)
        self.free(connection)

    def free(self, connection: _Connection) -> None:
        """It can take another request."""
        if self._due:
            connection.ask(*self._due.popleft())
        else:
            self._idle.append(connection)

    def gone(self, connection: _Connection) -> None:
        """It is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._pump()

    def again(self, index: int, moment: float) -> None:
        """The server closed the connection, which it had kept, before it got the request."""
        self._due.appendleft((index, moment))

    def answered(self, index: int, answer: Answered) -> None:
        """One request less to wait for."""
        if self._answers[index] is None:
            self._answers[index] = answer
            self._left -= 1
            self._heard.set()


class _Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._index = -1
        self._moment = self._sent = 0.0
        self._served = 0
        self._status = 0
        self._lines: list[bytes] = []
        self._body: list[bytes] = []

    def ask(self, index: int, moment: float) -> None:
        """Sends the request, which was due at ``moment``; 0: now."""
        assert self._transport is not None  # noqa: S101 - free connections are connected
        self._index, self._moment, self._sent = index, moment, moment or time.perf_counter()
        self._status, self._lines, self._body = 0, [], []
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(self._sender.bytes_of(index))

    def close(self) -> None:
        """Ends it."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._sender.made(self)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._answer(f"unreadable answer: {error}")
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if name.lower() in _LINES:
            self._lines.append(name.lower() + b": " + value + b"\r\n")

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        assert self._parser is not None  # noqa: S101 - it calls
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        assert self._parser is not None  # noqa: S101 - it calls
        if self._status < 200:
            # An interim answer; the real one follows.
            self._parser = httptools.HttpResponseParser(self)
            return
        keeps = self._parser.should_keep_alive()
        self._served += 1
        self._answer("")
        if keeps:
            self._sender.free(self)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._parser is not None:
            if self._served and not self._status:
                self._sender.again(self._index, self._moment)
                self._parser = None
            else:
                self._answer(CUT_OFF)
        self._sender.gone(self)

    def _answer(self, fault: str) -> None:
        sender, self._parser = self._sender, None
        seconds = time.perf_counter() - self._sent
        sent = sender.now() - seconds
        lines, body = b"".join(self._lines), b"".join(self._body)
        sender.answered(
            self._index, Answered(sent, seconds, 0 if fault else self._status, lines, body, fault)
        )
