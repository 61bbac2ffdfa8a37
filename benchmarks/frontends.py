"""What several front-end processes take off the server process: processor time per request, by process.

One run measures servers with 1 process and with N front ends, interleaved, under the same load: small bodies
and large ones, batches of 1 and of 32, a handler that does nothing. What counts is the processor time of the
server process, which there is one of: its inverse is where a server stops. Where the machine has few cores,
rates say little about that.
"""

from __future__ import annotations

import contextlib
import math
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil

from benchmarks.archives import build_noop
from benchmarks.load import Load, chosen, cpu_of, run_load
from benchmarks.options import common_parser, numbers, run, tells_failures
from benchmarks.report import heading, machine, number, table, write_json
from benchmarks.servers import (
    QUEUE_SIZE,
    ROOT,
    ModelServer,
    cpu_seconds,
    memory_of,
    model_server,
    sample_answer,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

BATCHES = (1, 32)


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked of a server."""

    batch_size: int
    body: int

    @property
    def path(self) -> str:
        """The route of the model with this batch size."""
        return f"/predictions/batch{self.batch_size}"

    def __str__(self) -> str:
        return f"batch {self.batch_size}, {self.body} B"


@dataclass(frozen=True, slots=True)
class Cost:
    """One measurement: processor microseconds per request of the server process and of all front ends."""

    processes: int
    case: str
    repetition: int
    rate: float
    server_us: float
    frontends_us: float
    failures: dict[str, int]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common_parser("benchmarks.frontends", __doc__, duration=4.0)
    parser.add_argument("--processes", type=numbers, default=(1, 2), help="beside 1 (default: 1,2)")
    parser.add_argument("--bodies", type=numbers, default=(64, 100_000), help="bytes (default: 64,100000)")
    parser.add_argument("--connections", type=int, default=64, help="default: 64")
    return parser.parse_args(arguments)


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if requests failed or a server does not start."""
    options = parse(arguments)
    counts = sorted({1, *options.processes})
    cases = [Case(batch, body) for body in options.bodies for batch in BATCHES]
    facts = machine() | {
        "client": chosen(options.client),
        "connections": str(options.connections),
        "job_queue_size": str(QUEUE_SIZE),
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    print(heading("Front ends", facts))
    if options.dry_run:
        print("\n".join(f"frontend_processes={count}: {case}" for case in cases for count in counts))
        return 0
    costs, memory = measure(counts, cases, options)
    print(report(costs))
    print(f"\nA front end: {number(start_seconds())} CPU-s to start, {number(memory)} MB (PSS).")
    write_json(options.out, {"machine": facts, "costs": costs})
    return 1 if any(cost.failures for cost in costs) else 0


@contextlib.contextmanager
def noop_server(folder: Path, processes: int) -> Iterator[ModelServer]:
    """A server with the no-op model at each batch size, in a folder of its own."""
    store = folder / "store"
    store.mkdir(parents=True)
    archive = build_noop(store)
    with model_server(store, folder / "server", {"frontend_processes": processes}) as server:
        for size in BATCHES:
            server.register(archive, f"batch{size}", batch_size=size)
            sample_answer(server, f"/predictions/batch{size}", b"x")
        yield server


def measure(
    counts: Sequence[int], cases: Sequence[Case], options: argparse.Namespace
) -> tuple[list[Cost], float]:
    """Each case at each server, again and again; then the memory of a front end (PSS, MB)."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        servers = {
            count: stack.enter_context(noop_server(folder / f"processes-{count}", count)) for count in counts
        }
        for count, server in servers.items():
            take(server, count, cases[0], -1, options, options.warmup)
        costs = []
        for repetition in range(options.reps):
            for case in cases:
                for count, server in servers.items():
                    costs.append(take(server, count, case, repetition, options, options.duration))
                    print(costs[-1], file=sys.stderr)
        held = [memory_of(pid).pss_mb for server in servers.values() for pid in front_ends(server.pid)]
        return costs, median(held) if held else math.nan


def start_seconds() -> float:
    """Processor seconds that a process takes to import what a front end needs: the median of five."""
    seconds = []
    for _ in range(5):
        before = cpu_of(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-c", "import modelserver.ext.frontends.process"], check=True, cwd=ROOT
        )
        seconds.append(cpu_of(resource.RUSAGE_CHILDREN) - before)
    return median(seconds)


def take(  # noqa: PLR0917 - what a measurement is made of
    server: ModelServer,
    processes: int,
    case: Case,
    repetition: int,
    options: argparse.Namespace,
    seconds: float,
) -> Cost:
    """One measurement."""
    fronts = front_ends(server.pid)
    before = cpu_seconds(server.pid)
    load = Load(
        server.url(case.path), b"x" * case.body, "application/octet-stream", options.connections, seconds
    )
    outcome = run_load(load, options.client)
    used = {pid: spent - before.get(pid, 0.0) for pid, spent in cpu_seconds(server.pid).items()}
    requests = max(1, outcome.requests)
    return Cost(
        processes,
        str(case),
        repetition,
        outcome.rate,
        used[server.pid] * 1e6 / requests,
        sum(used[pid] for pid in fronts) * 1e6 / requests,
        outcome.failures,
    )


def front_ends(server: int) -> list[int]:
    """The processes of a server's front ends."""
    children = psutil.Process(server).children()
    return [child.pid for child in children if "modelserver.ext.frontends" in child.cmdline()]


def report(costs: Sequence[Cost]) -> str:
    """Medians over the repetitions, and of the ratios to one process within each."""
    rows = []
    for case in dict.fromkeys(cost.case for cost in costs):
        alone = [cost for cost in costs if cost.case == case and cost.processes == 1]
        for count in sorted({cost.processes for cost in costs}):
            ours = [cost for cost in costs if cost.case == case and cost.processes == count]
            ratio = median(a.server_us / b.server_us for a, b in zip(ours, alone, strict=True))
            rows.append(
                [
                    f"{case}, {count} process{'es' * (count > 1)}",
                    number(median(cost.server_us for cost in ours)),
                    f"{ratio:.2f}",
                    number(median(cost.frontends_us for cost in ours)),
                    number(median(cost.rate for cost in ours)),
                ]
            )
    heads = ["case", "server CPU-µs/request", "to 1 process", "front ends CPU-µs/request", "requests/s"]
    return table(heads, rows)


if __name__ == "__main__":
    run(main)
