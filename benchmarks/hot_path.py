"""What does the server itself compute for a request, without sockets, kernel and workers?

The bytes of requests go into the protocol, those of a worker's answers into the channel, all in one process:
parse, queue, batch, frame, deliver, answer, count, log. Beside it, uvicorn with the echo application.
Some subjects are recorded, go to two versions by weight, or are traced: each hundredth has spans, which
nobody exports.
Figures are the least of many short measurements: whatever else a machine does can only add to them, so that
they repeat within about one percent and guard against regressions. On a busy machine ``--instructions`` is
steadier: valgrind counts what a request takes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import uvloop
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from uvicorn import Config
from uvicorn import Server as Uvicorn

from benchmarks import echo, options, report
from modelserver.engine.pools.channel import Channel
from modelserver.engine.pools.devices import DeviceRing
from modelserver.engine.pools.flights import MAX_IN_FLIGHT, Flights
from modelserver.engine.pools.pool import Pool
from modelserver.engine.pools.spec import PoolLimits, Receiver, WorkerSpec, WorkerState, WorkerTimes
from modelserver.engine.pools.worker import Worker
from modelserver.engine.telemetry.access import AccessLog
from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.engine.wire.frames import encode
from modelserver.engine.wire.messages import Answer, Load, Predict, Result
from modelserver.ext.otel.requests import watch_with
from modelserver.ext.otel.spans import Tracing
from modelserver.ext.recording.recorder import LiveRecording, Recorder, RecordingOptions
from modelserver.ext.rollout.plan import Plan
from modelserver.ext.rollout.traffic import ModelTraffic
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.version import ModelVersion
from modelserver.surface.http.connection import HttpListener
from modelserver.surface.http.protocol import HttpProtocol
from modelserver.surface.inference.inference import InferenceApi
from modelserver.surface.watching import Watch, joined

WIDTH = 32
BODY = b"x" * 64
REQUEST = (
    b"POST /predictions/noop HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
_FOREVER = WorkerTimes(startup=1e6, response=1e6, silence=1e6, max_retry=1e6)


class Transport(asyncio.Transport):
    """Counts what is written, and keeps the last of it."""

    def __init__(self, **extra: Any) -> None:
        super().__init__({"peername": ("127.0.0.1", 5000), "sockname": ("127.0.0.1", 8080), **extra})
        self.writes = 0
        self.last: Any = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1
        self.last = data

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Subject:
    """Serves ``WIDTH`` requests, one on each of its connections, in one turn."""

    writes = 1  # for each answer

    def connect(self, make: Callable[[], Any]) -> None:
        """Opens the connections."""
        self._connections = [make() for _ in range(WIDTH)]
        self._transports = [Transport() for _ in range(WIDTH)]
        for connection, transport in zip(self._connections, self._transports, strict=True):
            connection.connection_made(transport)

    async def turn(self) -> float:
        """Returns the processor seconds of it that are not the subject's own."""
        for connection in self._connections:
            connection.data_received(REQUEST)
        await asyncio.sleep(0)
        return 0.0

    @property
    def answered(self) -> int:
        """Answers so far."""
        return sum(transport.writes for transport in self._transports) // self.writes


class Echo(Subject):
    """uvicorn as it is, with the application that :mod:`benchmarks.compare` compares with."""

    writes = 2  # the head and the body

    def __init__(self) -> None:
        config = Config(echo.app, "httptools", ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        state, make = Uvicorn(config).server_state, cast("Any", config.http_protocol_class)
        self.connect(lambda: make(config, state, {}))


class _Flights(Flights):
    """Many at a time, whatever they take."""

    def __init__(self, concurrency: int) -> None:
        super().__init__(concurrency)
        self.capacity = MAX_IN_FLIGHT

    def _learn(self, seconds: float) -> None:
        """The capacity stays."""


class _StandIn(Worker):
    """A worker that is always ready and whose process somebody else plays."""

    def play(self, process: Any) -> None:
        self.flights = _Flights(0)
        self.flights.process = process
        self.state = WorkerState.READY

    async def _supervise(self) -> None:
        pass


class _Process:
    """Takes batches as frames; answers them all when it is asked to."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, int]] = []

    def send(self, message: Predict, bodies: Sequence[bytes] = ()) -> None:
        encode(message, bodies)
        self._batches.append((message.sequence, len(message.rows)))

    def answer(self) -> bytes:
        batches, self._batches = self._batches, []
        return b"".join(_result(sequence, count) for sequence, count in batches)


def _result(sequence: int, count: int) -> bytes:
    answers = [Answer(len(echo.ANSWER), 200, "application/json")] * count
    return b"".join(encode(Result(sequence, answers, 1e-5), [echo.ANSWER] * count))


class Server(Subject):
    """The hot way of the server, with batches of ``batch_size``, perhaps recorded, traced or weighted."""

    def __init__(self, batch_size: int, feature: str = "") -> None:
        metrics = ServerMetrics()
        self._access = AccessLog()
        self._access.start(asyncio.get_running_loop())
        model_metrics = metrics.model("noop", "1.0")
        spec = WorkerSpec(Load("noop", "1.0", "/", "noop", batch_size), 1, 1 << 30)
        limits = PoolLimits(batch_size, "greedy", 0.0, 1000, 1 << 30)
        ids, devices = itertools.count(9000).__next__, DeviceRing(0)
        self._pool = pool = Pool(
            "noop", "noop_1.0", spec, _FOREVER, limits, next_id=ids, devices=devices, metrics=model_metrics
        )
        worker = _StandIn(9000, "W-9000-noop_1.0", spec, _FOREVER, pool.dispatch)
        self._process = _Process()
        worker.play(self._process)
        pool.workers.append(worker)
        options_ = ModelOptions(batch_size=batch_size)
        version, other = (
            ModelVersion("noop", name, "noop.mar", None, options_, "python", pool, model_metrics)
            for name in ("1.0", "2.0")
        )
        if feature == "weighted":
            version.traffic = ModelTraffic("noop")
            version.traffic.follow({"1.0": version, "2.0": other}, "1.0")
            version.traffic.adopt(Plan({"1.0": 50, "2.0": 50}))
        watches: list[Watch] = []
        if feature == "traced":
            sampler = ParentBased(TraceIdRatioBased(0.01))
            provider = TracerProvider(sampler, shutdown_on_exit=False)
            watches.append(watch_with(Tracing(provider, SpanProcessor(), lambda *_: None)))
        if feature == "recorded":
            recorder = Recorder()
            self._client = asyncio.create_task(_take(recorder.start(RecordingOptions())))
            watches.append(recorder.watch)
        registry: Any = _OneModel(version)
        hot = InferenceApi(registry, 1 << 20, watch=joined(watches))

        def on_response(*response: Any) -> None:
            metrics.response(response[4])
            self._access.log(*response)

        listener = HttpListener(cast("Any", echo.app), hot, 1 << 20, on_response)
        self.connect(lambda: HttpProtocol(listener))
        self._channel = Channel(Receiver(worker._on_message, worker._on_lost), 1 << 30)
        self._channel.connection_made(Transport(socket=socket.socketpair()[0]))

    async def turn(self) -> float:
        for connection in self._connections:
            connection.data_received(REQUEST)
        self._pool.dispatch.pump()
        playing = 0.0
        while True:
            started = time.process_time()
            answers = self._process.answer()
            playing += time.process_time() - started
            if not answers:
                break
            self._channel.data_received(answers)
        # What was recorded is taken now and then.
        await asyncio.sleep(0)
        return playing


async def _take(recording: LiveRecording) -> None:
    """The client that records."""
    async for _ in recording.frames():
        pass


class _OneModel:
    """As much of a registry as the hot way asks for."""

    def __init__(self, version: ModelVersion) -> None:
        self._version = version

    def version_for(self, name: str, version: str | None, headers: object) -> ModelVersion:
        traffic = self._version.traffic
        return self._version if traffic is None else traffic.choose(cast("Any", headers))


async def cost(subject: Subject, requests: int) -> float:
    """Processor seconds of one request, after as many to warm up.

    Raises RuntimeError if any went unanswered.
    """
    turns = max(1, requests // WIDTH)
    for _ in range(turns):
        await subject.turn()
    before = subject.answered
    started = time.process_time()
    others = 0.0
    for _ in range(turns):
        others += await subject.turn()
    seconds = time.process_time() - started - others
    if subject.answered - before != turns * WIDTH:
        raise RuntimeError(f"{turns * WIDTH} requests got {subject.answered - before} answers")
    return seconds / (turns * WIDTH)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "uvicorn, echo": Echo,
    **{f"batch {size}": partial(Server, size) for size in (1, 32)},
    **{
        f"{feature} {size}": partial(Server, size, feature)
        for feature in ("recorded", "weighted", "traced")
        for size in (1, 32)
    },
}


async def measure(requests: int, reps: int) -> dict[str, list[float]]:
    """Seconds per request of each subject, one figure per repetition, interleaved."""
    subjects = {name: make() for name, make in SUBJECTS.items()}
    gc.collect()
    gc.freeze()
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(reps):
        for name, subject in subjects.items():
            seconds[name].append(await cost(subject, requests))
    return seconds


def alone(name: str, requests: int) -> None:
    """Serves so many requests by one subject, and as many before to warm up."""

    async def serve() -> None:
        await cost(SUBJECTS[name](), requests)

    uvloop.run(serve())


def instructions(name: str, requests: int) -> int:
    """Instructions of one request: what twice as many need more, by valgrind's count.

    Raises FileNotFoundError without valgrind, and CalledProcessError.
    """
    program = "import sys; from benchmarks.hot_path import alone; alone(sys.argv[1], int(sys.argv[2]))"
    command = [*VALGRIND, sys.executable, "-c", program, name]
    counts = []
    for number in (requests, 2 * requests):
        done = subprocess.run(
            [*command, str(number)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        match = re.search(r"I +refs: +([\d,]+)", done.stderr)
        assert match is not None, done.stderr
        counts.append(int(match[1].replace(",", "")))
    # Those that warm up are as many again.
    return (counts[1] - counts[0]) // (2 * requests)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser("benchmarks hot_path", description=__doc__)
    parser.add_argument("--reps", type=int, default=60, help="repetitions, interleaved (default: 60)")
    parser.add_argument("--requests", type=int, default=1000, help="of one measurement (default: 1000)")
    counted = "count them, by valgrind; takes some minutes"
    parser.add_argument("--instructions", action="store_true", help=counted)
    chosen = parser.parse_args(arguments)
    if chosen.instructions:
        rows = [[name, f"{instructions(name, chosen.requests):,}"] for name in SUBJECTS]
        print(report.table(["subject", "instructions/request"], rows))
        return 0
    seconds = uvloop.run(measure(chosen.requests, chosen.reps))
    least = {name: min(values) for name, values in seconds.items()}
    base = least["uvicorn, echo"]
    rows = [[name, f"{each * 1e6:.1f}", f"{each / base:.2f}"] for name, each in least.items()]
    print(report.table(["subject", "CPU-µs/request", "to echo"], rows))
    return 0


if __name__ == "__main__":
    options.run(main)
