"""A lean client: raw HTTP/1.1 over persistent connections, as a closed loop or at a given rate.

In a closed loop each client sends its next request after its response. At a given rate requests are due at
random times, as from independent clients; each is timed from when it was due, so that a slow server cannot
look better by delaying requests. All responses are awaited, so that one load does not disturb the next.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from modelserver.tuning.figure import Answer, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HOST = "127.0.0.1"
ANSWER_TIMEOUT = 120.0  # seconds after which an answer counts as lost
MOST_CONNECTIONS = 1024
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_TIMING = re.compile(rb"\r\nserver-timing: queue;dur=([\d.]+), inference;dur=([\d.]+)", re.IGNORECASE)
_BATCH = re.compile(rb"\r\nx-batch-id: *([^\r]*)\r\nx-batch-size: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests for ``seconds``, after ``settle`` seconds that do not count.

    Continues for up to ``longest`` seconds until there are ``least`` responses.
    """

    requests: Sequence[bytes]
    port: int
    seconds: float
    settle: float
    least: int = 1
    longest: float = 0.0
    host: str = HOST


def post(path: str, body: bytes, content_type: str) -> bytes:
    """The bytes of a POST. Raises ValueError for an invalid content type."""
    if not content_type.isprintable() or not content_type.isascii():
        raise ValueError(f"{content_type!r} is not a content type")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def closed_loop(load: Load, clients: int) -> Run:
    """``clients`` that each wait for a response before the next request."""
    crowd = _Crowd(load)

    def ask_again(connection: _Connection) -> None:
        if crowd.open:
            connection.ask(time.perf_counter())

    crowd.on_free = ask_again
    for _ in range(clients):
        crowd.connect()
    await crowd.last()
    return crowd.run()


async def at_rate(load: Load, rate: float) -> Run:
    """``rate`` requests per second on average, at exponentially distributed intervals, the same each time."""
    crowd = _Crowd(load)
    idle: list[_Connection] = []
    due: deque[float] = deque()

    def send_next(connection: _Connection) -> None:
        if due:
            connection.ask(due.popleft())
        else:
            idle.append(connection)

    def arrive(moment: float) -> None:
        due.append(moment)
        while idle and due:
            send_next(idle.pop())
        if due and crowd.connections < MOST_CONNECTIONS:
            crowd.connect()

    def forget(connection: _Connection) -> None:
        if connection in idle:
            idle.remove(connection)

    crowd.on_free, crowd.on_lost = send_next, forget
    arrivals = asyncio.get_running_loop().create_task(_arrivals(crowd, rate, arrive))
    try:
        await crowd.last()
    finally:
        arrivals.cancel()
    if due:
        crowd.failures["not sent"] += len(due)
    return crowd.run_of_due()


async def _arrivals(crowd: _Crowd, rate: float, arrive: Callable[[float], None]) -> None:
    chance = random.Random(0)  # noqa: S311 - for load, not for secrets
    moment = time.perf_counter()
    while crowd.open:
        moment += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, moment - time.perf_counter()))
        if crowd.open:
            arrive(moment)


class _Crowd:
    """All connections of a load, and their results."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.bodies: Iterator[bytes] = itertools.cycle(load.requests)
        self.failures: Counter[str] = Counter()
        self.answers: list[Answer] = []
        self.began = time.perf_counter()
        self.open = True
        self.closed = 0.0
        self.connections = 0
        self.waiting: set[_Connection] = set()
        self.on_free: Callable[[_Connection], None] = lambda _: None
        self.on_lost: Callable[[_Connection], None] = lambda _: None
        self._all: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._nothing_waits = asyncio.Event()

    async def last(self) -> None:
        """Returns when the load is over and all requests are answered or lost."""
        load = self.load
        try:
            await asyncio.sleep(load.settle + load.seconds)
            # Polled, as an event would cost time for every response.
            while self._counted() < load.least and self._elapsed() < load.settle + load.longest:  # noqa: ASYNC110
                await asyncio.sleep(load.seconds / 10)
            self.open, self.closed = False, self._elapsed()
            await asyncio.gather(*self._opening)
            if self.waiting:
                await asyncio.wait_for(self._nothing_waits.wait(), ANSWER_TIMEOUT)
        except asyncio.TimeoutError:
            self.failures["no answer"] += len(self.waiting)
        finally:
            self.open = False
            for connection in tuple(self._all):
                connection.close()

    def run(self) -> Run:
        """The run from the last response of the settling time to the last one in time."""
        in_time = [answer for answer in self.answers if answer.ended <= self.closed]
        settled = [answer.ended for answer in in_time if answer.ended <= self.load.settle]
        counted = in_time[len(settled) :]
        began = settled[-1] if settled else 0.0
        return Run(counted, counted[-1].ended - began if counted else 0.0, dict(self.failures))

    def run_of_due(self) -> Run:
        """All requests due in the counted time, whenever they were answered."""
        counted = [a for a in self.answers if self.load.settle < a.ended - a.latency <= self.closed]
        return Run(counted, self.closed - self.load.settle, dict(self.failures))

    def connect(self) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._connect())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        while self.open:
            try:
                await loop.create_connection(lambda: _Connection(self), self.load.host, self.load.port)
            except OSError:  # noqa: PERF203 - the next attempt is the point
                self.failures["connection refused"] += 1
                await asyncio.sleep(0.05)
            else:
                return

    def opened(self, connection: _Connection) -> None:
        self._all.add(connection)
        self.on_free(connection)

    def answered(self, connection: _Connection, head: bytes, status: int) -> None:
        self.waiting.discard(connection)
        now = time.perf_counter()
        if not 200 <= status < 300:
            self.failures[f"status {status}" if status else "unreadable answer"] += 1
        else:
            self.answers.append(_answer(head, now - self.began, now - connection.asked))

    def lost(self, connection: _Connection) -> None:
        self._all.discard(connection)
        self.connections -= 1
        if connection in self.waiting:
            self.waiting.discard(connection)
            self.failures["connection lost"] += 1
        self.on_lost(connection)
        if self.open:
            self.connect()
        self.check_end()

    def check_end(self) -> None:
        """Must be called whenever there may be nothing left to wait for."""
        if not self.open and not self.waiting:
            self._nothing_waits.set()

    def _elapsed(self) -> float:
        return time.perf_counter() - self.began

    def _counted(self) -> int:
        return sum(answer.ended > self.load.settle for answer in self.answers)


def _answer(head: bytes, ended: float, latency: float) -> Answer:
    timing, batch = _TIMING.search(head), _BATCH.search(head)
    return Answer(
        ended,
        latency,
        queue_ms=float(timing[1]) if timing else 0.0,
        inference_ms=float(timing[2]) if timing else 0.0,
        batch=batch[1].decode("latin-1") if batch else "",
        batch_size=int(batch[2]) if batch else 0,
    )


class _Connection(asyncio.Protocol):
    """A persistent connection with one request at a time."""

    def __init__(self, crowd: _Crowd) -> None:
        self.asked = 0.0
        self._crowd = crowd
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def ask(self, due: float) -> None:
        """Sends the next request; its latency counts from ``due``."""
        assert self._transport is not None  # noqa: S101 - free connections are connected
        self._crowd.waiting.add(self)
        self.asked = due
        self._transport.write(next(self._crowd.bodies))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._crowd.opened(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[: end + 2])
        length = _LENGTH.search(head)
        if length is None:
            self._answered(head, 0)
        elif len(self._received) >= end + 4 + int(length[1]):
            self._answered(head, int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.lost(self)

    def _answered(self, head: bytes, status: int) -> None:
        self._received.clear()
        self._crowd.answered(self, head, status)
        if status and _CLOSE.search(head) is None:
            self._crowd.on_free(self)
            self._crowd.check_end()
        else:
            self.close()
