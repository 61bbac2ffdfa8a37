"""Requests that arrive by chance at a given mean rate, for latencies below the largest rate.

With wrk: many connections, each of which pauses by chance (exponentially) between an answer and its next
request. Where answers are short beside pauses, that is nearly a Poisson process, and the client costs little
of the processors that it shares with the server.

Without wrk: an open loop of our own, a Poisson process with a fixed seed whether or not earlier requests were
answered. A latency begins when the request arrives, not when it is sent.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from random import Random

from benchmarks.load import Client, Load, Outcome, chosen, cpu_of, outcome_of, run_wrk
from benchmarks.open_loop import run_open_loop

CONNECTIONS = 512
_PILOT = 1.0  # seconds


def poisson(rate: float, seconds: float, chance: Random) -> list[float]:
    """Ascending times below ``seconds``, ``rate`` per second, each independent of all others."""
    times: list[float] = []
    at = chance.expovariate(rate)
    while at < seconds:
        times.append(at)
        at += chance.expovariate(rate)
    return times


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
    times = poisson(rate, load.seconds, Random(0))
    before = cpu_of(resource.RUSAGE_SELF)
    seen = run_open_loop(load.port, [load.question.message()] * len(times), times)
    ends = [each.sent + each.latency for each in seen.answers]
    latencies = [end - times[each.number] for end, each in zip(ends, seen.answers, strict=True)]
    rate = len(ends) / max(ends, default=1.0)
    return outcome_of(latencies, rate, seen.failures, "asyncio", cpu_of(resource.RUSAGE_SELF) - before)
