"""What a server costs before anybody asks: seconds to start, processor seconds, memory of all its processes.

Each figure is taken with workers forked from a process that has imported torch (``auto``, as shipped) and
with each worker started by itself (``spawn``), in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from benchmarks.archives import build_noop, build_resnet, photograph
from benchmarks.options import ARCHS, numbers, run
from benchmarks.report import Mark, heading, machine, number, table, write_json
from benchmarks.servers import (
    HOST,
    BenchmarkError,
    ModelServer,
    call,
    family,
    free_ports,
    model_server,
    process,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

TITLE = "Footprint"
WAYS = ("auto", "spawn")
PATIENCE = 120.0
# Half of what TorchServe needs for the same handler with one worker (860 MB).
NOOP_RSS_MB = 430.0
LISTENING_S = 0.6
PSS_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class Start:
    """From the start of the command: seconds until it accepts connections, is healthy, and answers first.

    ``cpu_s`` are the processor seconds, user and system, that all its processes have used by then.
    """

    way: str
    repetition: int
    listening_s: float
    listening_cpu_s: float
    ready_s: float
    answer_s: float
    cpu_s: float
    rss_mb: float
    pss_mb: float


@dataclass(frozen=True, slots=True)
class Memory:
    """All processes of a server with so many workers of a model, each of which has answered, in MB.

    ``seconds`` and ``cpu_s`` are what it took to have those that were ``added``, at once.
    """

    way: str
    repetition: int
    workers: int
    added: int
    seconds: float
    cpu_s: float
    rss_mb: float
    pss_mb: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    options = parser().parse_args(arguments)
    facts = machine()
    print(heading(TITLE, facts))
    if options.dry_run:
        count = ", ".join(map(str, options.workers))
        print(f"Would measure, {options.reps} times, interleaved, with {' and '.join(WAYS)}:")
        print("the start without a model; the start with a no-op;")
        print(f"{options.arch} with {count} workers.")
        return 0
    try:
        starts, memories = measure(options)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 1
    marks = judge(starts, memories, options.arch)
    print_report(starts, memories, marks)
    write_json(options.out, {"machine": facts, "starts": starts, "memory": memories, "marks": marks})
    return 0


def parser() -> argparse.ArgumentParser:
    """The options of this program."""
    made = argparse.ArgumentParser("footprint", description=__doc__)
    add = made.add_argument
    add("--reps", type=int, default=3, help="repetitions, interleaved; figures are medians (default: 3)")
    add("--arch", choices=ARCHS, default="resnet152", help="the network whose workers are counted")
    add("--workers", type=numbers, default=(1, 2, 4), help="scaled to these in turn (default: 1,2,4)")
    add("--out", type=Path, help="write every figure and the marks to this JSON file")
    add("--dry-run", action="store_true", help="say what would be measured, and leave")
    return made


def measure(options: argparse.Namespace) -> tuple[list[Start], list[Memory]]:
    """Every repetition with each way of starting workers."""
    starts, memories = [], []
    with tempfile.TemporaryDirectory(prefix="footprint-") as folder:
        store = Path(folder) / "store"
        store.mkdir()
        noop = build_noop(store)
        network = build_resnet(store, options.arch)
        for repetition in range(options.reps):
            for way in WAYS:
                place = Path(folder) / f"{way}-{repetition}"
                starts.append(measure_start(store, noop, place / "start", way, repetition))
                tell(f"{way}: listening after {starts[-1].listening_s:.2f} s")
                counts = options.workers
                for each in measure_memory(
                    store, network, place / "memory", way=way, repetition=repetition, workers=counts
                ):
                    memories.append(each)
                    tell(f"{way}: {each.workers} workers, +{each.added} in {each.seconds:.2f} s")
    return starts, memories


def measure_start(store: Path, archive: str, folder: Path, way: str, repetition: int) -> Start:
    """Starts a server without models, then one with a no-op model."""
    with started(store, folder / "bare", way, ()) as (pid, port, began):
        until(lambda: accepts(port), "the server listens")
        listening, listening_cpu = time.perf_counter() - began, cpu_of(pid)
        until(lambda: answers(port, "GET", "/ping"), "the server is healthy")
        ready = time.perf_counter() - began
    with started(store, folder / "noop", way, ("--models", f"noop={archive}")) as (pid, port, began):
        until(lambda: answers(port, "POST", "/predictions/noop"), "the model answers")
        answer, cpu = time.perf_counter() - began, cpu_of(pid)
        rss, pss = memory_of(pid)
    return Start(way, repetition, listening, listening_cpu, ready, answer, cpu, rss, pss)


def measure_memory(
    store: Path, archive: str, folder: Path, *, way: str, repetition: int, workers: Sequence[int]
) -> Iterator[Memory]:
    """One server whose model gets more and more workers."""
    picture = photograph()
    with model_server(store, folder, {"worker_start": way, "default_startup_timeout": 300}) as server:
        before = 0
        for count in workers:
            began, cpu = time.perf_counter(), cpu_of(server.pid)
            scale(server, archive, count, first=before == 0)
            seconds, cpu = time.perf_counter() - began, cpu_of(server.pid) - cpu
            use_all(server, picture, count)
            rss, pss = memory_of(server.pid)
            yield Memory(way, repetition, count, count - before, seconds, cpu, rss, pss)
            before = count


def scale(server: ModelServer, archive: str, workers: int, *, first: bool) -> None:
    """Registers the model, or changes the number of its workers, and waits until they have loaded."""
    if first:
        server.register(archive, "network", initial_workers=workers)
        return
    target = f"/models/network?min_worker={workers}&max_worker={workers}&synchronous=true"
    status, answer = call(server.management_port, "PUT", target, timeout=600)
    if status != 200:
        raise BenchmarkError(f"PUT {target} was answered {status}: {answer.decode(errors='replace')}")


def use_all(server: ModelServer, picture: bytes, workers: int) -> None:
    """So many requests at once that each worker gets some: only then its memory is what it will be."""

    def ask(_: int) -> int:
        return call(server.port, "POST", "/predictions/network", picture, timeout=300)[0]

    with ThreadPoolExecutor(2 * workers) as pool:
        statuses = set(pool.map(ask, range(4 * workers)))
    if statuses != {200}:
        raise BenchmarkError(f"predictions were answered {sorted(statuses)}")


@contextlib.contextmanager
def started(store: Path, folder: Path, way: str, flags: Sequence[str]) -> Iterator[tuple[int, int, float]]:
    """Process id, inference port and the moment of the start; nothing is waited for."""
    folder.mkdir(parents=True)
    ports = free_ports(3)
    names = ("inference", "management", "metrics")
    lines = [f"{name}_address=http://{HOST}:{port}" for name, port in zip(names, ports, strict=True)]
    lines += [f"worker_start={way}", "default_workers_per_model=1", ""]
    (folder / "config.properties").write_text("\n".join(lines), "utf-8")
    command = [sys.executable, "-m", "modelserver", "--start", "--foreground", "--ncs", *flags]
    command += ["--model-store", str(store), "--ts-config", str(folder / "config.properties")]
    began = time.perf_counter()
    with process(command, folder, {}) as child:
        yield child.pid, ports[0], began


def until(happened: Callable[[], bool], what: str) -> None:
    """Looks every two milliseconds. Raises BenchmarkError if it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"waited {PATIENCE:g} s in vain: {what}")
        time.sleep(0.002)


def accepts(port: int) -> bool:
    """Whether somebody listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def answers(port: int, method: str, path: str) -> bool:
    """Whether a request is answered 200."""
    try:
        return call(port, method, path, b"x" if method == "POST" else None, timeout=30)[0] == 200
    except OSError:
        return False


def cpu_of(pid: int) -> float:
    """Processor seconds of all living processes of a server, and of those that they have waited for."""
    seconds = 0.0
    for each in family(pid):
        with contextlib.suppress(psutil.Error):
            seconds += sum(each.cpu_times()[:4])
    return seconds


def memory_of(pid: int) -> tuple[float, float]:
    """Resident and proportional memory of all processes of a server, in MB of 10^6 bytes."""
    rss = pss = 0
    for each in family(pid):
        with contextlib.suppress(psutil.Error):
            memory = each.memory_full_info()
            rss, pss = rss + memory.rss, pss + memory.pss
    return rss / 1e6, pss / 1e6


def judge(starts: Sequence[Start], memories: Sequence[Memory], arch: str) -> list[Mark]:
    """The marks, by the figures as shipped."""
    own = [start for start in starts if start.way == WAYS[0]]
    few, many = (memory_at(memories, WAYS[0], pick) for pick in (min, max))
    return [
        Mark("start to listening", _median([s.listening_s for s in own]), "<", LISTENING_S, " s"),
        Mark(
            "no-op, 1 worker, all processes, RSS", _median([s.rss_mb for s in own]), "<", NOOP_RSS_MB, " MB"
        ),
        Mark(f"{arch}, PSS with the most workers / the fewest", many / few, "<", PSS_RATIO),
    ]


def memory_at(memories: Sequence[Memory], way: str, pick: Callable[[set[int]], int]) -> float:
    """The median PSS at the fewest or the most workers."""
    own = [each for each in memories if each.way == way]
    count = pick({each.workers for each in own})
    return _median([each.pss_mb for each in own if each.workers == count])


def print_report(starts: Sequence[Start], memories: Sequence[Memory], marks: Sequence[Mark]) -> None:
    """Tables and marks on standard output."""
    columns: Mapping[str, Callable[[Start], float]] = {
        "listening s": lambda s: s.listening_s,
        "CPU s": lambda s: s.listening_cpu_s,
        "healthy s": lambda s: s.ready_s,
        "no-op answers s": lambda s: s.answer_s,
        "CPU s then": lambda s: s.cpu_s,
        "RSS MB": lambda s: s.rss_mb,
        "PSS MB": lambda s: s.pss_mb,
    }
    rows = []
    for way in WAYS:
        own = [start for start in starts if start.way == way]
        rows.append([way, *(number(_median([value(s) for s in own])) for value in columns.values())])
    print(table(["workers", *columns], rows) + "\n")
    rows = []
    for way in WAYS:
        for count in sorted({each.workers for each in memories}):
            group = [each for each in memories if (each.way, each.workers) == (way, count)]
            figures = (
                [getattr(each, name) for each in group] for name in ("seconds", "cpu_s", "rss_mb", "pss_mb")
            )
            rows.append([way, str(count), f"+{group[0].added}", *(number(_median(each)) for each in figures)])
    print(table(["start", "workers", "added", "loaded after s", "CPU s", "RSS MB", "PSS MB"], rows))
    print("\n" + "\n".join(map(str, marks)))


def tell(text: str) -> None:
    """A line on standard error, for who waits."""
    print(text, file=sys.stderr, flush=True)


def _median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


if __name__ == "__main__":
    run(main)
