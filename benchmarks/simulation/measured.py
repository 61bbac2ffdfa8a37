"""The real server with a model of known cost, under the arrivals that the simulator gets."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import takewhile
from random import Random
from typing import TYPE_CHECKING

from benchmarks.load import percentile
from benchmarks.servers import HOST, BenchmarkError
from benchmarks.simulation.arrivals import poisson
from benchmarks.simulation.open_loop import Seen, run_open_loop
from modelserver.engine.batching.policies import make_policy
from modelserver.engine.simulation.costs import Cost, fit
from modelserver.engine.simulation.engine import Server, Simulation
from modelserver.engine.simulation.figures import Figures, summarize
from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.servers import ModelServer

NAME = "sleeper"
_HANDLER = '''"""Takes a known time for a batch, without computing."""

import time


def handle(data, context):
    if data is None:
        return None
    time.sleep({fixed!r} + {each!r} * len(data))
    return [{{"ok": 1}} for _ in data]
'''
# What comes first, while connections and the policy's estimates are new, does not count.
WARMUP = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: a policy with its cap or window in seconds, at a share of the capacity."""

    policy: str
    delay: float
    load: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The same arrivals, measured and simulated.

    ``fitted`` is the cost that the handler was seen to have, which the simulation got; ``late_ms`` the 99th
    percentile of how late the client sent, which is not part of the latencies.
    """

    case: Case
    measured: Figures
    simulated: Figures
    fitted: Cost
    late_ms: float
    failures: dict[str, int]

    def differences(self) -> tuple[float, float]:
        """Simulated to measured p50 and p99, less 1."""
        return (
            self.simulated.p50_ms / self.measured.p50_ms - 1,
            self.simulated.p99_ms / self.measured.p99_ms - 1,
        )


def build_sleeper(store: Path, cost: Cost) -> str:
    """An archive whose handler sleeps what a batch costs; returns its name."""
    source = store / f"{NAME}_handler.py"
    source.write_text(_HANDLER.format(fixed=cost.fixed, each=cost.each), "utf-8")
    config = ArchiveConfig(model_name=NAME, handler=str(source), version="1.0", export_path=store, force=True)
    return build_archive(config).name


def measure_pair(
    server: ModelServer, archive: str, model: Server, case: Case, *, seconds: float, seed: int
) -> Pair:
    """Register, load, unregister, and simulate what the server got. Raises BenchmarkError for no answers."""
    rate = case.load * model.cost.capacity(model.batch_size, model.workers)
    times = list(takewhile(lambda at: at < seconds, poisson(rate, Random(seed))))
    server.register(
        archive,
        NAME,
        batch_size=model.batch_size,
        batch_policy=case.policy,
        max_batch_delay=round(case.delay * 1e3),
        initial_workers=model.workers,
    )
    path = f"/predictions/{NAME}"
    try:
        # One at a time: what the server, the sockets and the client add to the handler's time.
        lone = run_open_loop(HOST, server.port, path, [i * 2 * model.cost.seconds(1) for i in range(20)])
        seen = run_open_loop(HOST, server.port, path, times)
    finally:
        server.unregister(NAME)
    if not seen.answers or not lone.answers:
        raise BenchmarkError(f"nothing was answered: {seen.failures or lone.failures}")
    return compare(case, model, seen, overhead=added(lone), seconds=seconds, seed=seed)


def added(lone: Seen) -> float:
    """The median of what a lone request takes beside its queue and its handler, in seconds."""
    return statistics.median(each.latency - each.queue - each.handler for each in lone.answers)


def compare(case: Case, model: Server, seen: Seen, *, overhead: float, seconds: float, seed: int) -> Pair:
    """Simulates the requests that were sent, with the cost that the handler had."""
    cost = fit("measured", [(answer.size, answer.handler) for answer in seen.answers])
    sent = iter(sorted(answer.sent for answer in seen.answers))
    same = Server(cost, model.batch_size, model.workers, overhead)
    trace = Simulation(same, make_policy(case.policy, case.delay), sent, seed).run(seconds + 1)
    begin = WARMUP * seconds
    return Pair(
        case=case,
        measured=figures_of(seen, begin, seconds),
        simulated=summarize(trace, begin, seconds),
        fitted=cost,
        late_ms=percentile(seen.lateness, 99) * 1e3,
        failures=seen.failures,
    )


def figures_of(seen: Seen, begin: float, end: float) -> Figures:
    """What the clients saw; each answer stands for its share of its batch."""
    counted = [answer for answer in seen.answers if begin <= answer.sent < end]
    shares = sum(1 / answer.size for answer in counted)
    latencies = [answer.latency * 1e3 for answer in counted]
    return Figures(
        rate=sum(begin <= answer.sent + answer.latency < end for answer in seen.answers) / (end - begin),
        batch=len(counted) / shares if counted else 0.0,
        device_ms=1e3 * statistics.fmean(a.handler / a.size for a in counted) if counted else 0.0,
        p50_ms=percentile(latencies, 50),
        p90_ms=percentile(latencies, 90),
        p99_ms=percentile(latencies, 99),
        requests=len(counted),
    )
