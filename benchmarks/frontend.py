"""What the server adds to a request: a handler that does nothing, against the least that HTTP costs.

One run measures, with the same client on the same machine and interleaved, bare uvicorn with an echo
application and this server with a no-op handler at batch 1 and 32. Access log and metrics are on.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.archives import build_noop
from benchmarks.load import Load, chosen, run_load
from benchmarks.lone import Lone, idle_share, measure_lone, worst_added
from benchmarks.measure import Figure, Sample, figures, interleaved, of, ratio, sample
from benchmarks.options import common_parser, numbers, run, tell, tells_failures
from benchmarks.report import Mark, failure_lines, heading, machine, noise_lines, number, table, write_json
from benchmarks.servers import QUEUE_SIZE, Running, echo_server, model_server, sample_answer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

BODY = bytes(range(64))
PATH = "/predictions/noop"
ECHO = "echo"
WINDOW_MS = 5
LONE_BATCH = 8
PAUSES = (0.0, 0.02)  # seconds


@dataclass(frozen=True, slots=True)
class Setup:
    """A way to register the no-op model."""

    name: str
    batch_size: int
    parameters: dict[str, str | int] = field(default_factory=dict)


BATCH_1 = Setup("batch 1", 1)
WINDOW_32 = Setup(f"batch 32, window {WINDOW_MS} ms", 32, {"max_batch_delay": WINDOW_MS})
ADAPTIVE_32 = Setup("batch 32, adaptive", 32, {"batch_policy": "adaptive"})
SETUPS = (BATCH_1, WINDOW_32, ADAPTIVE_32)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common_parser("benchmarks.frontend", __doc__, duration=5.0)
    parser.add_argument("--connections", type=numbers, default=(1, 8, 32, 128), help="default: 1,8,32,128")
    parser.add_argument("--lone-requests", type=int, default=200, help="of the lone client (default: 200)")
    parser.add_argument("--idle-seconds", type=float, default=10.0, help="of watching idle (default: 10)")
    return parser.parse_args(arguments)


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a figure is void or a server does not start."""
    options = parse(arguments)
    facts = machine() | {
        "client": chosen(options.client),
        "body": f"{len(BODY)} bytes to {PATH}",
        "job_queue_size": str(QUEUE_SIZE),
        "access log and metrics": "on, as shipped (the echo has neither)",
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    print(heading("Front end", facts))
    if options.dry_run:
        print("\n".join(f"{name} at {options.connections}" for name in (ECHO, *(s.name for s in SETUPS))))
        return 0
    samples, (lone, idle) = measure_throughput(options), measure_quiet(options)
    summary = figures(samples)
    marks = [*throughput_marks(samples, options.connections), *quiet_marks(lone, idle)]
    print_report(summary, samples, lone, idle, marks)
    document: dict[str, object] = {
        "machine": facts,
        "figures": summary,
        "ratios": ratios(samples, summary),
        "lone": lone,
    }
    document |= {"idle_percent": idle, "marks": marks, "samples": samples}
    write_json(options.out, document)
    return 1 if any(figure.void for figure in summary) or any(each.failures for each in lone) else 0


@contextlib.contextmanager
def noop_server(folder: Path, setup: Setup) -> Iterator[Running]:
    """This server with the no-op model registered as ``setup`` says, in a folder of its own."""
    store = folder / "store"
    store.mkdir(parents=True)
    archive = build_noop(store)
    with model_server(store, folder / "server") as server:
        server.register(archive, "noop", batch_size=setup.batch_size, **setup.parameters)
        sample_answer(server, PATH, BODY)
        yield server


def measure_throughput(options: argparse.Namespace) -> list[Sample]:
    """Echo and setups side by side, each at each number of connections, again and again."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        servers = {ECHO: stack.enter_context(echo_server(folder / "echo"))}
        for number_, setup in enumerate(SETUPS):
            servers[setup.name] = stack.enter_context(noop_server(folder / f"setup-{number_}", setup))
        for server in servers.values():
            run_load(_load(server, max(options.connections), options.warmup), options.client)
        takers: list[Callable[[int], Sample]] = [
            partial(take, server, name, connections, options)
            for connections in options.connections
            for name, server in servers.items()
        ]
        return interleaved(options.reps, takers, tell)


def take(
    server: Running, name: str, connections: int, options: argparse.Namespace, repetition: int
) -> Sample:
    """One measurement of one server."""
    load = _load(server, connections, options.duration)
    return sample(server, load, name, repetition, options.client)


def _load(server: Running, connections: int, seconds: float) -> Load:
    return Load(server.url(PATH), BODY, "application/octet-stream", connections, seconds)


def measure_quiet(options: argparse.Namespace) -> tuple[list[Lone], float]:
    """The lone client with handlers of 0 and 5 ms; the idle server's share of a core in percent."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        store = folder / "store"
        store.mkdir()
        handlers = {"noop": 0.0, "sleep5": 0.005}
        archives = {each: build_noop(store, each, seconds) for each, seconds in handlers.items()}
        with model_server(store, folder / "server") as server:
            for each, archive in archives.items():
                server.register(archive, each, batch_size=LONE_BATCH, batch_policy="adaptive")
            lone = [
                measure_lone(server, each, BODY, options.lone_requests, pause=pause)
                for each in handlers
                for pause in PAUSES
            ]
            return lone, idle_share(server, options.idle_seconds)


def throughput_marks(samples: Sequence[Sample], connections: Sequence[int]) -> list[Mark]:
    """What the throughput should be, for the connections that were measured."""
    wanted = [(setup, at, 0.5) for at in (32, 128) for setup in (WINDOW_32, ADAPTIVE_32) if at in connections]
    wanted += [(BATCH_1, at, 0.35) for at in (32, 128) if at in connections]
    return [
        Mark(f"{setup.name} at {at} connections / echo", to_echo(samples, setup.name, at), ">=", target)
        for setup, at, target in wanted
    ]


def quiet_marks(lone: Sequence[Lone], idle: float) -> list[Mark]:
    """What a lone request and an idle server may cost."""
    return [
        Mark(f"lone request, adaptive, batch {LONE_BATCH}: added time", worst_added(lone), "<", 3.0, " ms"),
        Mark("idle server", idle, "<", 1.0, " % of a core"),
    ]


def to_echo(samples: Sequence[Sample], name: str, connections: int) -> float | None:
    """The ratio to the echo at the same number of connections, None if void."""
    return ratio(samples, of(name, connections), of(ECHO, connections))


def ratios(samples: Sequence[Sample], summary: Sequence[Figure]) -> list[dict[str, object]]:
    """All ratios to the echo, for JSON."""
    return [
        {
            "subject": each.subject,
            "connections": each.connections,
            "to_echo": to_echo(samples, each.subject, each.connections),
        }
        for each in summary
        if each.subject != ECHO
    ]


def print_report(
    summary: Sequence[Figure],
    samples: Sequence[Sample],
    lone: Sequence[Lone],
    idle: float,
    marks: Sequence[Mark],
) -> None:
    """Tables and marks on standard output."""
    headers = ["subject", "connections", "requests/s", "p50 ms", "p99 ms", "server CPU-µs/request", "to echo"]
    rows = [
        [
            each.subject,
            str(each.connections),
            *(number(value) for value in (each.rate, each.p50_ms, each.p99_ms, each.cpu_us)),
            "1" if each.subject == ECHO else number(to_echo(samples, each.subject, each.connections)),
        ]
        for each in summary
    ]
    print(table(headers, rows))
    print(f"\nA lone client, adaptive, batch {LONE_BATCH}:\n")
    headers = ["handler", "pause ms", "client p50 ms", "client p99 ms", "handler p50 ms", "added ms"]
    print(table(headers, [_lone_row(each) for each in lone]))
    print(f"\nIdle: {number(idle)} % of a core\n")
    print("\n".join([*map(str, marks), *failure_lines(summary), *noise_lines(summary)]))


def _lone_row(lone: Lone) -> list[str]:
    values = (lone.client_p50_ms, lone.client_p99_ms, lone.handler_p50_ms, lone.added_ms)
    return [lone.handler, f"{lone.pause_ms:g}", *(number(None if lone.failures else v) for v in values)]


if __name__ == "__main__":
    run(main)
