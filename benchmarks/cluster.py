"""What workers behind the network cost beside workers of the same machine, and beside Ray Serve.

One server for each way to a worker: the socket pair of a worker of the same machine, the local socket of
an agent's (with shared memory), TCP and TLS over loopback; with ``--peers`` also Ray Serve with
``@serve.batch``. All have the same model, batch and window and are asked in turns. Noise only ever adds:
figures are the best of the rounds.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.archives import build_mlp, build_noop
from benchmarks.load import Load, chosen, run_load
from benchmarks.lone import measure_lone
from benchmarks.measure import Figure, Sample, figures, interleaved, quotient, sample
from benchmarks.options import Measured, Options, common_parser, names, perform, program, tell
from benchmarks.peers.launch import SUBJECTS, Job, Setup
from benchmarks.peers.packages import PEERS, python_of, version_of
from benchmarks.report import Mark, number, table
from benchmarks.servers import QUEUE_SIZE, ModelServer, Running, call_well, model_server
from benchmarks.serving import served
from benchmarks.works import WORKS, Question, Work, raw_body
from modelserver.ext.cluster.node.dial import LOCAL_SOCKET

ORDER = PAIR, LOCAL, TCP, TLS, RAY = "socket pair", "local socket", "TCP", "TLS", "Ray Serve"
# What Ray Serve's guide advises for throughput, except HAProxy, which would listen on all interfaces.
RAY_VARIABLES = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"}
_NETWORK = {LOCAL_SOCKET: "0"}


@dataclass(frozen=True, slots=True)
class Way:
    """How frames reach a worker: settings of the server, and variables of its environment."""

    name: str
    settings: Mapping[str, str | int]
    variables: Mapping[str, str] = field(default_factory=dict)


WAYS = (
    Way(PAIR, {"worker_launcher": "local"}),
    Way(LOCAL, {"worker_launcher": "agents", "worker_tls": "off"}),
    Way(TCP, {"worker_launcher": "agents", "worker_tls": "off"}, _NETWORK),
    Way(TLS, {"worker_launcher": "agents"}, _NETWORK),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Requests with bodies of ``size`` bytes, 0 for the model's own, over so many connections."""

    title: str
    work: Work
    connections: int
    size: int = 0

    def load(self, port: int, path: str, seconds: float) -> Load:
        """The load of this row."""
        large = (b"x" * self.size, "application/octet-stream")
        question = Question(path, *(large if self.size else raw_body(self.work.kind, b"")))
        return Load(port, question, self.connections, seconds)


ROWS = {
    "noop_b32": Row("no-op, batch 32", WORKS["noop_b32"], 128),
    "noop_b1": Row("no-op, batch 1", WORKS["noop_b1"], 32),
    "100kB": Row("100 kB, batch 1", WORKS["noop_b1"], 8, 100_000),
    "1MB": Row("1 MB, batch 1", WORKS["noop_b1"], 4, 1_000_000),
    "mlp_b32": Row("MLP, batch 32", WORKS["mlp_b32"], 128),
}
# One request after another, to our own servers.
LONE = Row("A lone request, no-op", WORKS["noop_b1"], 1)
# What one way should reach beside another at the least, or cost at the most.
TITLES = {"rate": "requests/s", "cpu_us": "processor time"}
TARGETS: tuple[tuple[Row, str, str, str, Literal[">=", "<="], float], ...] = (
    (ROWS["noop_b32"], TCP, PAIR, "rate", ">=", 0.9),
    (ROWS["noop_b32"], TCP, PAIR, "cpu_us", "<=", 1.1),
    (ROWS["noop_b1"], TCP, PAIR, "rate", ">=", 0.7),
    (ROWS["1MB"], TCP, PAIR, "cpu_us", "<=", 1.5),
    (ROWS["1MB"], TLS, TCP, "cpu_us", "<=", 2.0),
    (ROWS["noop_b32"], TCP, RAY, "cpu_us", "<=", 0.2),
)


def parse(arguments: Sequence[str] | None) -> Options:
    """The command line."""
    parser = common_parser("cluster", __doc__, duration=3.0)
    add = parser.add_argument
    add("--peers", type=Path, help="measure Ray Serve, which is installed there, as well")
    add("--rows", type=names(ROWS), default=tuple(ROWS), help=f"default: {','.join(ROWS)}")
    ways = tuple(way.name for way in WAYS)
    add("--ways", type=names(ways), default=ways, help="some of them, with commas")
    add("--lone-requests", type=int, default=300, help="of each way in each round; default: 300")
    return parser.parse_args(arguments)


@program(parse)
def main(options: Options) -> int:
    """Measure and report; 1 if a figure is void or a server does not start."""
    rows = [ROWS[name] for name in options.rows]
    ways = [way for way in WAYS if way.name in options.ways]
    plan = [f"{row.title}: {', '.join(way.name for way in ways)}" for row in rows]
    facts = {
        "client": chosen(options.client),
        "servers": f"one worker each, job_queue_size={QUEUE_SIZE}, access log and metrics on",
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved; the best of them",
    }
    if options.peers is not None:
        facts[RAY] = str(version_of(python_of(options.peers, "rayserve"), PEERS["rayserve"].package))
    return perform(options, "Workers on other machines", facts, plan, partial(measure, rows, ways, options))


def measure(rows: Sequence[Row], ways: Sequence[Way], options: Options) -> Measured:
    """All rows; those of the same model, batch and window in turns. Raises BenchmarkError."""
    samples: list[Sample] = []
    for work in {row.work.name: row.work for row in rows}.values():
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            servers = started(stack, folder, work, ways, options)
            of_work = [row for row in rows if row.work == work]
            samples += interleaved(options.reps, _takers(servers, of_work, options), tell)
            if work == LONE.work:
                ours = [(name, *each) for name, each in servers.items() if name != RAY]
                takers = [partial(_take_lone, *each, options.lone_requests) for each in ours]
                samples += interleaved(options.reps, takers, tell)
    best = {each.subject: each for each in figures(samples, best=True)}
    with_lone = [*rows, *([LONE] if any(each.connections == 1 for each in samples) else [])]
    return samples, "\n".join(report(row, best) for row in with_lone), marks(best)


def started(
    stack: contextlib.ExitStack, folder: Path, work: Work, ways: Sequence[Way], options: Options
) -> dict[str, tuple[Running, str]]:
    """A server for each way, with the path that is asked. Raises BenchmarkError."""
    servers: dict[str, tuple[Running, str]] = {}
    for way in ways:
        server = stack.enter_context(our_server(folder / way.name.replace(" ", "-"), work, way))
        servers[way.name] = server, f"/predictions/{work.kind}"
    if options.peers is not None:
        ray = folder / "ray"
        ray.mkdir()
        launch = SUBJECTS["rayserve"].launch(Job(work, ray, Setup(folder, options.peers)))
        launch = replace(launch, variables={**launch.variables, **RAY_VARIABLES})
        server = stack.enter_context(served(launch, ray)).running
        servers[RAY] = server, launch.question.path
    return servers


@contextlib.contextmanager
def our_server(folder: Path, work: Work, way: Way) -> Iterator[ModelServer]:
    """A server with the work's model, whose worker is reached this way. Raises BenchmarkError."""
    store = folder / "store"
    archive = build_noop(store) if work.kind == "noop" else build_mlp(store)
    with model_server(store, folder / "server", way.settings, variables=way.variables) as server:
        server.register(archive, work.kind, batch_size=work.batch, max_batch_delay=work.delay_ms)
        call_well(server.port, "POST", f"/predictions/{work.kind}", raw_body(work.kind, b"")[0])
        yield server


def _takers(
    servers: Mapping[str, tuple[Running, str]], rows: Sequence[Row], options: Options
) -> list[Callable[[int], Sample]]:
    takers: list[Callable[[int], Sample]] = []
    for row in rows:
        for name, (server, path) in servers.items():
            load = row.load(server.port, path, options.duration)
            run_load(replace(load, seconds=options.warmup), options.client)
            takers.append(partial(sample, server, load, label(row, name), client=options.client))
    return takers


def _take_lone(name: str, server: Running, path: str, requests: int, repetition: int) -> Sample:
    seen = measure_lone(server.port, LONE.load(server.port, path, 0.0).question, requests)
    failures = {"failed": seen.failures} if seen.failures else {}
    p50_ms = seen.client_p50_ms
    return Sample(label(LONE, name), 1, repetition, 1e3 / p50_ms, p50_ms, failures=failures)


def label(row: Row, way: str) -> str:
    """The subject of a sample."""
    return f"{row.title}: {way}"


def report(row: Row, best: Mapping[str, Figure]) -> str:
    """A Markdown table of a row; of lone requests only the latency."""
    by_way = {way: best[label(row, way)] for way in ORDER if label(row, way) in best}
    to = (by_way[PAIR].rate, by_way[PAIR].cpu_us) if PAIR in by_way else (None, None)
    headers = ["way", "requests/s", "to the pair", "CPU-µs/request", "to the pair", "p50 ms"]
    title = f"## {row.title}, {row.connections} connections"
    lines = []
    for name, mine in by_way.items():
        to_rate, to_cpu = map(quotient, (mine.rate, mine.cpu_us), to)
        lines.append([name, *map(number, (mine.rate, to_rate, mine.cpu_us, to_cpu, mine.p50_ms))])
    if row is LONE:
        title, headers, lines = f"## {row.title}", ["way", "p50 ms"], [[each[0], each[-1]] for each in lines]
    return "\n".join([title, "", table(headers, lines), ""])


def marks(best: Mapping[str, Figure]) -> list[Mark]:
    """What the ways should cost; of rows and ways that were measured."""
    group = []
    for row, way, to, what, relation, target in TARGETS:
        mine, other = best.get(label(row, way)), best.get(label(row, to))
        if mine and other:
            value = quotient(getattr(mine, what), getattr(other, what))
            group.append(Mark(f"{row.title}: {TITLES[what]} by {way} / {to}", value, relation, target))
    tcp, pair = best.get(label(LONE, TCP)), best.get(label(LONE, PAIR))
    if tcp and pair:
        more = None if tcp.p50_ms is None or pair.p50_ms is None else tcp.p50_ms - pair.p50_ms
        group.append(Mark("a lone request by TCP, more than by the socket pair", more, "<=", 0.1, " ms"))
    return group


if __name__ == "__main__":
    raise SystemExit(main())
