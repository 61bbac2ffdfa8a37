"""One work of the comparison: its servers are started, loaded in turns, and stopped.

Servers of a work run side by side, idle but for the one that is loaded, so that what drifts on the machine
meets all of them. Only works about starting and memory run one server at a time.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks import paced
from benchmarks.load import Client, Load, run_load
from benchmarks.lone import Lone, measure_lone
from benchmarks.loops import Loops, loops
from benchmarks.measure import Sample, figures, interleaved, sample
from benchmarks.options import Options, say, tell
from benchmarks.peers.launch import Job, Setup, Subject
from benchmarks.servers import BenchmarkError, Memory, memory_of
from benchmarks.serving import Served, Start, served
from benchmarks.works import Work, raw_body

Sizes = TypeVar("Sizes", Start, Memory)
LOOP = "loop"
EAGER_LOOPS = ("decode", "plain", "channels_last", "folded", "folded, channels_last")
LOOPS: dict[str, tuple[str, ...]] = {
    "noop": (),
    "mlp": ("rows",),
    "resnet": (*EAGER_LOOPS, "compiled", "bf16", "bf16, compiled"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What every work is measured with; ``options`` are those of the command line.

    ``loops`` says whether the in-process loops take part, ``lone`` is how many requests the sequential client
    makes that learns the handler's own time.
    """

    folder: Path
    setup: Setup
    options: Options
    loops: bool = True
    lone: int = 200

    def job(self, work: Work, number: int) -> Job:
        """One server's part, with a folder of its own."""
        folder = self.folder / f"{work.name[:2]}{number}"
        folder.mkdir(parents=True, exist_ok=True)
        return Job(work, folder, self.setup)

    def connections_of(self, work: Work) -> tuple[int, ...]:
        """Those of a work that are asked for; all where that would leave none."""
        some = self.options.connections or ()
        return tuple(each for each in work.connections if each in some) or work.connections


@dataclass(frozen=True, slots=True)
class Result:
    """What a work brought, by names of subjects. ``half`` are samples at half of each one's largest rate."""

    work: Work
    samples: list[Sample] = field(default_factory=list)
    half: list[Sample] = field(default_factory=list)
    lone: dict[str, Lone] = field(default_factory=dict)
    starts: dict[str, list[Start]] = field(default_factory=dict)
    memory: dict[str, list[Memory]] = field(default_factory=dict)
    queues: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)


def measure_work(work: Work, subjects: Sequence[Subject], plan: Plan) -> Result:
    """All subjects that have a part in it; one that cannot start is a refusal, not an error."""
    result = Result(work)
    able = []
    for subject in subjects:
        if not subject.works(work):
            continue
        if reason := subject.refusal(plan.setup.peers):
            _refuse(result, subject.name, reason)
        else:
            able.append(subject)
    if work.alone:
        _measure_starts(result, able, plan)
    else:
        _measure_rates(result, able, plan)
    return result


def _measure_starts(result: Result, subjects: Sequence[Subject], plan: Plan) -> None:
    for repetition in range(plan.options.reps):
        for number, subject in enumerate(subjects):
            if subject.name in result.refusals:
                continue
            with contextlib.ExitStack() as stack:
                server = _started(stack, result, subject, number, plan)
                if server is None:
                    continue
                memory = memory_of(server.running.pid)
            result.starts.setdefault(subject.name, []).append(server.start)
            result.memory.setdefault(subject.name, []).append(memory)
            text = f"first answer after {server.start.answer_s:.2f} s, {memory.rss_mb:.0f} MB resident"
            say(f"{subject.title}, start {repetition + 1}: {text}")


def _measure_rates(result: Result, subjects: Sequence[Subject], plan: Plan) -> None:
    work = result.work
    servers: dict[str, Served] = {}
    with contextlib.ExitStack() as stack:
        for number, subject in enumerate(subjects):
            if server := _started(stack, result, subject, number, plan):
                say(f"{subject.title} serves {work.name} after {server.start.answer_s:.2f} s")
                servers[subject.name] = server
                result.starts[subject.name] = [server.start]
        takers = [*_loop_takers(stack, result, plan), *_takers(servers, work, plan)]
        result.samples.extend(interleaved(plan.options.reps, takers, tell))
        if work.half_load:
            result.half.extend(_half_loads(servers, result, plan))
        if work.connections == (1,):
            # Ours, which tells the handler's own time with each answer.
            ours = [each.name for each in subjects if each.group == "modelserver" and each.name in servers]
            lone = {name: (servers[name].running.port, servers[name].question) for name in ours}
            result.lone.update({name: measure_lone(*each, plan.lone) for name, each in lone.items()})
        for name, server in servers.items():
            result.memory[name] = [memory_of(server.running.pid)]


def _started(
    stack: contextlib.ExitStack, result: Result, subject: Subject, number: int, plan: Plan
) -> Served | None:
    """A server, warm; None for one that cannot be started."""
    work, job = result.work, plan.job(result.work, number)
    connections = max(work.connections if work.alone else plan.connections_of(work))
    try:
        launch = subject.launch(job)
        result.queues[subject.name] = launch.queue
        server = stack.enter_context(served(launch, job.folder))
        run_load(_load(server, work, connections, plan.options.warmup), _client(work, plan))
    except (BenchmarkError, RuntimeError) as error:
        _refuse(result, subject.name, str(error))
        return None
    return server


def _takers(servers: Mapping[str, Served], work: Work, plan: Plan) -> list[Callable[[int], Sample]]:
    takers = []
    for connections in plan.connections_of(work):
        for name, server in servers.items():
            load = _load(server, work, connections, plan.options.duration * work.longer)
            take = partial(sample, server.running, load, name, client=_client(work, plan))
            takers.append(_surviving(take, name, connections))
    return takers


def _surviving(take: Callable[[int], Sample], subject: str, connections: int) -> Callable[[int], Sample]:
    """A failed sample instead of an error: wrk gives up on a server that is gone."""

    def surviving(repetition: int) -> Sample:
        try:
            return take(repetition)
        except (BenchmarkError, RuntimeError) as error:
            return Sample(subject, connections, repetition, rate=0.0, failures={str(error)[:200]: 1})

    return surviving


def _load(server: Served, work: Work, connections: int, seconds: float) -> Load:
    settle = seconds / 5 if work.whole_batches else 0.0
    return Load(server.running.port, server.question, connections, seconds, settle)


def _client(work: Work, plan: Plan) -> Client:
    return "asyncio" if work.whole_batches else plan.options.client


# The loops in a process of their own


def _loop_takers(stack: contextlib.ExitStack, result: Result, plan: Plan) -> list[Callable[[int], Sample]]:
    work = result.work
    if not plan.loops or max(work.connections) < work.batch:
        return []
    takers: list[Callable[[int], Sample]] = []
    loop: Loops | None = None
    for kind in LOOPS[work.kind]:
        name = f"{LOOP}, {kind}"
        try:
            loop = loop or stack.enter_context(_loop(work, plan))
            loop.prepare(kind)
        except BenchmarkError as error:
            _refuse(result, name, str(error))
            continue
        say(f"{name} is ready")
        takers.append(_surviving(partial(loop.run, kind, plan.options.duration * work.longer, name), name, 0))
    return takers


def _loop(work: Work, plan: Plan) -> contextlib.AbstractContextManager[Loops]:
    body, setup = plan.folder / f"{work.name}-body", plan.setup
    body.write_bytes(raw_body(work.kind, setup.picture)[0])
    arch, threads = (setup.arch, setup.threads) if work.kind == "resnet" else ("mlp", 1)
    archive = str((setup.store / setup.archives[work.kind]).resolve())
    options = {"archive": archive, "arch": arch, "body": str(body.resolve()), "batch": work.batch}
    return loops("benchmarks.eager_loop", {**options, "threads": threads}, threads)


# Latency at half of the largest rate


def _half_loads(servers: Mapping[str, Served], result: Result, plan: Plan) -> list[Sample]:
    """Arrivals at half of what each server did at most in this run; a void subject has no half."""
    takers = []
    for name, rate in largest_rates(result.samples).items():
        if server := servers.get(name):
            load = Load(server.running.port, server.question, paced.CONNECTIONS, plan.options.duration)
            takers.append(
                partial(sample, server.running, load, name, client=plan.options.client, pace=rate / 2)
            )
    return interleaved(plan.options.reps, takers, tell)


def largest_rates(samples: Sequence[Sample]) -> dict[str, float]:
    """By subject the largest median over its numbers of connections; none for what is void."""
    rates: dict[str, float] = {}
    for figure in figures(samples):
        if figure.rate:
            rates[figure.subject] = max(figure.rate, rates.get(figure.subject, 0.0))
    return rates


def medians(taken: Sequence[Sizes]) -> Sizes:
    """The median of each time or size. Raises StatisticsError for none."""
    names = [field.name for field in fields(taken[0])]
    return replace(
        taken[0], **{name: statistics.median(getattr(each, name) for each in taken) for name in names}
    )


def _refuse(result: Result, name: str, reason: str) -> None:
    result.refusals[name] = reason
    say(f"{name} cannot start: {reason}")
