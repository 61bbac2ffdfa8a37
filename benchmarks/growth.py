"""What a request costs as things grow: registered models, bytes of the body, connections.

The server's processor time per request with a no-op handler in batches of 32, adaptive, as shipped. One thing
grows at a time; the others stay at their smallest. The points of a curve are measured in turns and repeated,
beside bare uvicorn with an echo where it can grow so, too: what it pays is the price of system and HTTP.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.archives import build_noop
from benchmarks.load import Client, Load, chosen, run_load
from benchmarks.measure import Sample, cpu_pairs, cpu_ratio, figures, interleaved, named, sample
from benchmarks.options import common_parser, numbers, run, tell, tells_failures
from benchmarks.plots import WITHOUT, can_plot, plot_lines
from benchmarks.report import (
    Mark,
    failure_lines,
    heading,
    machine,
    noise_lines,
    number,
    table,
    write_json,
)
from benchmarks.servers import (
    ModelServer,
    Running,
    echo_server,
    memory_of,
    model_server,
    sample_answer,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

NAME = "noop"
PATH = f"/predictions/{NAME}"
BATCH = 32
OURS, ECHO = "", ", echo"
CALM = 32  # connections while something else grows
FLAT = 1.15
# A body is copied out of the socket, as the echo does, joined, copied to the worker, and taken over there.
COPIES = 4.0
OUT = "folder for growth.json and growth.png"


@dataclass(frozen=True, slots=True)
class Point:
    """One server and load of a curve: ``size`` is what grows."""

    curve: str
    size: int
    models: int
    body: int  # bytes
    connections: int


@dataclass(frozen=True, slots=True)
class Curve:
    """What grows, in words; ``points`` ascend. ``beside_echo``: whether the echo can grow so, too."""

    title: str
    points: tuple[Point, ...]
    beside_echo: bool = False


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common_parser("benchmarks growth", __doc__, duration=4.0, out=OUT)
    add = parser.add_argument
    add("--models", type=numbers, default=(1, 10, 100), help="registered; default: 1,10,100")
    add("--bodies", type=numbers, default=(1_000, 10_000, 100_000), help="bytes; default: 1000,10000,100000")
    add("--connections", type=numbers, default=(32, 128, 512, 1024), help="default: 32,128,512,1024")
    add(
        "--others-workers",
        type=int,
        default=0,
        help="of each model that is registered but not asked (default: 0; 1 takes memory for each)",
    )
    return parser.parse_args(arguments)


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a figure is void or the server does not start."""
    options = parse(arguments)
    found = curves(options)
    queue = queue_size(options)
    facts = machine() | {
        "client": chosen(options.client),
        "handler": f"no-op, batch {BATCH}, adaptive",
        "connections": f"{CALM} where they do not grow",
        "job_queue_size": str(queue),
        "workers": f"1 of the model that is asked, {options.others_workers} of each other",
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    print(heading("Growth", facts))
    if options.dry_run:
        print("\n".join(f"{c.title}: {', '.join(str(p.size) for p in c.points)}" for c in found))
        return 0
    samples = {curve.title: measure(curve, options, queue) for curve in found}
    marks = [mark(curve, samples[curve.title]) for curve in found]
    for curve in found:
        print(report(curve, samples[curve.title]))
    print("\n".join(map(str, marks)))
    save(options.out, facts, samples, marks)
    return 1 if any(figure.void for taken in samples.values() for figure in figures(taken)) else 0


def curves(options: argparse.Namespace) -> list[Curve]:
    """The three curves of the command line; a curve of one point tells nothing and is left out."""
    least, small = min(options.models), min(options.bodies)
    made = [
        Curve("models", tuple(Point("models", n, n, small, CALM) for n in sorted(options.models))),
        Curve(
            "bytes",
            tuple(Point("bytes", n, least, n, CALM) for n in sorted(options.bodies)),
            beside_echo=True,
        ),
        Curve(
            "connections",
            tuple(Point("connections", n, least, small, n) for n in sorted(options.connections)),
            beside_echo=True,
        ),
    ]
    return [curve for curve in made if len(curve.points) > 1]


def queue_size(options: argparse.Namespace) -> int:
    """Room for every connection's request, so that none is refused."""
    most: int = max(options.connections)
    return max(1000, 2 * most)


def measure(curve: Curve, options: argparse.Namespace, queue: int) -> list[Sample]:
    """All points in turns; each number of models has a server of its own, side by side."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        counts = sorted({point.models for point in curve.points})
        servers = {
            count: stack.enter_context(
                grown_server(folder / str(count), count, options.others_workers, queue)
            )
            for count in counts
        }
        echo = stack.enter_context(echo_server(folder / "echo")) if curve.beside_echo else None
        takers: list[Callable[[int], Sample]] = []
        for point in curve.points:
            for server, whose in ((servers[point.models], OURS), (echo, ECHO)):
                if server is None:
                    continue
                run_load(load_of(server, point, options.warmup), options.client)
                takers.append(partial(take, server, point, whose, options.duration, options.client))
        return interleaved(options.reps, takers, tell)


@contextlib.contextmanager
def grown_server(folder: Path, models: int, others_workers: int, queue: int) -> Iterator[ModelServer]:
    """This server with so many models, the first of them with one worker."""
    store = folder / "store"
    store.mkdir(parents=True)
    archive = build_noop(store)
    with model_server(store, folder / "server", {"job_queue_size": queue}) as server:
        server.register(archive, NAME, batch_size=BATCH, batch_policy="adaptive")
        for other in range(1, models):
            server.register(archive, f"other{other}", batch_size=BATCH, initial_workers=others_workers)
        sample_answer(server, PATH, b"x")
        yield server


def load_of(server: Running, point: Point, seconds: float) -> Load:
    """The load of a point, with a body of its size."""
    return Load(server.url(PATH), b"x" * point.body, "application/octet-stream", point.connections, seconds)


def take(  # noqa: PLR0917 - bound by partial
    server: Running, point: Point, whose: str, seconds: float, client: Client, repetition: int
) -> Sample:
    """One measurement of one point."""
    taken = sample(server, load_of(server, point, seconds), label(point, whose), repetition, client)
    print(f"{label(point, whose)}: {memory_of(server.pid).rss_mb:.0f} MB resident", file=sys.stderr)
    return taken


def label(point: Point, whose: str = OURS) -> str:
    """A point in words."""
    return f"{point.size:,} {point.curve}{whose}"


def cost_ratio(samples: Sequence[Sample], point: Point, first: Point, whose: str = OURS) -> float | None:
    """A point's processor time per request by the first one's: median over repetitions; None if void."""
    return cpu_ratio(samples, named(label(point, whose)), named(label(first, whose)))


def added_cost(samples: Sequence[Sample], curve: Curve, whose: str = OURS) -> float | None:
    """What a request costs more at the end of a curve than at its beginning, in µs; None if void."""
    first, last = (named(label(curve.points[place], whose)) for place in (0, -1))
    pairs = cpu_pairs(samples, last, first)
    return statistics.median(a - b for a, b in pairs) if pairs else None


def mark(curve: Curve, samples: Sequence[Sample]) -> Mark:
    """What a curve may cost: bodies by their copies, all else hardly anything."""
    return copies_mark(curve, samples) if curve.title == "bytes" else flat_mark(curve, samples)


def copies_mark(curve: Curve, samples: Sequence[Sample]) -> Mark:
    """Bodies cost no more than their copies; void if a point is, or if they cost the echo nothing."""
    ours, echo = added_cost(samples, curve), added_cost(samples, curve, ECHO)
    times = ours / echo if ours is not None and echo is not None and echo > 0 else None
    span = f"{curve.points[0].size:,} to {curve.points[-1].size:,} {curve.title}"
    return Mark(f"added CPU per request, {span} / what the echo adds", times, "<=", COPIES)


def flat_mark(curve: Curve, samples: Sequence[Sample]) -> Mark:
    """The dearest point of a curve costs hardly more than its first; void if any point is."""
    first, *others = curve.points
    ratios = [cost_ratio(samples, point, first) for point in others]
    known = [each for each in ratios if each is not None]
    dearest = max(known) if len(known) == len(ratios) else None
    span = f"{first.size:,} to {curve.points[-1].size:,} {curve.title}"
    return Mark(f"CPU per request, {span}: dearest / first", dearest, "<=", FLAT)


def report(curve: Curve, samples: Sequence[Sample]) -> str:
    """A Markdown table of one curve, and what is wrong with it."""
    summary = {each.subject: each for each in figures(samples)}
    rows = []
    for point in curve.points:
        figure = summary[label(point)]
        cells = [number(value) for value in (figure.rate, figure.p50_ms, figure.p99_ms, figure.cpu_us)]
        cells.append(number(cost_ratio(samples, point, curve.points[0])))
        if curve.beside_echo:
            cells.append(number(summary[label(point, ECHO)].cpu_us))
            cells.append(number(cost_ratio(samples, point, curve.points[0], ECHO)))
        rows.append([f"{point.size:,}", *cells])
    headers = [curve.title, "requests/s", "p50 ms", "p99 ms", "server CPU-µs/request", "to first"]
    if curve.beside_echo:
        headers += ["echo's", "to first"]
    remarks = [*failure_lines(list(summary.values())), *noise_lines(list(summary.values()))]
    return "\n".join([f"## {curve.title}", "", table(headers, rows), "", *remarks, ""])


def save(
    out: Path | None, facts: dict[str, str], samples: dict[str, list[Sample]], marks: Sequence[Mark]
) -> None:
    """JSON and a picture of all curves, if a folder was given."""
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    summaries = {title: figures(taken) for title, taken in samples.items()}
    document = {"machine": facts, "curves": summaries, "marks": marks, "samples": samples}
    write_json(out / "growth.json", document)
    if not can_plot():
        print(WITHOUT)
        return
    lines = {
        title: [
            (float(figure.subject.split()[0].replace(",", "")), figure.cpu_us)
            for figure in summary
            if figure.cpu_us is not None and not figure.subject.endswith(ECHO)
        ]
        for title, summary in summaries.items()
    }
    plot_lines(out / "growth.png", "Cost as it grows", "how many", "server CPU-µs per request", lines)


if __name__ == "__main__":
    run(main)
