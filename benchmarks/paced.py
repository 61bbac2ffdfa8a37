"""Requests that arrive by chance at a given mean rate, for latencies below the largest rate.

With wrk: many connections, each of which pauses by chance (exponentially) between an answer and its next
request. Where answers are short beside pauses, that is nearly a Poisson process, and the client costs little
of the processors that it shares with the server.

Without wrk: an open loop of our own, a Poisson process with a fixed seed whether or not earlier requests were
answered. Connections are opened before; an arrival that finds none free waits for one, and that counts: a
latency begins when the request arrives, not when it is sent. It needs about a processor for 15 000 a second.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import uvloop

from benchmarks.load import (
    ANSWER_TIMEOUT,
    Client,
    Connection,
    Crowd,
    Load,
    Outcome,
    chosen,
    cpu_of,
    run_wrk,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECTIONS = 512
_PILOT = 1.0  # seconds
_TICK = 0.001  # seconds between looks at who has arrived: timers of the event loop are no finer


def run_paced(load: Load, rate: float, client: Client = "auto") -> Outcome:
    """Post so many requests per second for ``seconds``. Raises ValueError for no rate."""
    if not rate > 0:
        raise ValueError(f"a rate above 0 is needed, not {rate}")
    return _pausing(load, rate) if chosen(client) == "wrk" else _open_loop(load, rate)


def _pausing(load: Load, rate: float) -> Outcome:
    """By wrk. A pilot run tells how long answers take, which is taken off the pauses."""
    cycle_ms = load.connections / rate * 1e3
    pilot = run_wrk(replace(load, seconds=_PILOT), pause_ms=cycle_ms)
    outcome = run_wrk(load, pause_ms=max(cycle_ms / 2, cycle_ms - pilot.p50_ms))
    # The server worked for both.
    return replace(
        outcome,
        requests=pilot.requests + outcome.requests,
        failures={**pilot.failures, **outcome.failures},
        client_cpu=pilot.client_cpu + outcome.client_cpu,
    )


def _open_loop(load: Load, rate: float) -> Outcome:
    before = cpu_of(resource.RUSAGE_SELF)
    crowd = PacedCrowd(load, rate)
    uvloop.run(crowd.run())
    return crowd.outcome(cpu_of(resource.RUSAGE_SELF) - before)


def arrivals(rate: float, seconds: float, seed: int = 0) -> list[float]:
    """Ascending times since the start at which requests arrive."""
    chance = random.Random(seed)
    times: list[float] = []
    at = chance.expovariate(rate)
    while at < seconds:
        times.append(at)
        at += chance.expovariate(rate)
    return times


class PacedCrowd(Crowd):
    """Connections that ask when a request arrives."""

    def __init__(self, load: Load, rate: float) -> None:
        super().__init__(load)
        self._schedule = deque(arrivals(rate, load.settle + load.seconds))
        self._idle: list[Connection] = []
        self._arrived: deque[float] = deque()  # when each came that found no connection

    async def run(self) -> None:
        """Open all connections, let the requests come, wait for the last answers."""
        self.open = True
        for _ in range(self.load.connections):
            self.connect()
        await self._wait_while(lambda: len(self._idle) < self.load.connections and not self.failures)
        self.began = time.perf_counter()
        while self._schedule:
            self._admit(time.perf_counter())
            await asyncio.sleep(_TICK)
        # What arrived belongs to the measurement, so it is answered before anybody hangs up.
        until = time.perf_counter() + ANSWER_TIMEOUT
        await self._wait_while(
            lambda: bool(self._arrived) and not self.failures and time.perf_counter() < until
        )
        self.failures["not sent"] += len(self._arrived)
        await self.finish()

    async def _wait_while(self, condition: Callable[[], bool]) -> None:
        while condition():  # noqa: ASYNC110 - it looks as often as arrivals do
            await asyncio.sleep(_TICK)

    def _admit(self, now: float) -> None:
        while self._schedule and self._schedule[0] <= now - self.began:
            self._schedule.popleft()
            if self._idle:
                self._idle.pop().ask(now)
            else:
                self._arrived.append(now)

    def free(self, connection: Connection) -> None:
        """The next that waits for a connection, or none."""
        if not self.open:
            connection.close()
        elif self._arrived:
            connection.ask(self._arrived.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """It cannot be used again."""
        if connection in self._idle:
            self._idle.remove(connection)
        super().lost(connection)

    async def finish(self) -> None:
        """Close, once the last answer is there."""
        await self.end()
        for connection in self._idle:
            connection.close()
