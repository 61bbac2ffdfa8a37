"""Many workers on other machines, asked for at once: when all are ready, and what the server pays for them.

Machines are agents of this one, over the local socket as shipped; the handler needs no torch. Then clients
send marked requests, and each answer must be that of its request.
"""

from __future__ import annotations

import http.client
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.cluster_faults import NAME, peak_mb, scale, workers
from benchmarks.report import Mark, number, table
from benchmarks.servers import HOST, BenchmarkError, CpuMeter, ModelServer, memory_of, model_server
from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS = 16
SECONDS = 10.0
IDLE_SECONDS = 5.0
# Seconds for all to be gone.
_PATIENCE = 60.0
_HANDLER = """
def handle(data, context):
    return data and [row["body"] for row in data]
"""


@dataclass(frozen=True, slots=True)
class Answers:
    """What marked requests came to; ``wrong`` are answers that are not their own, or none."""

    right: int
    wrong: int
    slowest_ms: float


@dataclass(frozen=True, slots=True)
class Many:
    """So many workers: seconds until all were ready, and until all were gone when scaled to none.

    ``cpu_s`` is the server's processor time until they were ready, ``idle_cpu`` its share of a core while
    they are idle; ``grown_mb`` what it grew by at most, ``descriptors`` those that it had open. ``agent_mb``
    and ``worker_mb`` are what one of them takes (PSS).
    """

    workers: int
    ready: float
    cpu_s: float
    grown_mb: float
    descriptors: int
    agent_mb: float
    worker_mb: float
    idle_cpu: float
    answers: Answers
    gone: float


def measure(count: int, tell: Callable[[str], None]) -> Many:
    """On a server of its own. Raises BenchmarkError."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        settings: dict[str, str | int] = {"worker_launcher": "agents"}
        variables = {"MODELSERVER_CACHE": str(folder / "cache")}
        with model_server(folder, folder / "server", settings, variables=variables) as server:
            server.register(_archive(folder), NAME, initial_workers=0)
            before, meter = peak_mb(server.pid, anew=True), CpuMeter(server.pid, alone=True)
            began = time.perf_counter()
            scale(server, count)
            ready = time.perf_counter() - began
            cpu, grown = meter.used(), peak_mb(server.pid) - before
            tell(f"{count} workers are ready after {ready:.1f} s")
            descriptors = psutil.Process(server.pid).num_fds()
            processes = [psutil.Process(each["pid"]) for each in workers(server)]
            agents = [agent for each in processes if (agent := each.parent()) is not None]
            nodes_mb = sum(memory_of(each.pid).pss_mb for each in agents)
            workers_mb = sum(memory_of(each.pid).pss_mb for each in processes)
            meter = CpuMeter(server.pid, alone=True)
            time.sleep(IDLE_SECONDS)
            idle = meter.used() / IDLE_SECONDS
            answers = _ask(server)
            tell(f"{answers.right} right answers, {answers.wrong} wrong ones")
            began = time.perf_counter()
            scale(server, 0)
            _, left = psutil.wait_procs(agents, _PATIENCE)
            gone = time.perf_counter() - began
            if left:
                raise BenchmarkError(f"{len(left)} agents are left after {_PATIENCE:g} s")
    sizes = (nodes_mb - workers_mb) / count, workers_mb / count
    return Many(count, ready, cpu, grown, descriptors, *sizes, idle, answers, gone)


def _archive(folder: Path) -> str:
    handler = folder / "handler.py"
    handler.write_text(_HANDLER, "utf-8")
    return build_archive(ArchiveConfig(NAME, str(handler), "1.0", export_path=folder)).name


def _ask(server: ModelServer) -> Answers:
    """Marked requests, one after the other by each client."""
    end = time.perf_counter() + SECONDS
    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(lambda client: _client(server, client, end), range(CLIENTS)))
    right, wrong, slowest = zip(*found, strict=True)
    return Answers(sum(right), sum(wrong), max(slowest))


def _client(server: ModelServer, client: int, end: float) -> tuple[int, int, float]:
    right = wrong = 0
    slowest = 0.0
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    try:
        while (began := time.perf_counter()) < end:
            mark = f"{client}-{right + wrong}".encode()
            try:
                connection.request("POST", f"/predictions/{NAME}", mark)
                answered = connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                answered = b""
                connection.close()
            right, wrong = right + (answered == mark), wrong + (answered != mark)
            slowest = max(slowest, (time.perf_counter() - began) * 1e3)
    finally:
        connection.close()
    return right, wrong, slowest


def report(many: Many) -> str:
    """A Markdown table."""
    answers = many.answers
    rows = [
        ["all are ready after s", number(many.ready)],
        ["the server's processor time for that, s", number(many.cpu_s)],
        ["the server grew by MB", number(many.grown_mb)],
        ["its open descriptors", str(many.descriptors)],
        ["an agent takes MB (PSS)", number(many.agent_mb)],
        ["a worker takes MB (PSS)", number(many.worker_mb)],
        ["idle, they cost the server of a core", f"{many.idle_cpu:.1%}"],
        [f"{CLIENTS} clients got right answers in {SECONDS:g} s", f"{answers.right:,}"],
        ["wrong ones, or none", str(answers.wrong)],
        ["the slowest after ms", number(answers.slowest_ms)],
        ["scaled to none, they were gone after s", number(many.gone)],
    ]
    return "\n".join([f"## {many.workers} workers at once", "", table(["what", ""], rows), ""])


def marks(many: Many) -> list[Mark]:
    """Each answer is its request's own."""
    return [Mark("wrong answers", float(many.answers.wrong), "<=", 0.0)]
