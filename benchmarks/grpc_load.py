"""A closed loop of gRPC calls on kept connections, by grpc.aio in this process; and the echo to compare with.

As in ``benchmarks.load``: each connection sends its next call when its answer is there, and whatever does not
end well is a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc

from benchmarks.load import ANSWER_TIMEOUT, Load, Outcome, cpu_of, outcome_of
from benchmarks.servers import HOST, ROOT, START_TIMEOUT, BenchmarkError, Running, running
from modelserver.tools.tune.own_server import free_ports

# Channels to one address share a connection otherwise.
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


def run_grpc(load: Load) -> Outcome:
    """Calls of the method ``/package.Service/Method`` that is the path of the load's question.

    Returns when the last answer is there.
    """
    before = cpu_of(resource.RUSAGE_SELF)
    answers, failures = asyncio.run(_run(load))
    rate = len(answers) / max((end for end, _ in answers), default=1.0)
    latencies = [latency for _, latency in answers]
    return outcome_of(latencies, rate, failures, "grpc.aio", cpu_of(resource.RUSAGE_SELF) - before)


async def _run(load: Load) -> tuple[list[tuple[float, float]], Counter[str]]:
    """Time since the start and latency of each answer, and the failures by reason."""
    answers: list[tuple[float, float]] = []
    failures: Counter[str] = Counter()

    async def one(channel: grpc.aio.Channel, began: float) -> None:
        call = channel.unary_unary(load.question.path)
        while (sent := time.perf_counter()) - began < load.seconds:
            try:
                await call(load.question.body, timeout=ANSWER_TIMEOUT)
            except grpc.aio.AioRpcError as error:  # noqa: PERF203 - one call may fail and the next not
                failures[f"status {error.code().name}"] += 1
            else:
                now = time.perf_counter()
                answers.append((now - began, now - sent))

    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(f"{HOST}:{load.port}", _OPTIONS))
            for _ in range(load.connections)
        ]
        for channel in channels:
            await asyncio.wait_for(channel.channel_ready(), START_TIMEOUT)
        began = time.perf_counter()
        await asyncio.gather(*(one(channel, began) for channel in channels))
    return answers, failures


def call_once(port: int, method: str, message: bytes) -> bytes:
    """One call on a connection of its own. Raises BenchmarkError with what it ended with."""
    with grpc.insecure_channel(f"{HOST}:{port}", _OPTIONS) as channel:
        try:
            answer: bytes = channel.unary_unary(method)(message, timeout=60, wait_for_ready=True)
        except grpc.RpcError as error:
            raise BenchmarkError(f"{method} ended with {error.code().name}: {error.details()}") from error
        return answer


@contextlib.contextmanager
def grpc_echo_server(folder: Path) -> Iterator[Running]:
    """The bare gRPC server of ``benchmarks.grpc_echo``; ``folder`` is its own. Raises BenchmarkError."""
    (port,) = free_ports(1)
    command = [sys.executable, str(ROOT / "benchmarks" / "grpc_echo.py"), str(port)]
    with running(command, port, folder) as server:
        yield server
