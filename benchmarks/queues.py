"""One queue for all workers, or one beside each: the server's own pools on a simulated clock.

With one queue, one server has all workers, each a round trip away. Otherwise each worker has a server of its
own beside it, and a balancer, as far away from them, gives each request to one: in turn (round robin), at
random, to that of two at random with fewer requests in hand (power of two), or to that of all with the fewest
(fewest). A request costs the core of its server a little, and so does a batch.

Three kinds of workers: equal ones; one at half speed among them; equal ones for which one request in a
thousand takes long. A load is a share of what the workers answer in full batches.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load import percentile
from benchmarks.options import run
from benchmarks.report import heading, machine, number, table, write_json
from benchmarks.simulation.costs import parse_cost
from benchmarks.simulation.pools import (
    Fleet,
    Overhead,
    Place,
    RoundRobin,
    Route,
    at_random,
    fewest,
    power_of_two,
    simulate_pools,
)
from modelserver.engine.simulation.costs import Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.simulation.pools import Outcome

WARMUP = 0.1  # of the requests
# Seconds of the server's core for a small request and for a batch: 45 us in batches of 1 and 25 us in batches
# of 32, as python -m benchmarks frontend measured.
OVERHEAD = Overhead(24.4e-6, 20.6e-6)
KINDS = ("equal", "one slow", "one in 1,000 long")
# Each route is new, as some remember.
ROUTES: dict[str, Callable[[], Route | None]] = {
    "one": lambda: None,
    "round robin": RoundRobin,
    "random": lambda: at_random,
    "power of two": lambda: power_of_two,
    "fewest": lambda: fewest,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One simulation. ``core`` and ``worker`` are shares of their time, ``offered`` are requests/s."""

    kind: str
    load: float
    queue: str
    offered: float
    batch: float
    core: float
    worker: float
    p50_ms: float
    p99_ms: float


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("benchmarks.queues", description=__doc__)
    add = parser.add_argument
    add("--cost", type=parse_cost, default=Cost("gpu", 0.005, 0.00025), help="NAME=A,B: t(n) = A + B*n ms")
    add("--batch", type=int, default=32, help="batch size (default: 32)")
    add("--workers", type=int, default=8, help="default: 8")
    add("--round-trip-ms", type=float, default=1.0, help="to a worker or server (default: 1)")
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="default: all")
    add("--queues", nargs="+", choices=list(ROUTES), default=list(ROUTES), help="default: all")
    add("--loads", type=float, nargs="+", default=[0.3, 0.6, 0.85, 0.95], help="shares of the capacity")
    add("--policy", default="adaptive", help="adaptive, greedy or window, of 100 ms (default: adaptive)")
    add("--long-ms", type=float, default=100.0, help="what a long request takes more (default: 100)")
    add("--requests", type=int, default=20_000, help="of one simulation (default: 20000)")
    add("--seed", type=int, default=1, help="one seed gives one result (default: 1)")
    add("--out", type=Path, help="write all figures to this JSON file")
    add("--dry-run", action="store_true", help="say what would be simulated, and leave")
    return parser.parse_args(arguments)


def fleet_of(kind: str, options: argparse.Namespace) -> Fleet:
    """The workers of a kind."""
    place = Place(1.0, options.round_trip_ms / 1e3)
    fleet = Fleet(options.cost, options.batch, [place] * options.workers, options.policy, overhead=OVERHEAD)
    if kind == "one slow":
        return replace(fleet, places=[*fleet.places[1:], replace(place, slowness=2.0)])
    return replace(fleet, long=0.001, long_for=options.long_ms / 1e3) if kind.startswith("one in") else fleet


def measure(kind: str, load: float, queue: str, options: argparse.Namespace) -> Row:
    """One simulation."""
    fleet = fleet_of(kind, options)
    rate = load * fleet.capacity
    outcome = simulate_pools(fleet, ROUTES[queue](), rate, options.requests, options.seed)
    return summarize(kind, load, queue, rate, outcome)


def summarize(kind: str, load: float, queue: str, rate: float, outcome: Outcome) -> Row:
    """The figures of an outcome, without its warm-up."""
    counted = sorted(latency * 1e3 for _, latency in sorted(outcome.answers)[int(WARMUP * outcome.rows) :])
    return Row(
        kind,
        load,
        queue,
        rate,
        batch=outcome.rows / outcome.batches,
        core=outcome.core,
        worker=outcome.worker,
        p50_ms=percentile(counted, 50),
        p99_ms=percentile(counted, 99),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """A table for each kind of workers."""
    options = parse(arguments)
    cost = options.cost
    facts = machine() | {
        "workers": f"{options.workers}, {options.round_trip_ms:g} ms away",
        "cost": f"{cost.name} {cost.fixed * 1e3:g} + {cost.each * 1e3:g} n ms, batches of {options.batch}",
        "core": f"{OVERHEAD.request * 1e6:g} us a request, {OVERHEAD.batch * 1e6:g} us a batch",
        "policy": options.policy,
        "seed": str(options.seed),
    }
    print(heading("Queues", facts))
    if options.dry_run:
        print(
            "\n".join(f"{kind}: loads {', '.join(f'{x:g}' for x in options.loads)}" for kind in options.kinds)
        )
        return 0
    rows: list[Row] = []
    for kind in options.kinds:
        some = [measure(kind, load, queue, options) for load in options.loads for queue in options.queues]
        print(f"## {kind}\n\n{report(some)}\n", flush=True)
        rows += some
    write_json(options.out, {"machine": facts, "rows": rows})
    return 0


def report(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    headers = ["queue", "load", "requests/s", "batch", "server's core", "workers busy", "p50 ms", "p99 ms"]
    return table(headers, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    shares = (f"{row.core:.2f}", f"{row.worker:.2f}")
    plain = map(number, (row.offered, row.batch))
    return [row.queue, f"{row.load:g}", *plain, *shares, number(row.p50_ms), number(row.p99_ms)]


if __name__ == "__main__":
    run(main)
