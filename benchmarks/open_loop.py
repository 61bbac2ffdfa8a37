"""A client whose requests leave at given times, whether or not earlier ones were answered."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvloop

from benchmarks.load import ANSWER_TIMEOUT, Load, address_of, fault_of, request_of
from modelserver.tools.http_client import Requester, TimedResponse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

_QUEUE = re.compile(rb"\bqueue;dur=([0-9.]+)", re.IGNORECASE)
_CONNECTIONS = 10_000  # at the most


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

    The requests take their ``bodies`` in turn.
    """
    loop = OpenLoop(load, bodies)
    uvloop.run(loop.send(times))
    return Seen(loop.seen, dict(loop.failures), loop.began)


class OpenLoop:
    """Sends a request when it arrives, over a connection of its own if all others wait for an answer."""

    def __init__(self, load: Load, bodies: Sequence[bytes]) -> None:
        self.host, self.port = address_of(load)
        self.requests = [request_of(load, each) for each in bodies]
        self.failures: Counter[str] = Counter()
        self.seen: list[Answer] = []
        self.began = 0.0
        self._before = 0.0  # seconds from when times are counted to the beginning

    async def send(self, times: Sequence[float]) -> None:
        """All requests; returns when they are answered or lost."""
        requester = Requester(self.host, self.port, _CONNECTIONS, self._answered)
        self.began = time.perf_counter() + 0.05
        self._before = self.began - requester.began
        for number, at in enumerate(times):
            await asyncio.sleep(max(0.0, self.began + at - time.perf_counter()))
            requester.send(number, self.requests[number % len(self.requests)])
        await requester.drain(ANSWER_TIMEOUT)
        if requester.pending:
            self.failures["timeout"] = requester.pending
        requester.close()

    def _answered(self, number: int, answer: TimedResponse) -> None:
        if fault := fault_of(answer):
            self.failures[fault] += 1
            return
        queue = _QUEUE.search(answer.lines)
        waited = float(queue[1]) / 1e3 if queue else math.nan
        self.seen.append(Answer(answer.sent - self._before, answer.seconds, waited, number, answer.body))
