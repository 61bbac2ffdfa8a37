"""One work of the comparison: its servers are started, loaded in turns, and stopped.

Servers of a work run side by side, idle but for the one that is loaded, so that what drifts on the machine
meets all of them. Only works about starting and memory run one server at a time.
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from benchmarks import paced
from benchmarks.load import Client, Load, run_load
from benchmarks.lone import Lone, measure_lone
from benchmarks.loops import Loops, loops
from benchmarks.measure import Sample, figures, interleaved, sample
from benchmarks.options import say, tell
from benchmarks.peers.launch import Job, Launch, Setup, Subject
from benchmarks.servers import BenchmarkError, Memory, memory_of
from benchmarks.serving import Served, Start, served
from benchmarks.works import raw_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.works import Work

Sizes = TypeVar("Sizes", Start, Memory)
LOOP = "loop"
MLP = "mlp"
EAGER_LOOPS = ("decode", "plain", "channels_last", "folded", "folded, channels_last")
LOOPS: dict[str, tuple[str, ...]] = {
    "noop": (),
    "mlp": ("rows",),
    "resnet": (*EAGER_LOOPS, "compiled", "bf16", "bf16, compiled"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What every work is measured with. ``connections`` restricts those of a work; empty: all of them.

    ``loops`` says whether the in-process loops take part, ``lone`` is how many requests the sequential client
    makes that learns the handler's own time.
    """

    folder: Path
    setup: Setup
    duration: float
    warmup: float
    reps: int
    client: Client
    connections: tuple[int, ...] = ()
    loops: bool = True
    lone: int = 200

    def job(self, work: Work, number: int) -> Job:
        """One server's part, with a folder of its own."""
        folder = self.folder / f"{work.name[:2]}{number}"
        folder.mkdir(parents=True, exist_ok=True)
        return Job(work, folder, self.setup)

    def connections_of(self, work: Work) -> tuple[int, ...]:
        """Those of a work that are asked for; all where that would leave none."""
        return tuple(each for each in work.connections if each in self.connections) or work.connections


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
    for repetition in range(plan.reps):
        for number, subject in enumerate(subjects):
            if subject.name in result.refusals:
                continue
            try:
                start, memory = _start_alone(result, subject, plan, number)
            except (BenchmarkError, RuntimeError) as error:
                _refuse(result, subject.name, str(error))
                continue
            result.starts.setdefault(subject.name, []).append(start)
            result.memory.setdefault(subject.name, []).append(memory)
            text = f"first answer after {start.answer_s:.2f} s, {memory.rss_mb:.0f} MB resident"
            say(f"{subject.title}, start {repetition + 1}: {text}")


def _start_alone(result: Result, subject: Subject, plan: Plan, number: int) -> tuple[Start, Memory]:
    work = result.work
    launch = _launch(result, subject, plan, number)
    with served(launch, plan.job(work, number).folder) as server:
        run_load(_load(server, work, max(work.connections), plan.warmup), _client(work, plan))
        return server.start, memory_of(server.running.pid)


def _measure_rates(result: Result, subjects: Sequence[Subject], plan: Plan) -> None:
    work = result.work
    with contextlib.ExitStack() as stack:
        servers = _started(stack, result, subjects, plan)
        takers = [*_loop_takers(stack, result, plan), *_takers(servers, work, plan)]
        result.samples.extend(interleaved(plan.reps, takers, tell))
        if work.half_load:
            result.half.extend(_half_loads(servers, result, plan))
        if work.connections == (1,):
            result.lone.update(_lone_figures(servers, subjects, work, plan))
        for name, server in servers.items():
            result.memory[name] = [memory_of(server.running.pid)]


def _started(
    stack: contextlib.ExitStack, result: Result, subjects: Sequence[Subject], plan: Plan
) -> dict[str, Served]:
    """Those that could be started, warm, by name."""
    work = result.work
    servers: dict[str, Served] = {}
    for number, subject in enumerate(subjects):
        try:
            launch = _launch(result, subject, plan, number)
            server = stack.enter_context(served(launch, plan.job(work, number).folder))
            most = max(plan.connections_of(work))
            run_load(_load(server, work, most, plan.warmup), _client(work, plan))
        except (BenchmarkError, RuntimeError) as error:
            _refuse(result, subject.name, str(error))
            continue
        say(f"{subject.title} serves {work.name} after {server.start.answer_s:.2f} s")
        servers[subject.name] = server
        result.starts[subject.name] = [server.start]
    return servers


def _launch(result: Result, subject: Subject, plan: Plan, number: int) -> Launch:
    launch = subject.launch(plan.job(result.work, number))
    result.queues[subject.name] = launch.queue
    return launch


def _takers(servers: Mapping[str, Served], work: Work, plan: Plan) -> list[Callable[[int], Sample]]:
    return [
        partial(_take, server, name, connections, work=work, plan=plan)
        for connections in plan.connections_of(work)
        for name, server in servers.items()
    ]


def _take(server: Served, name: str, connections: int, repetition: int, *, work: Work, plan: Plan) -> Sample:
    load = _load(server, work, connections, plan.duration * work.longer)
    try:
        return sample(server.running, load, name, repetition, _client(work, plan))
    except RuntimeError as error:  # wrk gives up on a server that is gone
        return Sample(name, connections, repetition, rate=0.0, failures={str(error)[:200]: 1})


def _load(server: Served, work: Work, connections: int, seconds: float) -> Load:
    question = server.question
    settle = seconds / 5 if work.whole_batches else 0.0
    return Load(server.url, question.body, question.content_type, connections, seconds, settle)


def _client(work: Work, plan: Plan) -> Client:
    return "asyncio" if work.whole_batches else plan.client


# The loops in a process of their own


def _loop_takers(stack: contextlib.ExitStack, result: Result, plan: Plan) -> list[Callable[[int], Sample]]:
    work = result.work
    if not plan.loops or max(work.connections) < work.batch:
        return []
    takers: list[Callable[[int], Sample]] = []
    loop: Loops | None = None
    for kind in LOOPS[work.kind]:
        try:
            loop = loop or stack.enter_context(_loop(work, plan))
            loop.prepare(kind)
        except BenchmarkError as error:
            _refuse(result, f"{LOOP}, {kind}", str(error))
            continue
        say(f"{LOOP}, {kind} is ready")
        takers.append(partial(_take_loop, loop, kind, plan.duration * work.longer))
    return takers


def _take_loop(loop: Loops, kind: str, seconds: float, repetition: int) -> Sample:
    try:
        return loop.run(kind, seconds, f"{LOOP}, {kind}", repetition)
    except BenchmarkError as error:
        return Sample(f"{LOOP}, {kind}", 0, repetition, rate=0.0, failures={str(error)[:200]: 1})


def _loop(work: Work, plan: Plan) -> contextlib.AbstractContextManager[Loops]:
    body, setup = plan.folder / f"{work.name}-body", plan.setup
    body.write_bytes(raw_body(work.kind, setup.picture)[0])
    arch, threads = (setup.arch, setup.threads) if work.kind == "resnet" else (MLP, 1)
    files = [(setup.store / setup.archives[work.kind]).resolve(), arch, body.resolve()]
    arguments = [*map(str, files), "--batch", str(work.batch), "--threads", str(threads)]
    return loops("benchmarks.eager_loop", arguments, threads)


# Latency at half of the largest rate, and of a lone request


def _half_loads(servers: Mapping[str, Served], result: Result, plan: Plan) -> list[Sample]:
    """Arrivals at half of what each server did at most in this run; a void subject has no half."""
    paces = {name: rate / 2 for name, rate in largest_rates(result.samples).items() if name in servers}
    takers = [partial(_take_paced, servers[name], name, pace, plan) for name, pace in paces.items()]
    return interleaved(plan.reps, takers, tell)


def _take_paced(server: Served, name: str, pace: float, plan: Plan, repetition: int) -> Sample:
    question = server.question
    load = Load(server.url, question.body, question.content_type, paced.CONNECTIONS, plan.duration)
    return sample(server.running, load, name, repetition, plan.client, pace=pace)


def largest_rates(samples: Sequence[Sample]) -> dict[str, float]:
    """By subject the largest median over its numbers of connections; none for what is void."""
    rates: dict[str, float] = {}
    for figure in figures(samples):
        if figure.rate:
            rates[figure.subject] = max(figure.rate, rates.get(figure.subject, 0.0))
    return rates


def _lone_figures(
    servers: Mapping[str, Served], subjects: Sequence[Subject], work: Work, plan: Plan
) -> dict[str, Lone]:
    """For ours, which tells the handler's own time with each answer."""
    ours = [each.name for each in subjects if each.group == "modelserver" and each.name in servers]
    questions = {name: servers[name].question for name in ours}
    return {
        name: measure_lone(servers[name].running, work.kind, each.body, each.content_type, plan.lone)
        for name, each in questions.items()
    }


def medians(taken: Sequence[Sizes]) -> Sizes:
    """The median of each time or size. Raises StatisticsError for none."""
    names = [field.name for field in fields(taken[0])]
    return replace(
        taken[0], **{name: statistics.median(getattr(each, name) for each in taken) for name in names}
    )


def _refuse(result: Result, name: str, reason: str) -> None:
    result.refusals[name] = reason
    say(f"{name} cannot start: {reason}")
