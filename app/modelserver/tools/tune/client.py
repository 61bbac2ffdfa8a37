"""Load for measurements: as a closed loop or at a given rate.

In a closed loop each client sends its next request after its response. At a given rate requests are due at
random times, as from independent clients. All responses are awaited, so that one load does not disturb the
next.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from modelserver.ext.recording.entries import batch_of, timing_of
from modelserver.tools.http_client import Requester, TimedResponse
from modelserver.tools.tune.figure import LoadRun, TimedAnswer

HOST = "127.0.0.1"
ANSWER_TIMEOUT = 120.0  # seconds without any answer after which those that are missing count as lost
MOST_CONNECTIONS = 1024
_PAUSE = 0.05  # seconds after a fault


@dataclass(frozen=True, slots=True)
class LoadSpec:
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
    """The bytes of a POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def closed_loop(load: LoadSpec, clients: int) -> LoadRun:
    """``clients`` that each wait for a response before the next request."""
    going = _Going(load, clients)
    loop = asyncio.get_running_loop()

    def ask_again(*, failed: bool) -> None:
        if failed:
            loop.call_later(_PAUSE, going.ask)
        else:
            going.ask()

    going.on_answer = ask_again
    for _ in range(clients):
        going.ask()
    await going.last()
    # The counted time runs from the last response of the settling time to the last response in time, or the
    # next one: a machine may stand still for longer than a short load lasts.
    settled = [answer.ended for answer in going.answers if answer.ended <= load.settle]
    others = going.answers[len(settled) :]
    counted = [answer for answer in others if answer.ended <= going.closed] or others[:1]
    began = settled[-1] if settled else 0.0
    return LoadRun(counted, counted[-1].ended - began if counted else 0.0, dict(going.failures))


async def at_rate(load: LoadSpec, rate: float) -> LoadRun:
    """``rate`` requests per second on average, at exponentially distributed intervals, the same each time.

    All requests due in the counted time count, whenever they were answered.
    """
    going = _Going(load, MOST_CONNECTIONS)
    arrivals = asyncio.get_running_loop().create_task(_arrive(going, rate))
    try:
        await going.last()
    finally:
        arrivals.cancel()
    counted = [a for a in going.answers if load.settle < a.ended - a.latency <= going.closed]
    return LoadRun(counted, going.closed - load.settle, dict(going.failures))


async def _arrive(going: _Going, rate: float) -> None:
    chance = random.Random(0)  # noqa: S311 - for load, not for secrets
    moment = time.perf_counter()
    while going.open:
        moment += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, moment - time.perf_counter()))
        going.ask(moment)


class _Going:
    """A load that is going on, and what came of it; ``open``: requests are still sent."""

    def __init__(self, load: LoadSpec, most: int) -> None:
        self.open = True
        self.closed = 0.0
        self.answers: list[TimedAnswer] = []
        self.failures: Counter[str] = Counter()
        self.on_answer: Callable[..., None] = lambda *, failed: None
        self._load = load
        self._requests = itertools.cycle(load.requests)
        self._requester = Requester(load.host, load.port, most, self._answered)

    def ask(self, due: float = 0.0) -> None:
        """Sends the next request, unless the load is over."""
        if self.open:
            self._requester.send(0, next(self._requests), due)

    async def last(self) -> None:
        """Returns when the load is over and all requests are answered or lost."""
        load = self._load
        try:
            await asyncio.sleep(load.settle + load.seconds)
            # The count is polled: an event would cost time for every response.
            while self._counted() < load.least and self._elapsed() < load.settle + load.longest:  # noqa: ASYNC110
                await asyncio.sleep(load.seconds / 10)
            self.open, self.closed = False, self._elapsed()
            await self._requester.drain(ANSWER_TIMEOUT)
            if self._requester.pending:
                self.failures["no answer"] += self._requester.pending
        finally:
            self.open = False
            self._requester.close()

    def _answered(self, _: int, answer: TimedResponse) -> None:
        failed = not 200 <= answer.status < 300
        if failed:
            self.failures[answer.fault.partition(":")[0] or f"status {answer.status}"] += 1
        else:
            queue, inference = timing_of(answer.lines)
            ended = answer.sent + answer.seconds
            self.answers.append(TimedAnswer(ended, answer.seconds, queue, inference, *batch_of(answer.lines)))
        self.on_answer(failed=failed)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._requester.began

    def _counted(self) -> int:
        return sum(answer.ended > self._load.settle for answer in self.answers)
