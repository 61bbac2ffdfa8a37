"""Samples of servers under load, and the figures made of repeated samples."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import psutil

from benchmarks.load import Client, Load, Outcome, run_load
from benchmarks.paced import run_paced
from benchmarks.servers import Running, call, cpu_meter

_T = TypeVar("_T")


@contextlib.contextmanager
def readings(read: Callable[[], _T], period: float) -> Iterator[list[_T]]:
    """What a thread reads every ``period`` seconds while the block runs; raises what ``read`` raises."""
    values: list[_T] = []
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(period):
            values.append(read())

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(run)
        try:
            yield values
        finally:
            ended.set()
        reading.result()


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. ``rate`` is per second, ``cpu_us`` the server's processor time per request.

    ``other_cpus`` is what the machine computed besides server and client, in processors: it should be near 0.
    """

    subject: str
    connections: int
    repetition: int
    rate: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_us: float | None = None
    other_cpus: float | None = None
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figure:
    """Medians over the repetitions; None, "void", where any repetition had a failure."""

    subject: str
    connections: int
    rate: float | None
    p50_ms: float | None
    p99_ms: float | None
    cpu_us: float | None
    other_cpus: float | None
    rates: tuple[float, ...]
    failures: dict[str, int]

    @property
    def values(self) -> tuple[float | None, ...]:
        """Rate, latencies and processor time, in the order of tables."""
        return self.rate, self.p50_ms, self.p99_ms, self.cpu_us

    @property
    def void(self) -> bool:
        """Whether requests failed."""
        return bool(self.failures)


def sample(
    server: Running, load: Load, subject: str, repetition: int, client: Client, *, pace: float | None = None
) -> Sample:
    """Load the server once, and wait until it has let go of the load.

    With ``pace``, so many requests per second arrive by chance (see ``benchmarks.paced``).
    """
    run = partial(run_load, load, client) if pace is None else partial(run_paced, load, pace, client)
    return measured(server, run, subject, load.connections, repetition)


def measured(
    server: Running,
    run: Callable[[], Outcome],
    subject: str,
    connections: int,
    repetition: int,
    *,
    alone: bool = False,
) -> Sample:
    """The same of any load: what ``run`` did to the server; ``alone``: without its other processes."""
    machine, began = busy_seconds(), time.perf_counter()
    of_all, of_head = cpu_meter(server.pid), cpu_meter(server.pid, alone=True)
    outcome = run()
    used, elapsed = of_all(), time.perf_counter() - began
    counted = of_head() if alone else used
    other = busy_seconds() - machine - used - outcome.client_cpu
    settle_down(server)
    return Sample(
        subject=subject,
        connections=connections,
        repetition=repetition,
        rate=outcome.rate,
        p50_ms=outcome.p50_ms,
        p99_ms=outcome.p99_ms,
        cpu_us=counted * 1e6 / outcome.requests if outcome.requests else None,
        other_cpus=max(0.0, other / elapsed),
        failures=outcome.failures,
    )


def settle_down(server: Running) -> None:
    """What wrk left unanswered must not spill into the next measurement: wait a moment and ask once more."""
    time.sleep(0.1)
    with contextlib.suppress(OSError):
        call(server.port, "GET", "/ping")


def busy_seconds() -> float:
    """Processor seconds that the machine has computed so far."""
    times = psutil.cpu_times()
    return float(
        times.user + times.nice + times.system + getattr(times, "irq", 0) + getattr(times, "softirq", 0)
    )


def interleaved(
    repetitions: int, takers: Sequence[Callable[[int], Sample]], tell: Callable[[Sample], None]
) -> list[Sample]:
    """Every subject once, then every subject again: what drifts on the machine meets all of them."""
    samples = []
    for repetition in range(repetitions):
        for take in takers:
            taken = take(repetition)
            tell(taken)
            samples.append(taken)
    return samples


def figures(samples: Iterable[Sample], *, best: bool = False) -> list[Figure]:
    """One figure per subject and number of connections, in the order of their first samples.

    ``best``: the highest rate and the least of the others, instead of medians.
    """
    groups: dict[tuple[str, int], list[Sample]] = {}
    for each in samples:
        groups.setdefault((each.subject, each.connections), []).append(each)
    return [_figure(group, best=best) for group in groups.values()]


def quotient(value: float | None, to: float | None) -> float | None:
    """One by the other; None if either is void."""
    return value / to if value is not None and to else None


def ratio(
    samples: Sequence[Sample],
    subject: Callable[[Sample], bool],
    to: Callable[[Sample], bool],
    what: str = "rate",
) -> float | None:
    """The median over the repetitions of one rate, or ``cpu_us``, by another of the same repetition.

    None if one is void.
    """
    ours = {each.repetition: each for each in samples if subject(each)}
    others = {each.repetition: each for each in samples if to(each)}
    pairs = [(ours[key], others[key]) for key in ours if key in others]
    values = [(getattr(here, what), getattr(there, what)) for here, there in pairs]
    void = any(here.failures or there.failures for here, there in pairs) or not all(map(all, values))
    return None if void or not pairs else statistics.median(here / there for here, there in values)


def of(subject: object, connections: int | None = None) -> Callable[[Sample], bool]:
    """Picks the samples of a subject, which is its text, perhaps only those at so many connections."""
    name = str(subject)
    return lambda each: each.subject == name and connections in {None, each.connections}


def _figure(group: Sequence[Sample], *, best: bool) -> Figure:
    failures: Counter[str] = Counter()
    for each in group:
        failures.update(each.failures)

    def value(name: str, *, void: bool = bool(failures)) -> float | None:
        known = [value for each in group if (value := getattr(each, name)) is not None]
        pick = statistics.median if not best else max if name == "rate" else min
        return pick(known) if known and not void else None

    where = group[0].subject, group[0].connections
    rate, p50_ms, p99_ms, cpu_us = map(value, ("rate", "p50_ms", "p99_ms", "cpu_us"))
    others, rates = value("other_cpus", void=False), tuple(round(each.rate, 3) for each in group)
    return Figure(*where, rate, p50_ms, p99_ms, cpu_us, others, rates, dict(failures))
