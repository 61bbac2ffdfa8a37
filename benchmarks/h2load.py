"""A closed loop by ``h2load`` (Debian's ``nghttp2-client``): streams over HTTP/2, or requests over HTTP/1.1.

A gRPC call that fails is answered 200 as well, but has no message: so the bytes of the answers are counted.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import Outcome, cpu_of, outcome_of
from benchmarks.servers import BenchmarkError

_GRPC = ("content-type: application/grpc", "te: trailers")
_SUCCEEDED = re.compile(r"requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout")
_STATUSES = re.compile(r"status codes: (\d+) 2xx")
_DATA = re.compile(r"traffic: .* \((\d+)\) data")
_RATE = re.compile(r"finished in .*, ([\d.]+) req/s")


@dataclass(frozen=True, slots=True)
class Flood:
    """``requests`` with this body over so many connections, on each so many at a time.

    ``grpc``: calls over HTTP/2, whose ``body`` is a message; otherwise requests over HTTP/1.1. ``answer`` is
    how many bytes each answer must have.
    """

    url: str
    body: bytes
    connections: int
    streams: int
    requests: int
    answer: int
    grpc: bool


def run_h2load(flood: Flood) -> Outcome:
    """Run it. Raises BenchmarkError where ``h2load`` is not installed, or cannot run."""
    if shutil.which("h2load") is None:
        raise BenchmarkError("h2load is not installed: apt-get install nghttp2-client")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        prefix = b"\0" + len(flood.body).to_bytes(4, "big") if flood.grpc else b""
        body.write_bytes(prefix + flood.body)
        before = cpu_of(resource.RUSAGE_CHILDREN)
        done = subprocess.run(_command(flood, body, log), capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchmarkError(f"h2load failed: {done.stderr or done.stdout}")
        spent = cpu_of(resource.RUSAGE_CHILDREN) - before
        return read_h2load(flood, done.stdout, log.read_text("utf-8"), spent)


def _command(flood: Flood, body: Path, log: Path) -> list[str]:
    command = ["h2load", "-n", str(flood.requests), "-c", str(flood.connections), "-m", str(flood.streams)]
    command += ["-d", str(body), f"--log-file={log}"]
    command += [part for each in _GRPC for part in ("-H", each)] if flood.grpc else ["--h1"]
    return [*command, flood.url]


def read_h2load(flood: Flood, output: str, log: str, client_cpu: float) -> Outcome:
    """The outcome that ``h2load`` printed; its log has a line for each answer: start, status and µs."""
    ended, good = _SUCCEEDED.search(output), _STATUSES.search(output)
    rate, data = _RATE.search(output), _DATA.search(output)
    if ended is None or good is None or rate is None or data is None:
        raise BenchmarkError(f"h2load printed something unknown: {output}")
    failures = Counter(
        {
            "failed, errored or timed out": sum(map(int, ended.groups()[1:])),
            "status other than 2xx": flood.requests - int(good[1]),
            "answers of another size": int(int(data[1]) != flood.requests * flood.answer),
        }
    )
    latencies = [int(line.split("\t")[2]) / 1e6 for line in log.splitlines()]
    return outcome_of(latencies, float(rate[1]), failures, "h2load", client_cpu, requests=flood.requests)
