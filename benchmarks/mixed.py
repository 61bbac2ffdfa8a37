"""Short requests among slow ones: what the server makes of them, beside the ideal single queue.

A real server with a model that sleeps as many seconds as the body says, a batch as long as the longest of
its rows. Requests come at random (Poisson), whether or not earlier ones were answered. A load is a share of
what the workers answer in full batches.

What is ideal is computed for the same arrivals and durations: one queue, from which whoever is free takes up
to a batch of the oldest at once, and nothing else costs any time. In parentheses: each batch takes its way as
well, which is what a lone request takes beside its handler (the median).

A request is held up if it waits at a busy worker while another one is idle for more than a millisecond and
that way, and afterwards begins nothing that came before: so it was not in the queue, which gives out the
oldest. It must be so both from when the client sent the requests and from when the server had them (by its
``server-timing``), for a machine that keeps one of them from running changes their order, or last longer than
any machine does that. Beside that stands
the longest that it lasted since the sending, and the longest for which any worker was idle before it began
what had been sent: these count the delays of client, server and machine, too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.archives import build_handler
from benchmarks.load import percentile
from benchmarks.measure import Sample
from benchmarks.open_loop import Answer, Seen, run_open_loop
from benchmarks.options import Measured, Options, common_parser, listed, numbers, perform, program, say
from benchmarks.paced import poisson
from benchmarks.peers.launch import Job, Setup, torchserve
from benchmarks.peers.packages import PEERS, missing
from benchmarks.report import Mark, number, table
from benchmarks.servers import BenchmarkError, ModelServer, model_server, running
from benchmarks.single_queue import Served, idle_before, passed_over, single_queue
from benchmarks.works import WORKS, Question

NAME = "sleeper"
PATH = f"/predictions/{NAME}"
_HANDLER = '''"""Sleeps as many seconds as the longest of a batch's bodies says."""

import os
import time


def handle(data, context):
    if data is None:
        return None
    began = time.monotonic()
    time.sleep(max(float(row["body"]) for row in data))
    return [{"worker": os.getpid(), "began": began, "ended": time.monotonic()}] * len(data)
'''
SHORT, LONG = 0.020, 2.0  # seconds
SIGMA = 1.5
WITHIN = 1.1
IDLE = 0.001  # seconds that another worker may be idle
STALL_MS = 100.0  # for which a machine may keep a process from running; a long request lasts longer
OURS, TORCHSERVE = "modelserver", "TorchServe"


def bimodal(count: int, chance: Random) -> list[float]:
    """One in a hundred is long, at least one, the others are short."""
    slow = set(chance.sample(range(count), max(1, round(count / 100))))
    return [LONG if place in slow else SHORT for place in range(count)]


def lognormal(count: int, chance: Random) -> list[float]:
    """Around a median of ``SHORT``."""
    return [SHORT * chance.lognormvariate(0.0, SIGMA) for _ in range(count)]


KINDS: dict[str, Callable[[int, Random], list[float]]] = {"bimodal": bimodal, "lognormal": lognormal}


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement."""

    workers: int
    batch_size: int
    kind: str
    load: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        durations = KINDS[self.kind](20_000, Random(0))
        size = self.batch_size
        full = statistics.fmean(max(durations[at : at + size]) for at in range(0, len(durations), size))
        return self.load * self.workers * size / full

    def __str__(self) -> str:
        return f"{self.workers} workers, batch {self.batch_size}, {self.kind} at {self.load:g}"


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of the short requests, in ms."""

    p50: float
    p99: float
    longest: float

    def to(self, other: Latencies) -> tuple[float, float, float]:
        """As shares of the other's."""
        return self.p50 / other.p50, self.p99 / other.p99, self.longest / other.longest


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured. ``same_way``: the ideal that takes ``way_ms`` for each batch; ``held_ms``: the
    longest for which a request was held up since it was sent, ``idle_ms`` for which a worker did not begin
    what was sent to it.
    """

    server: str
    case: Case
    requests: int
    measured: Latencies
    ideal: Latencies
    same_way: Latencies
    held_up: int
    held_ms: float
    idle_ms: float
    way_ms: float
    failures: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.server}, {self.case}"

    def sample(self) -> Sample:
        """The same as of other programs."""
        return Sample(
            str(self), 0, 0, self.case.rate, self.measured.p50, self.measured.p99, failures=self.failures
        )


def parse(arguments: Sequence[str] | None) -> Options:
    """The command line."""
    parser = common_parser("mixed", __doc__, duration=15.0, reps=0, loads=False)
    add = parser.add_argument
    shares = listed(float, lambda each: 0 < each < 1, "shares between 0 and 1")
    add("--workers", type=numbers, default=(2, 4), help="default: 2,4")
    add("--batches", type=numbers, default=(1, 8), help="batch sizes (default: 1,8)")
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of durations (default: all)")
    add("--loads", type=shares, default=(0.3, 0.6, 0.85), help="default: 0.3,0.6,0.85")
    add("--peers", type=Path, help="measure TorchServe, which is installed there, as well")
    add("--seed", type=int, default=1, help="of arrivals and durations (default: 1)")
    return parser.parse_args(arguments)


@program(parse)
def main(options: Options) -> int:
    """Measure and report; 1 if the server does not start or a request fails."""
    facts = {
        "durations": f"bimodal: 99 % {SHORT * 1e3:g} ms, 1 % {LONG:g} s; "
        f"lognormal: median {SHORT * 1e3:g} ms, sigma {SIGMA:g}",
        "short requests": "bimodal: all but the long ones; lognormal: those below the median",
        "measurements": f"{options.duration:g} s each, seed {options.seed}, policy greedy",
    }
    rows: list[Row] = []
    plan = [f"{case}: {number(case.rate)} requests/s" for case in cases(options)]
    measured = partial(measure_all, options, rows)
    return perform(options, "Mixed durations", facts, plan, measured, more={"rows": rows})


def cases(options: Options) -> list[Case]:
    """All combinations."""
    every = itertools.product(options.workers, options.batches, options.kinds, options.loads)
    return [Case(*each) for each in every]


def measure_all(options: Options, rows: list[Row]) -> Measured:
    """Every case on each server, one after another, which become ``rows``. Raises BenchmarkError."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, contextlib.ExitStack() as stack:
        store = Path(folder) / "store"
        archive = build_handler(store, NAME, _HANDLER)
        servers = {OURS: stack.enter_context(model_server(store, Path(folder) / "server"))}
        if options.peers is not None:
            there = torchserve_server(options.peers, store, archive, Path(folder) / "torchserve")
            servers[TORCHSERVE] = stack.enter_context(there)
        grouped = itertools.groupby(cases(options), key=lambda case: (case.workers, case.batch_size))
        for (workers, batch_size), some in grouped:
            group = list(some)
            for name, server in servers.items():
                with registered(server, archive, workers, batch_size):
                    for case in group:
                        row = measure(name, server, case, options.duration, options.seed)
                        say(f"{row}: p50 {number(row.measured.p50)} ms, held up {row.held_up}")
                        rows.append(row)
    return [row.sample() for row in rows], report(rows), marks_of(rows)


@contextlib.contextmanager
def torchserve_server(peers: Path, store: Path, archive: str, folder: Path) -> Iterator[ModelServer]:
    """TorchServe as shipped; it is registered with as we are. Raises BenchmarkError."""
    if (why := missing(peers, PEERS["torchserve"])) is not None:
        raise BenchmarkError(why)
    folder.mkdir()
    work = WORKS["noop_b1"]
    launch = torchserve(Job(work, folder, Setup(store, peers, {work.kind: archive})))
    assert launch.registration is not None
    with running(launch.command, launch.port, folder, launch.variables, health=launch.health) as server:
        yield ModelServer(server.pid, server.port, folder, launch.registration[0])


@contextlib.contextmanager
def registered(server: ModelServer, archive: str, workers: int, batch_size: int) -> Iterator[None]:
    """With that many workers, which wait for nothing to fill a batch: a millisecond is TorchServe's least."""
    waits: dict[str, str | int] = {"batch_policy": "greedy", "max_batch_delay": 1}
    server.register(archive, NAME, batch_size=batch_size, initial_workers=workers, **waits)
    try:
        yield
    finally:
        server.unregister(NAME)


def measure(name: str, server: ModelServer, case: Case, seconds: float, seed: int) -> Row:
    """One load on a registered model. Raises BenchmarkError for no answers."""
    chance = Random(seed)
    arrivals = poisson(case.rate, seconds, chance)
    durations = KINDS[case.kind](len(arrivals), chance)
    lone = run_open_loop(server.port, [request(0.001)] * 20, [place * 0.03 for place in range(20)])
    seen = run_open_loop(server.port, list(map(request, durations)), arrivals)
    if not seen.answers or not lone.answers:
        raise BenchmarkError(f"nothing was answered: {seen.failures or lone.failures}")
    return row_of(name, case, seen, durations, way_of(lone))


def request(seconds: float) -> bytes:
    """One that takes so long."""
    return Question(PATH, b"%.6f" % seconds, "application/octet-stream").message()


def way_of(lone: Seen) -> float:
    """The median of what a lone request takes beside its handler, in seconds."""
    times = [served(each, lone) for each in lone.answers]
    return statistics.median(
        answer.latency - (each.ended - each.began) for answer, each in zip(lone.answers, times, strict=True)
    )


def served(answer: Answer, seen: Seen) -> Served:
    """When the request was sent and handled: both clocks of Python are the system's monotonic one."""
    handled = json.loads(answer.content)
    return Served(seen.began + answer.sent, handled["worker"], handled["began"], handled["ended"])


def since_arrival(each: Served, answer: Answer) -> Served:
    """The same from when the server had it, if it tells how long it queued there."""
    return each if math.isnan(answer.queue) else replace(each, sent=max(each.sent, each.began - answer.queue))


def row_of(name: str, case: Case, seen: Seen, durations: Sequence[float], way: float) -> Row:
    """The measured beside what one queue would have made of the requests as they were sent."""
    answers = sorted(seen.answers, key=lambda answer: answer.sent)
    sent = [answer.sent for answer in answers]
    wished = [durations[answer.number] for answer in answers]

    def ideal(way: float) -> Latencies:
        return latencies(single_queue(sent, wished, case.workers, case.batch_size, way), wished)

    handled = [served(answer, seen) for answer in answers]
    arrived = list(map(since_arrival, handled, answers))
    held = passed_over(handled, case.workers)
    by_both = zip(held, passed_over(arrived, case.workers), strict=True)
    return Row(
        name,
        case,
        len(answers),
        measured=latencies([answer.latency for answer in answers], wished),
        ideal=ideal(0.0),
        same_way=ideal(way),
        held_up=sum(min(each, max(other, each - STALL_MS / 1e3)) > IDLE + way for each, other in by_both),
        held_ms=max(held) * 1e3,
        idle_ms=max(idle_before(handled)) * 1e3,
        way_ms=way * 1e3,
        failures=seen.failures,
    )


def latencies(seconds: Sequence[float], durations: Sequence[float]) -> Latencies:
    """Of the requests whose handling takes at most ``SHORT``."""
    short = [each * 1e3 for each, duration in zip(seconds, durations, strict=True) if duration <= SHORT]
    return Latencies(percentile(short, 50), percentile(short, 99), max(short))


def report(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    headers = ["server", "workers", "batch", "durations", "load", "requests", "way ms", "p50 ms", "to ideal"]
    headers += ["p99 ms", "to ideal", "longest ms", "to ideal", "held up", "held ms", "idle ms"]
    return table(headers, [_cells(row) for row in rows]) + "\n"


def _cells(row: Row) -> list[str]:
    case, measured = row.case, row.measured
    values = (measured.p50, measured.p99, measured.longest)
    figures: list[str] = []
    for value, plain, same_way in zip(values, measured.to(row.ideal), measured.to(row.same_way), strict=True):
        figures += [number(value), f"{number(plain)} ({number(same_way)})"]
    setup = [row.server, str(case.workers), str(case.batch_size), case.kind, f"{case.load:g}"]
    setup.append(f"{row.requests:,}")
    return [*setup, number(row.way_ms), *figures, str(row.held_up), number(row.held_ms), number(row.idle_ms)]


def marks_of(rows: Sequence[Row]) -> list[Mark]:
    """The worst of our rows, and what was held up in all."""
    ours = [row for row in rows if row.server == OURS]
    void = any(row.failures for row in ours)
    worst = [max(ratios) for ratios in zip(*(row.measured.to(row.ideal) for row in ours), strict=True)]
    named = zip(("p50", "p99", "longest"), worst, strict=True)
    group = [
        Mark(f"short requests, {name} to the ideal, the worst row", None if void else ratio, "<=", WITHIN)
        for name, ratio in named
    ]
    held = None if void else float(sum(row.held_up for row in ours))
    longest = None if void else max(row.held_ms for row in ours)
    return [
        *group,
        Mark("requests held up at a busy worker", held, "<=", 0),
        Mark("longest held up since it was sent", longest, "<=", STALL_MS, " ms"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
