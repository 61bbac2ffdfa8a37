"""A closed loop of requests on kept connections: by wrk where it is installed, else by a client of ours.

Each connection sends its next request when its answer is there. Anything but a complete answer of 2xx is a
failure, and a figure with failures is void: see ``benchmarks.measure``.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import uvloop

from modelserver.tools.http_client import Requester, TimedResponse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Client = Literal["auto", "wrk", "asyncio"]
CLIENTS: tuple[Client, ...] = ("auto", "wrk", "asyncio")
SCRIPT = Path(__file__).with_name("post.lua")
ANSWER_TIMEOUT = 100.0  # seconds after which an answer counts as lost


@dataclass(frozen=True, slots=True)
class Load:
    """POST ``body`` to ``url`` over so many connections for ``seconds``.

    ``settle`` seconds come before and do not count (our own client only). ``headers`` are further ones.
    """

    url: str
    body: bytes
    content_type: str
    connections: int
    seconds: float
    settle: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: requests answered in all, requests per second and latencies while it counted.

    ``failures`` are counts by reason, ``client_cpu`` the processor seconds of the client.
    """

    requests: int
    rate: float
    p50_ms: float
    p99_ms: float
    failures: dict[str, int]
    client: str
    client_cpu: float


def chosen(client: Client) -> Client:
    """wrk where nothing else is said and it is installed."""
    if client != "auto":
        return client
    return "wrk" if shutil.which("wrk") else "asyncio"


def run_load(load: Load, client: Client = "auto") -> Outcome:
    """Run it; returns when the last answer is there, or with wrk when the time is over."""
    return run_wrk(load) if chosen(client) == "wrk" else run_asyncio(load)


def run_wrk(load: Load, *, pause_ms: float = 0.0) -> Outcome:
    """By wrk with one thread, for whole seconds; each connection pauses so long on average between requests.

    Raises RuntimeError with what wrk says if it fails.
    """
    with tempfile.NamedTemporaryFile(prefix="benchmark-body-") as file:
        file.write(load.body)
        file.flush()
        command = ["wrk", "-t1", f"-c{load.connections}", f"-d{math.ceil(load.seconds)}s"]
        command += ["--timeout", f"{ANSWER_TIMEOUT:.0f}s", "-s", str(SCRIPT), load.url]
        environment = {"BENCHMARK_BODY": file.name, "BENCHMARK_CONTENT_TYPE": load.content_type}
        environment["BENCHMARK_HEADERS"] = "".join(f"{name}: {value}\n" for name, value in load.headers)
        environment["BENCHMARK_PAUSE_MS"] = f"{pause_ms:.3f}"
        before = cpu_of(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        cpu = cpu_of(resource.RUSAGE_CHILDREN) - before
    return read_wrk(done.stdout, done.stderr, cpu)


def read_wrk(stdout: str, stderr: str, cpu: float) -> Outcome:
    """The line that post.lua prints. Raises RuntimeError where there is none."""
    line = re.search(r"^outcome (.*)$", stdout, re.MULTILINE)
    if line is None:
        raise RuntimeError(f"wrk gave no outcome: {stdout}{stderr}")
    report = json.loads(line.group(1))
    requests, seconds = report["requests"], report["seconds"]
    failures = dict(report["failures"]) | ({} if requests else {"nothing answered": 1})
    failures = {reason: count for reason, count in failures.items() if count}
    p50_ms, p99_ms = report["p50_us"] / 1e3, report["p99_us"] / 1e3
    return Outcome(requests, requests / seconds, p50_ms, p99_ms, failures, "wrk", cpu)


def run_asyncio(load: Load) -> Outcome:
    """By our client, in this process."""

    async def measure() -> _ClosedLoop:
        loop = _ClosedLoop(load)
        await loop.run()
        return loop

    before = cpu_of(resource.RUSAGE_SELF)
    return uvloop.run(measure()).outcome(cpu_of(resource.RUSAGE_SELF) - before)


def counted(ends: Sequence[float], settle: float) -> tuple[slice, float]:
    """Which answers count, and the seconds that they took.

    ``ends`` are ascending times since the start. What counts begins after the last answer of the settling
    time and ends with the last answer, so whole batches are divided by the time of whole batches.
    """
    first = bisect_right(ends, settle)
    began = ends[first - 1] if first else 0.0
    return slice(first, len(ends)), (ends[-1] - began if ends else 0.0)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def outcome_of(
    latencies: Sequence[float],
    rate: float,
    failures: Mapping[str, int],
    client: str,
    cpu: float,
    *,
    requests: int | None = None,
) -> Outcome:
    """An outcome by its latencies in seconds; ``requests`` are as many where nothing else is given."""
    reasons = {reason: count for reason, count in failures.items() if count}
    if not latencies:
        reasons["nothing answered"] = 1
    answered = len(latencies) if requests is None else requests
    p50, p99 = (1e3 * percentile(latencies, percent) for percent in (50, 99))
    return Outcome(answered, rate, p50, p99, reasons, client, cpu)


def cpu_of(whom: int) -> float:
    """Processor seconds, user and system, of ``resource.RUSAGE_SELF`` or ``RUSAGE_CHILDREN`` so far."""
    usage = resource.getrusage(whom)
    return usage.ru_utime + usage.ru_stime


def address_of(load: Load) -> tuple[str, int]:
    """Host and port of a load."""
    parts = urlsplit(load.url)
    return parts.hostname or "127.0.0.1", parts.port or 80


def request_of(load: Load, body: bytes) -> bytes:
    """A request of a load as it is sent, with another body."""
    parts, (host, port) = urlsplit(load.url), address_of(load)
    target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    further = "".join(f"{name}: {value}\r\n" for name, value in load.headers)
    head = (
        f"POST {target} HTTP/1.1\r\nHost: {host}:{port}\r\n{further}"
        f"Content-Type: {load.content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def fault_of(answer: TimedResponse) -> str:
    """Why an answer is a failure; empty if it is none."""
    return answer.fault or ("" if 200 <= answer.status < 300 else f"status {answer.status}")


class _ClosedLoop:
    """A load by our client, and what came of it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._request = request_of(load, load.body)
        self._failures: Counter[str] = Counter()
        self._answers: list[tuple[float, float]] = []  # time of the answer since the start, latency
        self._late = 0  # answers after the end
        self._is_open = True
        self._requester = Requester(*address_of(load), load.connections, self._answered)

    async def run(self) -> None:
        for _ in range(self._load.connections):
            self._ask()
        await asyncio.sleep(self._load.settle + self._load.seconds)
        while self._too_early():  # noqa: ASYNC110 - seldom and short
            await asyncio.sleep(0.01)
        self._is_open = False
        await self._requester.drain(ANSWER_TIMEOUT)
        self._failures["timeout"] += self._requester.pending
        self._requester.close()

    def _too_early(self) -> bool:
        """Whether a time shorter than one answer must be made longer: until that answer, or any failure."""
        counts = bool(self._answers) and self._answers[-1][0] > self._load.settle
        passed = time.perf_counter() - self._requester.began
        return not counts and not self._failures and passed < ANSWER_TIMEOUT

    def _ask(self) -> None:
        if self._is_open:
            self._requester.send(0, self._request)

    def _answered(self, _: int, answer: TimedResponse) -> None:
        if fault := fault_of(answer):
            self._failures[fault] += 1
            asyncio.get_running_loop().call_later(0.05, self._ask)
            return
        if self._is_open:
            self._answers.append((answer.sent + answer.seconds, answer.seconds))
        else:
            self._late += 1
        self._ask()

    def outcome(self, cpu: float) -> Outcome:
        which, seconds = counted([end for end, _ in self._answers], self._load.settle)
        latencies = [latency for _, latency in self._answers[which]]
        rate = len(latencies) / seconds if latencies else 0.0
        requests = len(self._answers) + self._late
        return outcome_of(latencies, rate, self._failures, "asyncio", cpu, requests=requests)
