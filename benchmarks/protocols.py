"""What each protocol costs: requests per second and processor time, beside a bare echo of the same body.

A model that does nothing is asked for the same numbers over /predictions, V1, V2 in JSON and in binary, V2
over gRPC with typed and raw contents, and TorchServe's gRPC. HTTP is compared with bare uvicorn, gRPC with a
bare server of grpc.aio: both read the body and answer a few bytes. Everything is measured in turns.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy

from benchmarks.archives import build_handler
from benchmarks.grpc_load import call_once, grpc_echo_server, run_grpc
from benchmarks.load import Client, Load, Outcome, chosen, run_load
from benchmarks.measure import Sample, figures, interleaved, measured, of, ratio
from benchmarks.options import Measured, Options, common_parser, perform, program, tell
from benchmarks.report import number, table
from benchmarks.servers import (
    QUEUE_SIZE,
    BenchmarkError,
    Running,
    ask,
    echo_server,
    grpc_settings,
    model_server,
)
from benchmarks.works import Question
from modelserver.ext.grpc.messages import message

HANDLER = '''"""Answers at once; rows of numbers are arrays, as numpy is there."""

import numpy


def handle(data, context):
    return None if data is None else [{"ok": 1} for _ in data]
'''
MODEL = "noop"
CONTENTS = {"noop": (1, 16), "tensor": (1, 3, 224, 224)}
TITLES = {"noop": "No-op: 16 numbers", "tensor": "Tensor: 1x3x224x224 of FP32"}
PREDICTIONS = "/predictions"
# Methods, and the messages that they take.
_PREDICT = (
    "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions",
    "org.pytorch.serve.grpc.inference.PredictionsRequest",
)
_BYTES = "application/octet-stream"
_INFER = ("/inference.GRPCInferenceService/ModelInfer", "inference.ModelInferRequest")


@dataclass(frozen=True, slots=True)
class Asking:
    """A protocol and what is sent by it; with ``grpc`` the path is a method, and the body a message."""

    protocol: str
    question: Question
    grpc: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """A protocol with a content, asked of our server or of the echo."""

    content: str
    asking: Asking
    echo: bool

    def __str__(self) -> str:
        whom = "echo of " if self.echo else ""
        return f"{self.content}, {whom}{self.asking.protocol}, {len(self.asking.question.body):,} bytes"


@dataclass(frozen=True, slots=True)
class Servers:
    """What runs; ``grpc_port`` is our server's."""

    ours: Running
    grpc_port: int
    echo: Running
    grpc_echo: Running


def askings(shape: tuple[int, ...]) -> list[Asking]:
    """All protocols, for a tensor of this shape with one row."""
    tensor = numpy.random.default_rng(0).uniform(-2, 2, shape).round(4)
    values, raw = tensor.ravel().tolist(), tensor.astype("<f4").tobytes()
    document: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": list(shape)}
    sized = {**document, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [sized], "parameters": {"binary_data_output": True}}).encode()
    length = ("Inference-Header-Content-Length", str(len(head)))
    v2 = f"/v2/models/{MODEL}/infer"
    return [
        Asking(PREDICTIONS, Question(f"/predictions/{MODEL}", raw, _BYTES)),
        _json("V1", f"/v1/models/{MODEL}:predict", {"instances": tensor.tolist()}),
        _json("V2, JSON", v2, {"inputs": [{**document, "data": values}]}),
        Asking("V2, binary", Question(v2, head + raw, _BYTES, (length,))),
        _grpc("V2, gRPC, typed", inputs=[{**document, "contents": {"fp32_contents": values}}]),
        _grpc("V2, gRPC, raw", inputs=[document], raw_input_contents=[raw]),
        _grpc("TorchServe's gRPC", _PREDICT, input={"data": raw}),
    ]


def _json(protocol: str, path: str, document: object) -> Asking:
    body = json.dumps(document, separators=(",", ":")).encode()
    return Asking(protocol, Question(path, body, "application/json"))


def _grpc(protocol: str, call: tuple[str, str] = _INFER, **fields: object) -> Asking:
    method, request = call
    body = message(request)(model_name=MODEL, **fields).SerializeToString()
    return Asking(protocol, Question(method, body), grpc=True)


def parse(arguments: Sequence[str] | None) -> Options:
    """The command line."""
    parser = common_parser("protocols", __doc__, duration=2.0)
    add = parser.add_argument
    add("--contents", nargs="+", choices=tuple(CONTENTS), default=tuple(CONTENTS), help="default: both")
    add("--connections", type=int, default=8, help="default: 8")
    add("--batch", type=int, default=8, help="batch_size of the model, adaptive; default: 8")
    return parser.parse_args(arguments)


@program(parse)
def main(options: Options) -> int:
    """Measure and report; 1 if a figure is void or a server does not start."""
    points = [
        Point(content, asking, echo)
        for content in options.contents
        for asking in askings(CONTENTS[content])
        for echo in (True, False)
    ]
    facts = {
        "client": f"{chosen(options.client)}; for gRPC grpc.aio, which computes more than the servers do",
        "model": f"no-op, one worker, batches of {options.batch}, adaptive",
        "connections": str(options.connections),
        "job_queue_size": str(QUEUE_SIZE),
        "access log and metrics": "on, as shipped (the echoes have neither)",
        "measurements": f"{options.reps} x {options.duration:g} s, interleaved",
    }
    return perform(options, "Protocols", facts, points, partial(measure, points, options))


def measure(points: Sequence[Point], options: Options) -> Measured:
    """All points in turns. Raises BenchmarkError if one of them is not answered as it should be."""
    with started(options.batch) as servers:
        for point in points:
            check(servers, point)
            load(servers, point, options.connections, options.warmup / 4, options.client)
        takers = [partial(take, servers, point, options) for point in points]
        samples = interleaved(options.reps, takers, tell)
    return samples, "\n".join(report(each, points, samples) for each in options.contents), []


@contextlib.contextmanager
def started(batch: int) -> Iterator[Servers]:
    """Our server with the model, and both echoes. Raises BenchmarkError."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        store = folder / "store"
        build_handler(store, MODEL, HANDLER)
        settings, inference = grpc_settings()
        ours = stack.enter_context(model_server(store, folder / "server", settings))
        ours.register(f"{MODEL}.mar", MODEL, batch_size=batch, batch_policy="adaptive")
        echo = stack.enter_context(echo_server(folder / "echo"))
        yield Servers(ours, inference, echo, stack.enter_context(grpc_echo_server(folder / "grpc-echo")))


def server_of(servers: Servers, point: Point) -> tuple[Running, int]:
    """Whose processor time counts, and the port to ask at."""
    if point.echo:
        echo = servers.grpc_echo if point.asking.grpc else servers.echo
        return echo, echo.port
    return servers.ours, servers.grpc_port if point.asking.grpc else servers.ours.port


def check(servers: Servers, point: Point) -> None:
    """Raises BenchmarkError unless the point is answered, and with what the model says."""
    port, question = server_of(servers, point)[1], point.asking.question
    if point.asking.grpc:
        answer = call_once(port, question.path, question.body)
    else:
        _, answer = ask(port, question)
    if b"ok" not in answer:
        raise BenchmarkError(f"{point} was answered {answer[:500]!r}")


def load(servers: Servers, point: Point, connections: int, seconds: float, client: Client) -> Outcome:
    """Load the point's server with the point's requests."""
    what = Load(server_of(servers, point)[1], point.asking.question, connections, seconds)
    return run_grpc(what) if point.asking.grpc else run_load(what, client)


def take(servers: Servers, point: Point, options: Options, repetition: int) -> Sample:
    """One measurement of one point."""
    server, _ = server_of(servers, point)
    running = partial(load, servers, point, options.connections, options.duration, options.client)
    return measured(server, running, str(point), options.connections, repetition)


def report(content: str, points: Sequence[Point], samples: Sequence[Sample]) -> str:
    """A Markdown table of one content."""
    summary = {each.subject: each for each in figures(samples)}
    mine = [point for point in points if point.content == content]
    echoes = {point.asking.protocol: point for point in mine if point.echo}
    ours = [point for point in mine if not point.echo]
    rows = []
    for point in ours:
        echo = echoes[point.asking.protocol]
        figure, base = summary[str(point)], summary[str(echo)]
        both = of(point), of(echo)
        cells = [figure.rate, base.rate, ratio(samples, *both), figure.cpu_us, base.cpu_us]
        cells += [ratio(samples, of(point), each, "cpu_us") for each in (of(echo), of(ours[0]))]
        rows.append([point.asking.protocol, f"{len(point.asking.question.body):,}", *map(number, cells)])
    headers = ["protocol", "bytes", "requests/s", "echo", "to echo", "server CPU-µs/request", "echo"]
    headers += ["to echo", f"to {ours[0].asking.protocol}"]
    return "\n".join([f"## {TITLES[content]}", "", table(headers, rows), ""])


if __name__ == "__main__":
    raise SystemExit(main())
