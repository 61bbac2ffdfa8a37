"""What access log and metrics cost: the server as shipped beside the same server without either.

A handler that does nothing, one by one and in batches, so that what the server itself does is all there is;
batches by a window, which fills them alike. The servers are measured in turns, and beside them another one
like the one without: what these two differ by is chance. No setting turns the counters off: in the servers
without, the calls that count a request, and those that note its line, are replaced by ones that do nothing.
Marks: at most 5 % fewer requests per second, and at most 5 % more processor time per request, than without.

With ``--tracing``: what traces of each hundredth request cost beside the server as shipped; at most 5 % of
its requests per second.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.archives import build_noop
from benchmarks.load import Load, chosen, run_load
from benchmarks.measure import Sample, cpu_ratio, figures, interleaved, named, ratio, sample
from benchmarks.options import common_parser, numbers, run, tell, tells_failures
from benchmarks.report import Mark, failure_lines, heading, machine, noise_lines, number, table, write_json
from benchmarks.servers import BenchmarkError, ModelServer, model_server, running_first, sample_answer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.load import Client

BATCHES = (1, 32)
COST = 0.05  # of the server without, at most
# What each server has, beside what is shipped.
WAYS: dict[str, dict[str, str | int]] = {
    "off": {"disable_system_metrics": "true"},
    "off again": {"disable_system_metrics": "true"},
    "on": {},
    "background": {"async_logging": "true"},
    "log mode": {"metrics_mode": "log"},
    "traced": {"otel": "traces"},
}
MEANING = {
    "off": "neither access log nor metrics",
    "off again": "another one without",
    "on": "as shipped",
    "background": "as shipped, async_logging=true",
    "log mode": "metrics_mode=log",
    "traced": "as shipped, otel=traces of 1 %",
}
SHIPPED = ("off", "off again", "on")
TRACED = ("on", "traced")
SILENT = SHIPPED[:2]
WINDOW: dict[str, str | int] = {"batch_policy": "window", "max_batch_delay": 5}
# What Python runs before the server that is to have neither.
SILENCE = """
import sys

if "--start" in sys.orig_argv:
    from modelserver.engine.telemetry.access import AccessLog
    from modelserver.engine.telemetry.metrics import ModelMetrics, ServerMetrics

    def nothing(*_):
        pass

    AccessLog.log = ServerMetrics.response = nothing
    for name in ("request", "answered", "queue_wait", "batch"):
        assert hasattr(ModelMetrics, name)
        setattr(ModelMetrics, name, nothing)
"""


@dataclass(frozen=True, slots=True)
class Point:
    """Batches of one size at the server of one way."""

    batch_size: int
    way: str

    def __str__(self) -> str:
        return f"batch {self.batch_size}, {self.way}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common_parser("benchmarks observability", __doc__, duration=4.0)
    add = parser.add_argument
    add("--batches", type=numbers, default=BATCHES, help="default: 1,32")
    add("--connections", type=int, default=64, help="default: 64")
    add("--all", action="store_true", help="async_logging and metrics_mode=log too, which have no marks")
    add("--tracing", action="store_true", help="traces of each hundredth request instead")
    return parser.parse_args(arguments)


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if requests failed or a server does not start. A missed mark is told."""
    options = parse(arguments)
    ways = tuple(way for way in WAYS if way not in TRACED[1:]) if options.all else SHIPPED
    if options.tracing:
        ways = TRACED
    points = [Point(size, way) for size in options.batches for way in ways]
    facts = machine() | {
        "client": chosen(options.client),
        "handler": "no-op, one worker",
        "connections": str(options.connections),
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    print(heading("Access log and metrics", facts))
    if options.dry_run:
        print("\n".join(f"{point} ({MEANING[point.way]})" for point in points))
        return 0
    samples = measure(points, options)
    print(report(points, samples))
    write_json(
        options.out, {"machine": facts, "figures": figures(samples), "marks": marks(points, samples),
                      "samples": samples}
    )  # fmt: skip
    return 1 if any(figure.void for figure in figures(samples)) else 0


def measure(points: Sequence[Point], options: argparse.Namespace) -> list[Sample]:
    """All points in turns. Raises BenchmarkError."""
    sizes = tuple(dict.fromkeys(point.batch_size for point in points))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        servers = {
            way: stack.enter_context(started(folder / way.replace(" ", "-"), way, sizes))
            for way in dict.fromkeys(point.way for point in points)
        }
        for point in points:
            run_load(load_of(servers, point, options.connections, options.warmup), options.client)
        takers = [
            partial(
                take, servers, point, load_of(servers, point, options.connections, options.duration),
                options.client,
            )
            for point in points
        ]  # fmt: skip
        return interleaved(options.reps, takers, tell)


@contextlib.contextmanager
def started(folder: Path, way: str, sizes: Sequence[int]) -> Iterator[ModelServer]:
    """A server with the no-op model at each batch size. Raises BenchmarkError."""
    store = folder / "store"
    store.mkdir(parents=True)
    archive = build_noop(store)
    with contextlib.ExitStack() as stack:
        with running_first(folder, SILENCE) if way in SILENT else contextlib.nullcontext():
            variables = {} if way != "traced" else stack.enter_context(collector())
            server = stack.enter_context(
                model_server(store, folder / "server", WAYS[way], variables=variables)
            )
        for size in sizes:
            server.register(archive, f"batch{size}", batch_size=size, **WINDOW if size > 1 else {})
            sample_answer(server, f"/predictions/batch{size}", b"x")
        check(server, way)
        yield server


@contextlib.contextmanager
def collector() -> Iterator[dict[str, str]]:
    """Takes traces and keeps none of them; the variables that make a server send those of 1 % there."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as taking:
        taking.daemon_threads = True
        threading.Thread(target=taking.serve_forever, daemon=True).start()
        yield {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{taking.server_address[1]}",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.01",
        }
        taking.shutdown()


def check(server: ModelServer, way: str) -> None:
    """Raises BenchmarkError if requests are noted where they should not be, or not where they should."""
    file = server.folder / "logs" / "access_log.log"
    for _ in range(20):
        # Lines are written a few times a second.
        time.sleep(0.05 if way in SILENT else 0.1)
        noted = file.read_text("utf-8").count("POST /predictions/")
        if noted and way not in SILENT:
            return
    if (way in SILENT) != (noted == 0):
        raise BenchmarkError(f"the server {way!r} noted {noted} requests")


def load_of(servers: Mapping[str, ModelServer], point: Point, connections: int, seconds: float) -> Load:
    """The load of a point."""
    url = servers[point.way].url(f"/predictions/batch{point.batch_size}")
    return Load(url, b"x" * 64, "application/octet-stream", connections, seconds)


def take(
    servers: Mapping[str, ModelServer], point: Point, load: Load, client: Client, repetition: int
) -> Sample:
    """One measurement of one point."""
    return sample(servers[point.way], load, str(point), repetition, client)


def marks(points: Sequence[Point], samples: Sequence[Sample]) -> list[Mark]:
    """Both marks of each batch size, or that of traces."""
    found = []
    for point in points:
        shipped, without = Point(point.batch_size, "on"), Point(point.batch_size, "off")
        if point.way == "traced":
            rate = ratio(samples, named(point), named(shipped))
            found.append(Mark(f"batch {point.batch_size}: requests/s to as shipped", rate, ">=", 1 - COST))
        elif point.way == "on" and without in points:
            rate, cpu = (
                ratio(samples, named(point), named(without)),
                cpu_ratio(samples, named(point), named(without)),
            )
            found.append(Mark(f"batch {point.batch_size}: requests/s to off", rate, ">=", 1 - COST))
            found.append(Mark(f"batch {point.batch_size}: CPU/request to off", cpu, "<=", 1 + COST))
    return found


def report(points: Sequence[Point], samples: Sequence[Sample]) -> str:
    """A Markdown table, the marks, and what is wrong with the figures."""
    summary = {each.subject: each for each in figures(samples)}
    rows = []
    for point in points:
        figure, without = summary[str(point)], Point(point.batch_size, points[0].way)
        rows.append(
            [
                str(point.batch_size),
                MEANING[point.way],
                number(figure.rate),
                number(ratio(samples, named(point), named(without))),
                number(figure.cpu_us),
                number(cpu_ratio(samples, named(point), named(without))),
            ]
        )
    to = f"to {points[0].way}"
    heads = ["batch", "server", "requests/s", to, "CPU-µs/request", to]
    lines = map(str, marks(points, samples))
    remarks = [*failure_lines([*summary.values()]), *noise_lines([*summary.values()])]
    return "\n".join([table(heads, rows), "", *lines, "", *remarks])


if __name__ == "__main__":
    run(main)
