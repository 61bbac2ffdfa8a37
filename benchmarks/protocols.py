"""What each protocol costs: requests per second and processor time, beside a bare echo of the same body.

A model that does nothing is asked for the same numbers over /predictions, V1, V2 in JSON and in binary, V2
over gRPC with typed and raw contents, and TorchServe's gRPC. HTTP is compared with bare uvicorn, gRPC with a
bare server of grpc.aio: both read the body and answer a few bytes. Everything is measured in turns.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from benchmarks import measure as measuring
from benchmarks.archives import build_handler
from benchmarks.grpc_load import Calls, call_once, grpc_echo_server, run_grpc
from benchmarks.load import Client, Load, Outcome, chosen, run_load
from benchmarks.measure import Sample, cpu_ratio, figures, interleaved, named, ratio
from benchmarks.options import common_parser, perform, run, tell, tells_failures
from benchmarks.report import number, table
from benchmarks.servers import (
    HOST,
    QUEUE_SIZE,
    BenchmarkError,
    ModelServer,
    Running,
    call,
    echo_server,
    grpc_settings,
    model_server,
)
from modelserver.ext.grpc.messages import message

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.report import Mark

HANDLER = '''"""Answers at once; rows of numbers are arrays, as numpy is there."""

import numpy


def handle(data, context):
    return None if data is None else [{"ok": 1} for _ in data]
'''
MODEL = "noop"
CONTENTS = {"noop": (1, 16), "tensor": (1, 3, 224, 224)}
TITLES = {"noop": "No-op: 16 numbers", "tensor": "Tensor: 1x3x224x224 of FP32"}
PREDICTIONS = "/predictions"
_PREDICT = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
_INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True, slots=True)
class Asking:
    """How a protocol asks: a POST of ``body`` to the path ``to``, or a call of that method of gRPC."""

    protocol: str
    to: str
    body: bytes
    grpc: bool = False
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """A protocol with a content, asked of our server or of the echo."""

    content: str
    asking: Asking
    echo: bool

    def __str__(self) -> str:
        whom = "echo of " if self.echo else ""
        return f"{self.content}, {whom}{self.asking.protocol}, {len(self.asking.body):,} bytes"


@dataclass(frozen=True, slots=True)
class Servers:
    """What runs; ``grpc_port`` is our server's."""

    ours: ModelServer
    grpc_port: int
    echo: Running
    grpc_echo: Running


def askings(shape: tuple[int, ...]) -> list[Asking]:
    """All protocols, for a tensor of this shape with one row."""
    tensor = numpy.random.default_rng(0).uniform(-2, 2, shape).round(4)
    values, raw = tensor.ravel().tolist(), tensor.astype("<f4").tobytes()
    return [
        Asking(PREDICTIONS, f"/predictions/{MODEL}", raw, content_type="application/octet-stream"),
        _json("V1", f"/v1/models/{MODEL}:predict", {"instances": tensor.tolist()}),
        _json("V2, JSON", f"/v2/models/{MODEL}/infer", {"inputs": [{**_input(shape), "data": values}]}),
        _binary(shape, raw),
        _typed(shape, values),
        _raw(shape, raw),
        _torchserve(raw),
    ]


def _input(shape: Sequence[int]) -> dict[str, object]:
    return {"name": "x", "datatype": "FP32", "shape": list(shape)}


def _json(protocol: str, to: str, document: object) -> Asking:
    body = json.dumps(document, separators=(",", ":")).encode()
    return Asking(protocol, to, body, content_type="application/json")


def _binary(shape: Sequence[int], raw: bytes) -> Asking:
    field = {**_input(shape), "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [field], "parameters": {"binary_data_output": True}}).encode()
    return Asking(
        "V2, binary",
        f"/v2/models/{MODEL}/infer",
        head + raw,
        content_type="application/octet-stream",
        headers=(("Inference-Header-Content-Length", str(len(head))),),
    )


def _typed(shape: Sequence[int], values: list[float]) -> Asking:
    field = {**_input(shape), "contents": {"fp32_contents": values}}
    request = message("inference.ModelInferRequest")(model_name=MODEL, inputs=[field])
    return Asking("V2, gRPC, typed", _INFER, request.SerializeToString(), grpc=True)


def _raw(shape: Sequence[int], raw: bytes) -> Asking:
    request = message("inference.ModelInferRequest")(
        model_name=MODEL, inputs=[_input(shape)], raw_input_contents=[raw]
    )
    return Asking("V2, gRPC, raw", _INFER, request.SerializeToString(), grpc=True)


def _torchserve(raw: bytes) -> Asking:
    kind = message("org.pytorch.serve.grpc.inference.PredictionsRequest")
    request = kind(model_name=MODEL, input={"data": raw})
    return Asking("TorchServe's gRPC", _PREDICT, request.SerializeToString(), grpc=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common_parser("benchmarks protocols", __doc__, duration=2.0)
    add = parser.add_argument
    add("--contents", nargs="+", choices=tuple(CONTENTS), default=tuple(CONTENTS), help="default: both")
    add("--connections", type=int, default=8, help="default: 8")
    add("--batch", type=int, default=8, help="batch_size of the model, adaptive; default: 8")
    return parser.parse_args(arguments)


@tells_failures
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a figure is void or a server does not start."""
    options = parse(arguments)
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

    def measured() -> tuple[list[Sample], str, list[Mark]]:
        samples = measure(points, options)
        return samples, "\n".join(report(each, points, samples) for each in options.contents), []

    return perform(options, "Protocols", facts, points, measured)


def measure(points: Sequence[Point], options: argparse.Namespace) -> list[Sample]:
    """All points in turns. Raises BenchmarkError if one of them is not answered as it should be."""
    with started(options.batch) as servers:
        for point in points:
            check(servers, point)
            load(servers, point, options.connections, options.warmup / 4, options.client)
        takers: list[Callable[[int], Sample]] = [partial(take, servers, point, options) for point in points]
        return interleaved(options.reps, takers, tell)


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
    _, port = server_of(servers, point)
    asking = point.asking
    if asking.grpc:
        answer = call_once(port, asking.to, asking.body)
    else:
        kind, headers = asking.content_type, asking.headers
        _, answer = call(port, "POST", asking.to, asking.body, content_type=kind, headers=headers)
    if b"ok" not in answer:
        raise BenchmarkError(f"{point} was answered {answer[:500]!r}")


def load(servers: Servers, point: Point, connections: int, seconds: float, client: Client) -> Outcome:
    """Load the point's server with the point's requests."""
    _, port = server_of(servers, point)
    asking = point.asking
    if asking.grpc:
        return run_grpc(Calls(port, asking.to, asking.body, connections, seconds))
    url = f"http://{HOST}:{port}{asking.to}"
    return run_load(
        Load(url, asking.body, asking.content_type, connections, seconds, headers=asking.headers), client
    )


def take(servers: Servers, point: Point, options: argparse.Namespace, repetition: int) -> Sample:
    """One measurement of one point."""
    server, _ = server_of(servers, point)
    running = partial(load, servers, point, options.connections, options.duration, options.client)
    return measuring.measured(server, running, str(point), options.connections, repetition)


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
        both = named(point), named(echo)
        cells = [figure.rate, base.rate, ratio(samples, *both), figure.cpu_us, base.cpu_us]
        cells += [cpu_ratio(samples, *both), cpu_ratio(samples, named(point), named(ours[0]))]
        rows.append([point.asking.protocol, f"{len(point.asking.body):,}", *map(number, cells)])
    headers = ["protocol", "bytes", "requests/s", "echo", "to echo", "server CPU-µs/request", "echo"]
    headers += ["to echo", f"to {ours[0].asking.protocol}"]
    return "\n".join([f"## {TITLES[content]}", "", table(headers, rows), ""])


if __name__ == "__main__":
    run(main)
