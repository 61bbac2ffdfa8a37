"""What a gRPC call costs beside a request over HTTP/1.1, an earlier version of this server, and TorchServe.

A model that does nothing, in batches of the same settings everywhere, is asked by ``h2load`` over few
connections with many streams and over many with few; over HTTP/1.1 there are as many requests at a time.
Processor time is that of the server's main process, as workers do the same work for all; TorchServe's is that
of all its processes.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.archives import build_handler
from benchmarks.grpc_load import call_once
from benchmarks.h2load import Flood, run_h2load
from benchmarks.measure import Sample, figures, interleaved, measured, of, ratio
from benchmarks.mixed import torchserve_server
from benchmarks.options import Measured, Options, common_parser, perform, program, tell
from benchmarks.report import Mark, number, table
from benchmarks.servers import HOST, QUEUE_SIZE, ModelServer, call_well, grpc_settings, model_server
from modelserver.ext.grpc.messages import message

NAME = "noop"
_HANDLER = '''"""Answers at once."""


def handle(data, context):
    return None if data is None else ["ok"] * len(data)
'''
_PREDICT = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
BODY = b"hello"
# Connections, and streams of each.
SHAPES = ((4, 8), (32, 4))
HTTP, GRPC, BEFORE, TORCHSERVE = "/predictions", "gRPC", "gRPC before", "TorchServe's gRPC"


@dataclass(frozen=True, slots=True)
class Subject:
    """A server and the way it is asked."""

    name: str
    server: ModelServer
    grpc_port: int | None = None

    def flood(self, connections: int, streams: int, requests: int) -> Flood:
        """The same load for all."""
        size = len(self.sample_response())
        if self.grpc_port is None:
            url = f"http://{HOST}:{self.server.port}/predictions/{NAME}"
            return Flood(url, BODY, connections * streams, 1, requests, size, grpc=False)
        url = f"http://{HOST}:{self.grpc_port}{_PREDICT}"
        return Flood(url, _message(), connections, streams, requests, size, grpc=True)

    def sample_response(self) -> bytes:
        """An answer, as bytes of a body. Raises BenchmarkError."""
        if self.grpc_port is None:
            return call_well(self.server.port, "POST", f"/predictions/{NAME}", BODY)
        return b"\0" * 5 + call_once(self.grpc_port, _PREDICT, _message())


def _message() -> bytes:
    request = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
    body: bytes = request(model_name=NAME, input={"data": BODY}).SerializeToString()
    return body


def parse(arguments: Sequence[str] | None) -> Options:
    """The command line."""
    parser = common_parser("grpc", __doc__, duration=5.0, loads=False)
    add = parser.add_argument
    add("--batch", type=int, default=8, help="batch_size of the model; default: 8")
    add("--delay", type=int, default=1, help="max_batch_delay of the model in ms; default: 1")
    add("--before", type=Path, help="a checkout of an earlier version, which is measured as well")
    add("--peers", type=Path, help="measure TorchServe, which is installed there, as well")
    return parser.parse_args(arguments)


@program(parse)
def main(options: Options) -> int:
    """Measure and report; 1 if a figure is void or a server does not start."""
    streams = ", ".join(f"{connections} connections of {streams} streams" for connections, streams in SHAPES)
    facts = {
        "client": "h2load; each answer's size is result",
        "model": f"no-op, one worker, batches of {options.batch}, at most {options.delay} ms for one",
        "streams": streams,
        "job_queue_size": str(QUEUE_SIZE),
        "access log and metrics": "on, as shipped",
        "measurements": f"{options.reps} x about {options.duration:g} s, interleaved",
    }
    return perform(options, "gRPC", facts, SHAPES, partial(measure, options))


@contextlib.contextmanager
def started(options: Options) -> Iterator[list[Subject]]:
    """All servers with the model. Raises BenchmarkError."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        store = folder / "store"
        build_handler(store, NAME, _HANDLER)
        ours = stack.enter_context(_ours(store, folder / "server"))
        subjects = [Subject(HTTP, ours.server), ours]
        if options.before is not None:
            before = _ours(store, folder / "before", BEFORE, options.before)
            subjects.append(stack.enter_context(before))
        if options.peers is not None:
            subjects.append(stack.enter_context(_torchserve(options.peers, store, folder / "torchserve")))
        for server in {id(each.server): each.server for each in subjects}.values():
            server.register(f"{NAME}.mar", NAME, batch_size=options.batch, max_batch_delay=options.delay)
        yield subjects


@contextlib.contextmanager
def _ours(store: Path, folder: Path, name: str = GRPC, checkout: Path | None = None) -> Iterator[Subject]:
    settings, inference = grpc_settings()
    with model_server(store, folder, settings, checkout=checkout) as server:
        yield Subject(name, server, inference)


@contextlib.contextmanager
def _torchserve(peers: Path, store: Path, folder: Path) -> Iterator[Subject]:
    with torchserve_server(peers, store, f"{NAME}.mar", folder) as server:
        lines = (folder / "config.properties").read_text("utf-8").splitlines()
        port = next(int(line.partition("=")[2]) for line in lines if line.startswith("grpc_inference_port="))
        yield Subject(TORCHSERVE, server, port)


def measure(options: Options) -> Measured:
    """All subjects in turns."""
    takers: list[Callable[[int], Sample]] = []
    with started(options) as subjects:
        for (connections, streams), subject in itertools.product(SHAPES, subjects):
            trial = run_h2load(subject.flood(connections, streams, 2000))
            trial = run_h2load(subject.flood(connections, streams, max(2000, int(trial.rate))))
            requests = max(1000, int(trial.rate * options.duration))
            takers.append(partial(take, subject, subject.flood(connections, streams, requests), connections))
        samples = interleaved(options.reps, takers, tell)
    return samples, report(samples), marks(samples)


def take(subject: Subject, flood: Flood, connections: int, repetition: int) -> Sample:
    """One measurement of one subject."""
    running, alone = partial(run_h2load, flood), subject.name != TORCHSERVE
    return measured(subject.server, running, subject.name, connections, repetition, alone=alone)


def report(samples: Sequence[Sample]) -> str:
    """A Markdown table."""
    summary = figures(samples)
    rows = []
    for each in summary:
        both = of(each.subject, each.connections), of(HTTP, each.connections)
        cells = (*each.values, ratio(samples, *both), ratio(samples, *both, "cpu_us"))
        streams = dict(SHAPES)[each.connections]
        rows.append([f"{each.subject}, {each.connections} x {streams}", *map(number, cells)])
    headers = ["asked", "requests/s", "p50 ms", "p99 ms", "server CPU-µs/request"]
    return table([*headers, "rate to HTTP's", "CPU to HTTP's"], rows) + "\n"


def marks(samples: Sequence[Sample]) -> list[Mark]:
    """What a call should cost; beside servers that were measured."""
    names = {each.subject for each in samples}
    group = []
    for connections, streams in SHAPES:
        at = f"at {connections} x {streams}"
        mine = of(GRPC, connections)
        cost = ratio(samples, mine, of(HTTP, connections), "cpu_us")
        group.append(Mark(f"CPU of {GRPC} / {HTTP} {at}", cost, "<=", 3.0))
        for name, target in ((BEFORE, 2.5), (TORCHSERVE, 2.0)):
            if name in names:
                rate = ratio(samples, mine, of(name, connections))
                group.append(Mark(f"rate of {GRPC} / {name} {at}", rate, ">=", target))
    return group


if __name__ == "__main__":
    raise SystemExit(main())
