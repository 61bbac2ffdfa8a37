"""What recordings, weights and shadows cost: one server, with each of them and without.

A model that does nothing, one by one and in batches, shows what the server's own process computes more; a
model that sleeps leaves the processors free, and shows whether clients get less where those are not the
limit. One server, asked in turns without and with, in changing order: servers differ among themselves, by
chance. Beside each pair is another turn without, for what chance makes of the rest.
Marks, each to the turns without: at most 3 % fewer requests per second and 3 % more processor time per
request while somebody records, 1 % with weights, and at most 1 % fewer requests with a shadow of 25 %.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.archives import build_noop
from benchmarks.load import Load, chosen, run_load
from benchmarks.measure import Sample, figures, measured, of, ratio
from benchmarks.options import Measured, Options, common_parser, perform, program, say, tell
from benchmarks.report import Mark, number, table
from benchmarks.servers import HOST, BenchmarkError, ModelServer, call, call_well, model_server, piped
from benchmarks.works import Question
from modelserver.ext.recording.file import read
from modelserver.tools.tune.own_server import own_environment

SLEEP: Final = 0.005  # seconds of a batch of the model that sleeps
OFF, AGAIN, ON = "off", "off again", "on"
_WINDOW: Final = {"batch_policy": "window", "max_batch_delay": 5}


@dataclass(frozen=True, slots=True)
class Pair:
    """What is turned on at a model: ``rate`` and ``cpu`` are the shares that it may cost, None: no mark."""

    what: str
    model: str
    connections: int
    rate: float | None
    cpu: float | None

    def __str__(self) -> str:
        return f"{self.what}, {self.model}"

    def on(self, server: ModelServer) -> AbstractContextManager[None]:
        """Turns it on."""
        if self.what == "recording":
            return recording(server, self.model)
        document: dict[str, object] = {"weights": {"1.0": 100, "2.0": 0}}
        if self.what == "shadow":
            document = {"shadow": {"2.0": {"percent": 25}}}
        return traffic(server, self.model, document)


PAIRS: Final = (
    Pair("recording", "batch1", 32, 0.03, 0.03),
    Pair("recording", "batch32", 64, 0.03, 0.03),
    Pair("recording", "sleeps", 16, 0.03, None),
    Pair("weights", "batch1", 32, 0.01, 0.01),
    Pair("weights", "batch32", 64, 0.01, 0.01),
    Pair("shadow", "sleeps", 16, 0.01, None),
)


@contextlib.contextmanager
def recording(server: ModelServer, model: str) -> Iterator[None]:
    """``modelserver record`` within. Raises BenchmarkError if it missed requests."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        out = Path(folder) / "traffic.msr"
        place = f"http://{HOST}:{server.management_port}"
        command = [sys.executable, "-m", "modelserver", "record", "--out", str(out), "--management", place]
        process = piped([*command, model], server.folder, own_environment(os.environ))
        assert process.stdout is not None
        try:
            # It says so once the server records.
            output = process.stdout.readline()
            yield
        finally:
            process.send_signal(signal.SIGINT)
            output += process.communicate()[0]
        if process.returncode or not (recorded := read(out)).calls or str(recorded.lost):
            raise BenchmarkError(f"the recording is not whole: {output}")


@contextlib.contextmanager
def traffic(server: ModelServer, model: str, document: dict[str, object]) -> Iterator[None]:
    """Traffic between the versions of a model.

    Raises BenchmarkError if it is refused, or if no answers of a shadow were compared.
    """
    path = f"/models/{model}/traffic"
    call_well(server.management_port, "PUT", path, json.dumps(document).encode())
    try:
        yield
        if "shadow" in document:
            _, answer = call(server.management_port, "GET", f"/models/{model}/shadow")
            copies = json.loads(answer)["shadows"]["2.0"]["copies"]
            if not copies["agreed"]:
                raise BenchmarkError(f"no copies were compared: {copies}")
            say(f"{copies['agreed']} of {sum(copies.values())} copies agreed")
    finally:
        call(server.management_port, "DELETE", path)


def parse(arguments: Sequence[str] | None) -> Options:
    """The command line."""
    parser = common_parser("rollouts", __doc__, duration=3.0, reps=10)
    parser.add_argument("--only", choices=sorted({pair.what for pair in PAIRS}), help="one of them")
    return parser.parse_args(arguments)


@program(parse)
def main(options: Options) -> int:
    """Measure and report; 1 if requests failed or the server does not start. A missed mark is told."""
    pairs = [pair for pair in PAIRS if options.only in (None, pair.what)]
    facts = {
        "client": chosen(options.client),
        "handler": f"no-op, and one that sleeps {SLEEP * 1e3:g} ms; one worker for each version",
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    return perform(options, "Recordings, weights and shadows", facts, pairs, partial(measure, pairs, options))


def measure(pairs: Sequence[Pair], options: Options) -> Measured:
    """Each pair in turns, the order changing from one to the next. Raises BenchmarkError."""
    samples = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, started(Path(name)) as server:
        for pair in pairs:
            run_load(load_of(server, pair, options.warmup), options.client)
        for repetition in range(options.reps):
            for pair in pairs:
                ways = (OFF, ON, AGAIN)
                for way in ways if repetition % 2 else reversed(ways):
                    taken = take(server, pair, way, repetition, options)
                    tell(taken)
                    samples.append(taken)
    return samples, report(pairs, samples), marks(pairs, samples)


@contextlib.contextmanager
def started(folder: Path) -> Iterator[ModelServer]:
    """A server with two versions of each model. Raises BenchmarkError."""
    store = folder / "store"
    store.mkdir()
    settings = {"allow_recording": "true", "disable_system_metrics": "true"}
    with model_server(store, folder / "server", settings) as server:
        for version in ("1.0", "2.0"):
            noop = build_noop(store, f"noop_{version[0]}", version=version)
            sleeping = build_noop(store, f"sleeping_{version[0]}", SLEEP, version=version)
            server.register(noop, "batch1", batch_size=1)
            server.register(noop, "batch32", batch_size=32, **_WINDOW)
            server.register(sleeping, "sleeps", batch_size=8)
        for pair in PAIRS:
            call_well(server.port, "POST", f"/predictions/{pair.model}", b"x")
        yield server


def load_of(server: ModelServer, pair: Pair, seconds: float) -> Load:
    """The load of a pair."""
    question = Question(f"/predictions/{pair.model}", b"x" * 64, "application/octet-stream")
    return Load(server.port, question, pair.connections, seconds)


def take(server: ModelServer, pair: Pair, way: str, repetition: int, options: Options) -> Sample:
    """One measurement; the processor time is that of the server's own process."""
    running = partial(run_load, load_of(server, pair, options.duration), options.client)
    with pair.on(server) if way == ON else contextlib.nullcontext():
        return measured(server, running, f"{pair}: {way}", pair.connections, repetition, alone=True)


def marks(pairs: Sequence[Pair], samples: Sequence[Sample]) -> list[Mark]:
    """Those of each pair."""
    group = []
    for pair in pairs:
        on, off = of(f"{pair}: {ON}"), of(f"{pair}: {OFF}")
        if pair.rate is not None:
            group.append(Mark(f"{pair}: requests/s to off", ratio(samples, on, off), ">=", 1 - pair.rate))
        if pair.cpu is not None:
            group.append(
                Mark(f"{pair}: CPU/request to off", ratio(samples, on, off, "cpu_us"), "<=", 1 + pair.cpu)
            )
    return group


def report(pairs: Sequence[Pair], samples: Sequence[Sample]) -> str:
    """A Markdown table."""
    summary = {each.subject: each for each in figures(samples)}
    rows = []
    for pair in pairs:
        for way in (OFF, AGAIN, ON):
            figure = summary[f"{pair}: {way}"]
            both = of(figure.subject), of(f"{pair}: {OFF}")
            cells = (figure.rate, ratio(samples, *both), figure.cpu_us, ratio(samples, *both, "cpu_us"))
            rows.append([str(pair), way, *map(number, cells)])
    heads = ["what, model", "turn", "requests/s", "to off", "CPU-µs/request", "to off"]
    return table(heads, rows) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
