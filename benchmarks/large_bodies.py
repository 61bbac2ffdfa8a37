"""What shared memory gives to large bodies and answers, beside the socket that carries the small ones.

First between server and worker alone (``benchmarks.wire``), then with HTTP: two servers side by side, one of
them without shared memory, with workers that do nothing. One model answers few bytes, the other what it got.
The points are measured in turns and repeated.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import wire
from benchmarks.archives import build_noop
from benchmarks.load import Client, Load, chosen, run_load
from benchmarks.measure import Sample, cpu_ratio, figures, interleaved, named, ratio, sample
from benchmarks.options import common_parser, numbers, run, tell, tells_failures
from benchmarks.report import failure_lines, heading, machine, noise_lines, number, table, write_json
from benchmarks.servers import BenchmarkError, ModelServer, call, model_server, running_first
from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

SIZES = (1_000, 10_000, 100_000, 200_000, 602_000, 1_500_000, 5_000_000)
WAYS = ("socket", "memory")
MODELS = {"noop": "a few bytes", "same": "the body"}
SAME = """
def handle(data, context):
    return [row["body"] for row in data or []]
"""
# What Python runs before the server that is to have no shared memory.
REFUSE = """
import os

def refuse(*_):
    raise OSError("no shared memory in this benchmark")

os.memfd_create = refuse
"""


@dataclass(frozen=True, slots=True)
class Point:
    """Bodies of ``size`` bytes for a model, which reach it on one of the ways."""

    model: str
    size: int
    way: str

    def __str__(self) -> str:
        return f"{self.size:,} bytes, answered with {MODELS[self.model]}, by {self.way}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common_parser("benchmarks large_bodies", __doc__, duration=2.0)
    add = parser.add_argument
    add("--sizes", type=numbers, default=SIZES, help=f"bytes; default: {','.join(map(str, SIZES))}")
    add("--connections", type=int, default=4, help="default: 4")
    add("--turns", type=int, default=60, help="of each way between server and worker; default: 60")
    add("--no-http", action="store_true", help="only between server and worker, which takes half a minute")
    return parser.parse_args(arguments)


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a figure is void or a server does not start."""
    options = parse(arguments)
    points = [Point(model, size, way) for model in MODELS for size in options.sizes for way in WAYS]
    facts = machine() | {
        "client": chosen(options.client),
        "handlers": "no-op, batch 1, one worker each",
        "connections": str(options.connections),
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    print(heading("Large bodies", facts))
    if options.dry_run:
        print("\n".join(map(str, points)))
        return 0
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        alone = wire.compare(Path(folder), options.sizes, options.turns)
    print(wire_report(alone))
    if options.no_http:
        return 0
    samples = measure(points, options)
    for model in MODELS:
        print(report(model, options.sizes, samples))
    write_json(
        options.out, {"machine": facts, "wire": alone, "figures": figures(samples), "samples": samples}
    )
    return 1 if any(figure.void for figure in figures(samples)) else 0


def measure(points: Sequence[Point], options: argparse.Namespace) -> list[Sample]:
    """All points in turns."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        servers = {way: stack.enter_context(started(folder / way, way)) for way in WAYS}
        for point in points:
            run_load(load_of(servers, point, options.connections, options.warmup / 4), options.client)
        takers: list[Callable[[int], Sample]] = [
            partial(
                take,
                servers,
                point,
                load_of(servers, point, options.connections, options.duration),
                options.client,
            )
            for point in points
        ]
        return interleaved(options.reps, takers, tell)


@contextlib.contextmanager
def started(folder: Path, way: str) -> Iterator[ModelServer]:
    """A server with both models, with or without shared memory. Raises BenchmarkError."""
    store = folder / "store"
    store.mkdir(parents=True)
    build_noop(store)
    (store / "same.py").write_text(SAME, "utf-8")
    build_archive(ArchiveConfig("same", str(store / "same.py"), "1.0", export_path=store, force=True))
    limits = {"max_request_size": 1 << 30, "max_response_size": 1 << 30}
    with contextlib.ExitStack() as stack:
        with running_first(folder, REFUSE) if way == "socket" else contextlib.nullcontext():
            server = stack.enter_context(model_server(store, folder / "server", limits))
        for model in MODELS:
            server.register(f"{model}.mar", model, batch_size=1)
            check(server, model)
        yield server


def check(server: ModelServer, model: str) -> None:
    """Raises BenchmarkError if the model does not do what it is for."""
    body = os.urandom(1_000_000)
    status, answer = call(server.port, "POST", f"/predictions/{model}", body)
    if status != 200 or (answer == body) != (model == "same"):
        raise BenchmarkError(f"{model} answered {status} with {len(answer)} bytes")


def load_of(servers: Mapping[str, ModelServer], point: Point, connections: int, seconds: float) -> Load:
    """The load of a point."""
    url = servers[point.way].url(f"/predictions/{point.model}")
    return Load(url, b"x" * point.size, "application/octet-stream", connections, seconds)


def take(
    servers: Mapping[str, ModelServer], point: Point, load: Load, client: Client, repetition: int
) -> Sample:
    """One measurement of one point."""
    return sample(servers[point.way], load, str(point), repetition, client)


def wire_report(found: Sequence[wire.Comparison]) -> str:
    """A Markdown table of what server and worker need alone."""
    rows = [
        [
            f"{each.size:,}",
            MODELS[each.handler],
            *(number(cost.cpu * 1e6) for cost in (each.socket, each.memory)),
            number(each.socket.cpu / each.memory.cpu),
            *(number(cost.seconds * 1e6) for cost in (each.socket, each.memory)),
            number(each.socket.seconds / each.memory.seconds),
        ]
        for each in found
    ]
    headers = ["bytes", "answer", "CPU-µs, socket", "memory", "ratio", "µs, socket", "memory", "ratio"]
    return "\n".join(["## Between server and worker", "", table(headers, rows), ""])


def report(model: str, sizes: Sequence[int], samples: Sequence[Sample]) -> str:
    """A Markdown table of one model, and what is wrong with it."""
    summary = {each.subject: each for each in figures(samples)}
    rows, used = [], []
    for size in sizes:
        socket, memory = (Point(model, size, way) for way in WAYS)
        pair = [summary[str(socket)], summary[str(memory)]]
        faster, cheaper = (
            ratio(samples, named(memory), named(socket)),
            cpu_ratio(samples, named(socket), named(memory)),
        )
        cells = [pair[0].rate, pair[1].rate, faster, pair[0].cpu_us, pair[1].cpu_us, cheaper]
        rows.append([f"{size:,}", *map(number, cells)])
        used += pair
    headers = ["bytes", "requests/s, socket", "memory", "ratio", "CPU-µs/request, socket", "memory", "ratio"]
    remarks = [*failure_lines(used), *noise_lines(used)]
    return "\n".join([f"## Answered with {MODELS[model]}", "", table(headers, rows), "", *remarks, ""])


if __name__ == "__main__":
    run(main)
