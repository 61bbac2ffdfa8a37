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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import uvloop

from benchmarks.servers import HOST
from benchmarks.works import Question
from modelserver.ext.console.simulation import figures
from modelserver.tools.http_client import Requester, TimedResponse

Client = Literal["auto", "wrk", "asyncio"]
CLIENTS: tuple[Client, ...] = ("auto", "wrk", "asyncio")
SCRIPT = Path(__file__).with_name("post.lua")
ANSWER_TIMEOUT = 100.0  # seconds after which an answer counts as lost


@dataclass(frozen=True, slots=True)
class Load:
    """Put a question to a port over so many connections for ``seconds``.

    ``settle`` seconds come before and do not count (our own client only).
    """

    port: int
    question: Question
    connections: int
    seconds: float
    settle: float = 0.0


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
    question, url = load.question, f"http://{HOST}:{load.port}{load.question.path}"
    with tempfile.NamedTemporaryFile(prefix="benchmark-body-") as file:
        file.write(question.body)
        file.flush()
        command = ["wrk", "-t1", f"-c{load.connections}", f"-d{math.ceil(load.seconds)}s"]
        command += ["--timeout", f"{ANSWER_TIMEOUT:.0f}s", "-s", str(SCRIPT), url]
        headers = "".join(f"{name}: {value}\n" for name, value in question.headers.items())
        environment = {"BENCHMARK_BODY": file.name, "BENCHMARK_HEADERS": headers}
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
    outcome = uvloop.run(_closed_loop(load))
    return replace(outcome, client_cpu=cpu_of(resource.RUSAGE_SELF) - before)


async def _closed_loop(load: Load) -> Outcome:
    """What counts begins after the last answer of the settling time and ends with the last answer in time, so
    whole batches are divided by the time of whole batches.
    """
    request, loop = load.question.message(), asyncio.get_running_loop()
    failures = Counter[str]()
    answers: list[tuple[float, float]] = []  # time since the start, latency
    end = math.inf

    def send() -> None:
        if end == math.inf:
            requester.send(0, request)

    def answered(_: int, answer: TimedResponse) -> None:
        if fault := fault_of(answer):
            failures[fault] += 1
            loop.call_later(0.05, send)
            return
        answers.append((answer.sent + answer.seconds, answer.seconds))
        send()

    def too_early() -> bool:
        """Whether a time shorter than one answer must be made longer: until that answer, or any failure."""
        counts = bool(answers) and answers[-1][0] > load.settle
        return not counts and not failures and time.perf_counter() - requester.began < ANSWER_TIMEOUT

    requester = Requester(HOST, load.port, load.connections, answered)
    for _ in range(load.connections):
        send()
    await asyncio.sleep(load.settle + load.seconds)
    while too_early():  # noqa: ASYNC110 - seldom and short
        await asyncio.sleep(0.01)
    end = time.perf_counter() - requester.began
    await last_answers(requester, failures)
    settled = [at for at, _ in answers if at <= load.settle]
    counted = [each for each in answers if each[0] <= end][len(settled) :]
    took = counted[-1][0] - max(settled, default=0.0) if counted else 1.0
    latencies = [latency for _, latency in counted]
    return outcome_of(latencies, len(counted) / took, failures, "asyncio", requests=len(answers))


async def last_answers(requester: Requester, failures: Counter[str]) -> None:
    """Waits for all that were sent; those that are lost are failures."""
    await requester.drain(ANSWER_TIMEOUT)
    failures["timeout"] += requester.pending
    requester.close()


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; NaN of nothing."""
    return figures.percentile(sorted(values), percent)


def outcome_of(
    latencies: Sequence[float],
    rate: float,
    failures: Mapping[str, int],
    client: str,
    cpu: float = 0.0,
    *,
    requests: int | None = None,
) -> Outcome:
    """An outcome by its latencies in seconds; ``requests`` are as many where nothing else is passed."""
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


def fault_of(answer: TimedResponse) -> str:
    """Why an answer is a failure; empty if it is none."""
    return answer.fault or ("" if 200 <= answer.status < 300 else f"status {answer.status}")
