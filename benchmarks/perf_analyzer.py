"""What Triton's ``perf_analyzer`` measures over each protocol: its figures beside the server's statistics."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.report import number, table
from benchmarks.servers import HOST, BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIGNATURE = """
signature:
  inputs: [{name: x, datatype: FP32, shape: [-1, 16]}]
"""
_FIGURES = re.compile(
    r"Throughput: ([\d.]+) infer/sec.*?Avg latency: (\d+) usec.*?Avg request latency: (\d+) usec"
    r" \(overhead (\d+) usec \+ queue (\d+) usec \+ compute input \d+ usec \+ compute infer (\d+) usec",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Found:
    """Requests/s and microseconds: of a request, as client and server measure it, and of its parts."""

    rate: float
    client: float
    server: float
    overhead: float
    queue: float
    inference: float


def read(printed: str) -> Found:
    """The figures of the last measurement. Raises BenchmarkError if there is none."""
    found = _FIGURES.findall(printed)
    if not found:
        raise BenchmarkError(f"perf_analyzer measured nothing: {printed[-500:]}")
    return Found(*map(float, found[-1]))


def measure(
    program: Path, model: str, ports: dict[str, int], connections: int, seconds: float
) -> Iterator[list[str]]:
    """A row of the report for each of the protocols, whose ports are given, with and without shared memory.

    Raises BenchmarkError.
    """
    for protocol, port in ports.items():
        for shared in (False, True):
            command = [str(program), "-m", model, "-i", protocol, "-u", f"{HOST}:{port}"]
            command += ["--concurrency-range", str(connections), "--stability-percentage", "50"]
            command += ["--measurement-interval", f"{seconds * 1000:.0f}"]
            command += ["--shared-memory", "system"] if shared else []
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
            if done.returncode:
                raise BenchmarkError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-500:]}")
            found = read(done.stdout)
            name = f"{protocol}, shared memory" if shared else protocol
            figures = (found.rate, found.client, found.server, found.queue, found.inference, found.overhead)
            yield [name, *map(number, figures)]


def report(rows: list[list[str]]) -> str:
    """A Markdown table."""
    headers = ["protocol", "requests/s", "client's µs", "server's µs", "queue", "inference", "else"]
    return "\n".join(["## perf_analyzer: 16 numbers", "", table(headers, rows), ""])
