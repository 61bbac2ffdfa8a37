"""A client whose requests leave at given times, whether or not earlier ones were answered."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from benchmarks.load import fault_of, last_answers
from benchmarks.servers import HOST
from modelserver.tools.http_client import Requester, TimedResponse

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
    failures: Counter[str]
    began: float


def run_open_loop(port: int, requests: Sequence[bytes], times: Sequence[float]) -> Seen:
    """Sends each request at its time, of ascending seconds; returns when all are answered or lost.

    A request has a connection of its own if all others wait for an answer.
    """
    return uvloop.run(_open_loop(port, requests, times))


async def _open_loop(port: int, requests: Sequence[bytes], times: Sequence[float]) -> Seen:
    failures = Counter[str]()
    answers: list[Answer] = []

    def answered(number: int, answer: TimedResponse) -> None:
        if fault := fault_of(answer):
            failures[fault] += 1
            return
        queue = _QUEUE.search(answer.lines)
        waited = float(queue[1]) / 1e3 if queue else math.nan
        sent = answer.sent + requester.began - began
        answers.append(Answer(sent, answer.seconds, waited, number, answer.body))

    requester = Requester(HOST, port, _CONNECTIONS, answered)
    began = time.perf_counter() + 0.05
    for number, (at, request) in enumerate(zip(times, requests, strict=True)):
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        requester.send(number, request)
    await last_answers(requester, failures)
    return Seen(answers, +failures, began)
