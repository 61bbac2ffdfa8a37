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
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import urlsplit

import uvloop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Client = Literal["auto", "wrk", "asyncio"]
CLIENTS: tuple[Client, ...] = ("auto", "wrk", "asyncio")
SCRIPT = Path(__file__).with_name("post.lua")
ANSWER_TIMEOUT = 100.0  # seconds after which an answer counts as lost
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


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
    before = cpu_of(resource.RUSAGE_SELF)
    crowd = Crowd(load, [load.body])
    uvloop.run(crowd.run())
    return crowd.outcome(cpu_of(resource.RUSAGE_SELF) - before)


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


class Crowd:
    """All connections of a load, and what they saw."""

    def __init__(self, load: Load, bodies: Sequence[bytes]) -> None:
        self.load = load
        parts = urlsplit(load.url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        further = "".join(f"{name}: {value}\r\n" for name, value in load.headers)
        head = (
            f"POST {target} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n{further}"
            f"Content-Type: {load.content_type}\r\nContent-Length: "
        )
        self.requests = [b"%s%d\r\n\r\n%s" % (head.encode(), len(each), each) for each in bodies]
        self.failures: Counter[str] = Counter()
        self.answers: list[tuple[float, float]] = []  # time of the answer since the start, latency
        self.late = 0  # answers after the end
        self.began = 0.0
        self.open = False
        self.waiting: set[Connection] = set()
        self.all_answered = asyncio.Event()
        self._opening: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self.open = True
        self.began = time.perf_counter()
        for _ in range(self.load.connections):
            self.connect()
        await asyncio.sleep(self.load.settle + self.load.seconds)
        while self._too_early():  # noqa: ASYNC110 - seldom and short
            await asyncio.sleep(0.01)
        await self.end()

    def _too_early(self) -> bool:
        """Whether a time shorter than one answer must be made longer: until that answer, or any failure."""
        counts = bool(self.answers) and self.answers[-1][0] > self.load.settle
        return not counts and not self.failures and time.perf_counter() - self.began < ANSWER_TIMEOUT

    async def end(self) -> None:
        """Nothing new is sent; return when what was sent is answered or lost."""
        self.open = False
        await asyncio.gather(*self._opening)
        try:
            if self.waiting:
                await asyncio.wait_for(self.all_answered.wait(), ANSWER_TIMEOUT)
        except asyncio.TimeoutError:
            self.failures["timeout"] += len(self.waiting)

    def connect(self) -> None:
        task = asyncio.get_running_loop().create_task(self._connect())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        while self.open:
            try:
                await loop.create_connection(lambda: Connection(self), self.host, self.port)
            except OSError:  # noqa: PERF203 - the next attempt is the point
                self.failures["connect"] += 1
                await asyncio.sleep(0.05)
            else:
                return

    def free(self, connection: Connection) -> None:
        """A connection may send: in a closed loop it does so at once."""
        if self.open:
            connection.ask()
        else:
            connection.close()

    def answered(self, connection: Connection, status: int, _head: bytes, _content: bytes) -> None:
        self.waiting.discard(connection)
        now = time.perf_counter()
        if not 200 <= status < 300:
            self.failures[f"status {status}"] += 1
        elif self.open:
            self.answers.append((now - self.began, now - connection.sent_at))
        else:
            self.late += 1
        self.check_end()

    def lost(self, connection: Connection) -> None:
        if connection in self.waiting:
            self.waiting.discard(connection)
            self.failures["read"] += 1
        if self.open:
            self.connect()
        self.check_end()

    def check_end(self) -> None:
        if not self.open and not self.waiting:
            self.all_answered.set()

    def outcome(self, cpu: float) -> Outcome:
        which, seconds = counted([end for end, _ in self.answers], self.load.settle)
        latencies = [latency for _, latency in self.answers[which]]
        rate = len(latencies) / seconds if latencies else 0.0
        requests = len(self.answers) + self.late
        return outcome_of(latencies, rate, self.failures, "asyncio", cpu, requests=requests)


class Connection(asyncio.Protocol):
    """One client: asks, waits, asks again."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.sent_at = 0.0
        self.number = 0
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.crowd.free(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end])
        length = _CONTENT_LENGTH.search(head)
        if length is not None:
            complete = len(self._received) >= end + 4 + int(length.group(1))
        elif _CHUNKED.search(head) is not None:
            # Nothing follows it, as nothing else has been asked.
            complete = self._received.endswith(_LAST_CHUNK)
        else:
            self._answered(0, head, keep=False)
            return
        if complete:
            self._answered(int(head[9:12]), head, keep=_CLOSE.search(head) is None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.lost(self)

    def ask(self, number: int = 0) -> None:
        """Send the request, or of several the one whose turn it is; its latency counts from now."""
        assert self._transport is not None
        self.crowd.waiting.add(self)
        self.number, self.sent_at = number, time.perf_counter()
        requests = self.crowd.requests
        self._transport.write(requests[number % len(requests)])

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Hang up."""
        assert self._transport is not None
        self._transport.close()

    def _answered(self, status: int, head: bytes, *, keep: bool) -> None:
        assert self._transport is not None
        content = bytes(self._received[len(head) + 4 :])
        self._received.clear()
        self.crowd.answered(self, status, head, content)
        if keep:
            self.crowd.free(self)
        else:
            self.close()
