"""A client whose requests leave at given times, whether or not earlier ones were answered."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import uvloop

from benchmarks.load import ANSWER_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SIZE = re.compile(rb"\r\nx-batch-size: *(\d+)", re.IGNORECASE)
_TIMES = re.compile(rb"\bqueue;dur=([0-9.]+), *inference;dur=([0-9.]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """One request, in seconds: when it left since the start, how long it took, and of that in the queue and,
    with all ``size`` of its batch, in the handler. ``number`` counts the requests from 0, ``content`` is the
    answer's body. What the answer does not tell is 0 for the size and NaN for seconds.
    """

    sent: float
    latency: float
    size: int
    queue: float
    handler: float
    number: int = 0
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Seen:
    """All answers of 2xx, the failures by reason, and the seconds by which requests left late.

    ``began`` is the start, by ``time.perf_counter``.
    """

    answers: list[Answer]
    failures: dict[str, int]
    lateness: list[float]
    began: float = 0.0


def run_open_loop(  # noqa: PLR0917 - an address and what is sent there
    host: str,
    port: int,
    path: str,
    times: Sequence[float],
    bodies: Sequence[bytes] = (b"x",),
    connections: int = 64,
) -> Seen:
    """POST to ``path`` at each of the ascending ``times``, in seconds; returns when all are answered.

    The requests take their ``bodies`` in turn. ``connections`` are opened before; more are made when all of
    them wait for an answer.
    """
    return uvloop.run(_Client(host, port, path, bodies).run(times, connections))


class _Client:
    def __init__(self, host: str, port: int, path: str, bodies: Sequence[bytes]) -> None:
        self.host, self.port = host, port
        head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/octet-stream\r\n"
        self.requests = [b"%sContent-Length: %d\r\n\r\n%s" % (head.encode(), len(b), b) for b in bodies]
        self.idle: list[_Connection] = []
        self.answers: list[Answer] = []
        self.failures: Counter[str] = Counter()
        self.lateness: list[float] = []
        self.began = 0.0
        self.open = 0
        self.all_answered = asyncio.Event()
        self.connections: set[_Connection] = set()
        self.all_closed = asyncio.Event()

    async def run(self, times: Sequence[float], connections: int) -> Seen:
        await asyncio.gather(*(self._connect() for _ in range(connections)))
        self.began = time.perf_counter() + 0.05
        for number, at in enumerate(times):
            await asyncio.sleep(max(0.0, self.began + at - time.perf_counter()))
            self.lateness.append(max(0.0, time.perf_counter() - self.began - at))
            self.open += 1
            self.all_answered.clear()
            await self._send(number)
        try:
            if self.open:
                await asyncio.wait_for(self.all_answered.wait(), ANSWER_TIMEOUT)
        except asyncio.TimeoutError:
            self.failures["timeout"] += self.open
        await self._hang_up()
        return Seen(self.answers, dict(self.failures), self.lateness, self.began)

    async def _hang_up(self) -> None:
        for connection in list(self.connections):
            connection.close()
        if self.connections:
            self.all_closed.clear()
            await asyncio.wait_for(self.all_closed.wait(), ANSWER_TIMEOUT)

    async def _send(self, number: int) -> None:
        if not self.idle:
            await self._connect()
        if self.idle:
            self.idle.pop().ask(number)
        else:
            self.ended("connect")

    async def _connect(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(lambda: _Connection(self), self.host, self.port)
        except OSError:
            return
        self.idle.append(connection)

    def ended(self, failure: str = "") -> None:
        if failure:
            self.failures[failure] += 1
        self.open -= 1
        if not self.open:
            self.all_answered.set()


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, client: _Client) -> None:
        self.client = client
        self.asked = 0.0
        self.number = 0
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.client.connections.add(self)

    def ask(self, number: int) -> None:
        assert self._transport is not None
        self.number, self.asked = number, time.perf_counter()
        self._transport.write(self.client.requests[number % len(self.client.requests)])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end])
        length = _LENGTH.search(head)
        if length is None or len(self._received) < end + 4 + int(length[1]):
            return
        now, asked = time.perf_counter(), self.asked
        content = bytes(self._received[end + 4 :])
        self._received.clear()
        self.asked = 0.0
        size, times = _SIZE.search(head), _TIMES.search(head)
        if head[9:10] == b"2":
            queue, handler = (float(each) / 1e3 for each in times.groups()) if times else (math.nan, math.nan)
            sent = asked - self.client.began
            rows = int(size[1]) if size else 0
            answer = Answer(sent, now - asked, rows, queue, handler, self.number, content)
            self.client.answers.append(answer)
            self.client.ended()
        else:
            self.client.ended(f"status {head[9:12].decode()}")
        self.client.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.client.idle:
            self.client.idle.remove(self)
        if self.asked:
            self.asked = 0.0
            self.client.ended("read")
        self.client.connections.discard(self)
        if not self.client.connections:
            self.client.all_closed.set()
