"""The batch policies in a simulated server, and the simulated server beside the real one.

Without ``--validate``: every policy under every arrival pattern and load, with the server's own queue and
policies and a clock that costs nothing. A load is a share of what the workers answer in full batches. With
``--validate``: a real server whose handler sleeps what a batch costs, and the simulated one, under the same
arrivals.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from benchmarks.options import numbers, run, tells_failures
from benchmarks.report import heading, machine, number, table, write_json
from benchmarks.servers import model_server
from benchmarks.simulation.arrivals import OPEN, PATTERNS, Pattern
from benchmarks.simulation.costs import parse_cost, read_costs
from benchmarks.simulation.measured import Case, Pair, build_sleeper, measure_pair
from modelserver.engine.batching.policies import make_policy
from modelserver.engine.simulation.costs import Cost
from modelserver.engine.simulation.engine import Clients, Server, Simulation
from modelserver.engine.simulation.figures import Figures, summarize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Loads of --validate, and the middle one at which the policies are compared.
CHECKED = (0.3, 0.6, 0.85)
MIDDLE = 0.6
WITHIN = 0.15
WARMUP = 0.1  # of a simulated time


@dataclass(frozen=True, slots=True)
class Subject:
    """A policy with its window, or its cap, in seconds."""

    title: str
    policy: str
    delay: float


@dataclass(frozen=True, slots=True)
class Row:
    """One simulation."""

    cost: Cost
    workers: int
    pattern: str
    load: float
    policy: str
    figures: Figures


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("benchmarks.simulate", description=__doc__)
    add = parser.add_argument
    add("--cost", type=_cost, action="append", help="NAME=A,B: t(n) = A + B*n ms (default: medium=40,4)")
    add("--costs-from", type=Path, help="fit the costs to the JSON of benchmarks.batching --out")
    add("--batch", type=int, default=8, help="batch size (default: 8)")
    add("--workers", type=numbers, default=(1, 4), help="default: 1,4")
    add("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS), help="default: all")
    add(
        "--loads",
        type=_shares,
        default=(0.1, 0.3, 0.45, 0.6, 0.75, 0.85, 0.95),
        help="shares of the capacity",
    )
    add("--window-ms", type=numbers, default=(10, 100), help="windows to compare with (default: 10,100)")
    add("--cap-ms", type=int, default=100, help="the cap of adaptive (default: 100, the server's)")
    add("--requests", type=int, default=20_000, help="of one simulation (default: 20000)")
    add("--seed", type=int, default=1, help="one seed gives one result (default: 1)")
    add("--validate", action="store_true", help="measure a real server beside the simulated one")
    add("--duration", type=float, default=20.0, help="seconds of one measurement of --validate (default: 20)")
    add("--plots", type=Path, help="write a PNG per table into this folder")
    add("--out", type=Path, help="write all figures to this JSON file")
    add("--dry-run", action="store_true", help="say what would be simulated or measured, and leave")
    return parser.parse_args(arguments)


def _cost(text: str) -> Cost:
    try:
        return parse_cost(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: NAME=A,B is needed, in ms") from error


def _shares(text: str) -> tuple[float, ...]:
    values = tuple(float(part) for part in text.split(","))
    if not all(value > 0 for value in values):
        raise argparse.ArgumentTypeError("shares above 0 are needed")
    return values


def subjects(options: argparse.Namespace) -> list[Subject]:
    """The policies that are compared."""
    windows = [Subject(f"window {ms} ms", "window", ms / 1e3) for ms in options.window_ms]
    return [
        Subject("greedy", "greedy", 0.0),
        Subject("adaptive", "adaptive", options.cap_ms / 1e3),
        *windows,
    ]


def costs(options: argparse.Namespace) -> list[Cost]:
    """Given, fitted, or the default."""
    given = list(options.cost or [])
    fitted = read_costs(options.costs_from) if options.costs_from else []
    return given + fitted or [Cost("medium", 0.040, 0.004)]


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate or validate, and report; 1 if a process does not start or a request fails."""
    options = parse(arguments)
    kinds = costs(options)
    facts = machine() | {
        "costs": ", ".join(f"{c.name} {c.fixed * 1e3:g} + {c.each * 1e3:g} n ms" for c in kinds),
        "batch size": str(options.batch),
        "policies": ", ".join(subject.title for subject in subjects(options)),
        "seed": str(options.seed),
    }
    print(heading("Validation" if options.validate else "Simulation", facts))
    if options.dry_run:
        print("\n".join(plan(options, kinds)))
        return 0
    return validate(options, kinds, facts) if options.validate else explore(options, kinds, facts)


def plan(options: argparse.Namespace, kinds: Sequence[Cost]) -> list[str]:
    """What would be done, a line each."""
    if options.validate:
        return [f"{case.policy} at {case.load:g}: {options.duration:g} s" for _, case in cases(options)]
    return [
        f"{cost.name}, {workers} workers, {pattern}: loads {', '.join(f'{load:g}' for load in options.loads)}"
        for cost in kinds
        for workers in options.workers
        for pattern in options.patterns
    ]


# -- simulated


def explore(options: argparse.Namespace, kinds: Sequence[Cost], facts: dict[str, str]) -> int:
    """All combinations: a table each, and plots if they are wanted."""
    rows: list[Row] = []
    for cost in kinds:
        for workers in options.workers:
            server = Server(cost, options.batch, workers)
            for pattern in options.patterns:
                some = [
                    Row(
                        cost,
                        workers,
                        pattern,
                        load,
                        subject.title,
                        simulate(server, pattern, load, subject, options),
                    )
                    for load in options.loads
                    for subject in subjects(options)
                ]
                rows += some
                print(f"## {title_of(some[0])}\n\n{report(some)}\n", flush=True)
    if options.plots is not None:
        draw_all(rows, options.plots)
    write_json(options.out, {"machine": facts, "rows": rows})
    return 0


def simulate(
    server: Server, pattern: Pattern, load: float, subject: Subject, options: argparse.Namespace
) -> Figures:
    """One policy at one load. The arrivals of one seed are the same for every policy."""
    rate = load * server.cost.capacity(server.batch_size, server.workers)
    seconds = options.requests / rate
    policy = make_policy(subject.policy, subject.delay)
    if pattern == "closed":
        source = crowd(server, rate)
        trace = Simulation(server, policy, source, options.seed).run(seconds)
    else:
        trace = Simulation(server, policy, OPEN[pattern](rate, Random(options.seed)), options.seed).run(
            seconds
        )
    return summarize(trace, WARMUP * seconds, seconds)


def crowd(server: Server, rate: float) -> Clients:
    """Clients for about ``rate`` if they are answered in the time of a full batch, thinking half as long."""
    full = server.cost.seconds(server.batch_size)
    return Clients(max(1, round(rate * 1.5 * full)), full / 2)


def title_of(row: Row) -> str:
    """The heading of a table or plot."""
    workers = "1 worker" if row.workers == 1 else f"{row.workers} workers"
    return f"{row.cost.name}, {row.pattern}, {workers}"


def report(rows: Sequence[Row]) -> str:
    """A Markdown table; ratios are to greedy at the same load."""
    base = {row.load: row.figures for row in rows if row.policy == "greedy"}
    headers = ["policy", "load", "requests/s", "batch", "device ms/request", "p50 ms", "p90 ms", "p99 ms"]
    headers += ["device to greedy", "p50", "p99"]
    return table(headers, [_cells(row, base[row.load]) for row in rows])


def _cells(row: Row, greedy: Figures) -> list[str]:
    f = row.figures
    plain = (f.rate, f.batch, f.device_ms, f.p50_ms, f.p90_ms, f.p99_ms)
    ratios = (f.device_ms / greedy.device_ms, f.p50_ms / greedy.p50_ms, f.p99_ms / greedy.p99_ms)
    return [row.policy, f"{row.load:g}", *map(number, plain), *map(number, ratios)]


def draw_all(rows: Sequence[Row], folder: Path) -> None:
    """A PNG per table."""
    from benchmarks.simulation.plots import draw  # noqa: PLC0415 - matplotlib is in the extra `bench` only

    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(title_of(row), []).append(row)
    for title, group in groups.items():
        curves: dict[str, list[tuple[float, Figures]]] = {}
        for row in group:
            curves.setdefault(row.policy, []).append((row.load, row.figures))
        path = folder / f"{title.replace(', ', '-').replace(' ', '-')}.png"
        draw(path, title, curves)
        print(f"wrote {path}")


# -- measured


def cases(options: argparse.Namespace) -> list[tuple[str, Case]]:
    """Adaptive at the three loads, the others at the middle one."""
    found = [("adaptive", Case("adaptive", options.cap_ms / 1e3, load)) for load in CHECKED]
    others = [subject for subject in subjects(options) if subject.policy != "adaptive"]
    return found + [(subject.title, Case(subject.policy, subject.delay, MIDDLE)) for subject in others]


def validate(options: argparse.Namespace, kinds: Sequence[Cost], facts: dict[str, str]) -> int:
    """Measured beside simulated; the marks are printed and do not change the status."""
    server = Server(kinds[0], options.batch, options.workers[-1])
    pairs = measure_all(server, options)
    workers = "1 worker" if server.workers == 1 else f"{server.workers} workers"
    title = f"{server.cost.name}, poisson, {workers}"
    print(f"## {title}\n\n{report_pairs(pairs)}\n")
    print("\n".join(marks(pairs)))
    if options.plots is not None:
        draw_pairs(pairs, options.plots, title, facts)
    write_json(
        options.out, {"machine": facts, "pairs": [{"title": title, "pair": pair} for title, pair in pairs]}
    )
    return 1 if any(pair.failures for _, pair in pairs) else 0


def measure_all(server: Server, options: argparse.Namespace) -> list[tuple[str, Pair]]:
    """Every case on one server, one after another. Raises BenchmarkError."""
    pairs = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        store = Path(folder) / "store"
        store.mkdir()
        archive = build_sleeper(store, server.cost)
        with model_server(store, Path(folder) / "server") as running:
            for title, case in cases(options):
                pair = measure_pair(
                    running, archive, server, case, seconds=options.duration, seed=options.seed
                )
                print(f"{title} at {case.load:g}: p50 {number(pair.measured.p50_ms)} ms", file=sys.stderr)
                pairs.append((title, pair))
    return pairs


def draw_pairs(pairs: Sequence[tuple[str, Pair]], folder: Path, title: str, facts: Mapping[str, str]) -> None:
    """One PNG, with where it was measured."""
    from benchmarks.simulation.plots import draw  # noqa: PLC0415 - as above

    folder.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[tuple[float, Figures]]] = {}
    for policy, pair in pairs:
        for kind, figures in (("measured", pair.measured), ("simulated", pair.simulated)):
            curves.setdefault(f"{policy}, {kind}", []).append((pair.case.load, figures))
    where = ", ".join([facts["cpu"], f"{facts['cores']} cores", f"Python {facts['Python']}"])
    where += f", modelserver {facts['modelserver']}, load average {facts['load'].partition(' ')[0]}"
    draw(folder / "measured.png", f"{title}\n{where}", curves)
    print(f"wrote {folder / 'measured.png'}")


def report_pairs(pairs: Sequence[tuple[str, Pair]]) -> str:
    """Two lines per measurement."""
    headers = ["policy", "load", "", "requests/s", "batch", "device ms/request", "p50 ms", "p90 ms", "p99 ms"]
    headers += ["sent late ms"]
    lines = []
    for title, pair in pairs:
        for kind, f in (("measured", pair.measured), ("simulated", pair.simulated)):
            plain = (f.rate, f.batch, f.device_ms, f.p50_ms, f.p90_ms, f.p99_ms)
            late = number(pair.late_ms) if kind == "measured" else ""
            lines.append([title, f"{pair.case.load:g}", kind, *map(number, plain), late])
    return table(headers, lines)


def marks(pairs: Sequence[tuple[str, Pair]]) -> list[str]:
    """For each pair whether the simulator is near enough, then what failed."""
    lines = []
    for title, pair in pairs:
        p50, p99 = pair.differences()
        word = "reached" if max(abs(p50), abs(p99)) <= WITHIN else "NOT REACHED"
        lines.append(
            f"{word}: {title} at {pair.case.load:g}, within {WITHIN:.0%}: p50 {p50:+.1%}, p99 {p99:+.1%}"
        )
        if pair.failures:
            lines.append(f"void: {title} at {pair.case.load:g}: {pair.failures}")
    return lines


if __name__ == "__main__":
    run(main)
