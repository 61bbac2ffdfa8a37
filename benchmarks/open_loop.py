"""A client whose requests leave at given times, whether or not earlier ones were answered."""

from __future__ import annotations

import asyncio
import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvloop

from benchmarks.load import Connection, Crowd, Load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

_QUEUE = re.compile(rb"\bqueue;dur=([0-9.]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """One request, in seconds: when it left since the start, how long it took, and how long of that it was in
    the queue: NaN where the answer does not say. ``number`` counts the requests from 0, ``content`` is the
    answer's body.
    """

    sent: float
    latency: float
    queue: float
    number: int = 0
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Seen:
    """All answers of 2xx, and the failures by reason. ``began`` is the start, by ``time.perf_counter``."""

    answers: list[Answer]
    failures: dict[str, int]
    began: float = 0.0


def poisson(rate: float, seconds: float, chance: Random) -> list[float]:
    """Ascending times below ``seconds``, ``rate`` per second, each independent of all others."""
    times: list[float] = []
    at = chance.expovariate(rate)
    while at < seconds:
        times.append(at)
        at += chance.expovariate(rate)
    return times


def run_open_loop(load: Load, times: Sequence[float], bodies: Sequence[bytes]) -> Seen:
    """POST at each of the ascending ``times``, in seconds; returns when all are answered.

    The requests take their ``bodies`` in turn. The connections of ``load`` are opened before; more are made
    when all of them wait for an answer.
    """
    loop = OpenLoop(load, bodies)
    uvloop.run(loop.send(times))
    return Seen(loop.seen, dict(loop.failures), loop.began)


class OpenLoop(Crowd):
    """Connections that send when a request arrives."""

    def __init__(self, load: Load, bodies: Sequence[bytes]) -> None:
        super().__init__(load, bodies)
        self.seen: list[Answer] = []
        self._idle: asyncio.Queue[Connection] = asyncio.Queue()

    async def send(self, times: Sequence[float]) -> None:
        """All requests; returns when they are answered or lost."""
        self.open = True
        for _ in range(self.load.connections):
            self.connect()
        await asyncio.gather(*self._opening)
        self.began = time.perf_counter() + 0.05
        for number, at in enumerate(times):
            await asyncio.sleep(max(0.0, self.began + at - time.perf_counter()))
            if self._idle.empty():
                self.connect()
            connection = await self._idle.get()
            while connection.is_closing():
                connection = await self._idle.get()
            connection.ask(number)
        await self.end()
        while not self._idle.empty():
            self._idle.get_nowait().close()

    def free(self, connection: Connection) -> None:
        """It waits for the next request."""
        self._idle.put_nowait(connection)

    def answered(self, connection: Connection, status: int, head: bytes, content: bytes) -> None:
        """What the answer tells."""
        now = time.perf_counter()
        if 200 <= status < 300:
            queue = _QUEUE.search(head)
            waited = float(queue[1]) / 1e3 if queue else math.nan
            sent = connection.sent_at - self.began
            self.seen.append(Answer(sent, now - connection.sent_at, waited, connection.number, content))
        super().answered(connection, status, head, content)
