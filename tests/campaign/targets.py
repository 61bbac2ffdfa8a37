"""The servers that a campaign is against, and what their processes hold."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# pytest adds this folder for the tests in it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from collections.abc import Iterator

from tests.campaign.report import Report
from tests.e2e.grpc_client import grpc_server
from tests.e2e.serving import Server, serving

from modelserver.tools.archiver import ArchiveConfig, build_archive

MODEL_CODE = Path(__file__).resolve().parents[1] / "e2e" / "model_code"
MIB = 1 << 20
# Two readings of the same process may differ by log files and a connection that is about to close.
SLACK = 6


@contextlib.contextmanager
def target(front_ends: int = 1, **settings: object) -> Iterator[Server]:
    """A server with gRPC in a folder of its own, with the archives of campaigns: ``witness`` in versions 1.0
    and 2.0, ``echo`` and ``obey``. What it leaves behind when it stops is an error.
    """
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        with serving(
            grpc_server(folder, build_store(folder), frontend_processes=front_ends, **settings)
        ) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build_store(folder: Path) -> Path:
    store = folder / "store"
    store.mkdir()
    for name in ("witness", "echo", "obey"):
        build_archive(ArchiveConfig(name, str(MODEL_CODE / f"{name}.py"), "1.0", export_path=store))
    later = build_archive(ArchiveConfig("witness", str(MODEL_CODE / "witness.py"), "2.0", export_path=folder))
    later.rename(store / "witness-v2.mar")
    return store


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the server and its front ends hold together."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, server: Server) -> Holdings:
        processes = server.processes()
        return cls(
            server.memory(),
            sum(process.num_fds() for process in processes),
            sum(process.num_threads() for process in processes),
        )


def settled(server: Server, before: Holdings, share: float, seconds: float = 5.0) -> Holdings:
    """What is held as soon as it is no more than ``share`` above ``before``, or after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        now = Holdings.of(server)
        level = now.memory <= before.memory * (1 + share) and now.descriptors <= before.descriptors + SLACK
        if level or time.monotonic() > deadline:
            return now
        time.sleep(0.1)


def hold_level(report: Report, what: str, before: Holdings, after: Holdings, share: float) -> None:
    """Figures of both, and whether what is held has not grown."""
    most = before.memory * (1 + share)
    report.figure(f"{what}: resident memory", f"{before.memory / MIB:.0f} -> {after.memory / MIB:.0f} MiB")
    report.figure(f"{what}: descriptors", f"{before.descriptors} -> {after.descriptors}")
    report.hold(
        after.memory <= most,
        f"{what}: resident memory {before.memory / MIB:.0f} -> {after.memory / MIB:.0f} MiB, "
        f"{share:.0%} more is allowed",
    )
    report.hold(
        after.descriptors <= before.descriptors + SLACK,
        f"{what}: descriptors {before.descriptors} -> {after.descriptors}",
    )
    report.hold(
        after.threads <= before.threads + SLACK, f"{what}: threads {before.threads} -> {after.threads}"
    )


def slope(readings: list[tuple[float, int]]) -> float:
    """Bytes per second that fit readings of (seconds, bytes) best; 0 of fewer than three."""
    if len(readings) < 3:
        return 0.0
    seconds, sizes = zip(*readings, strict=True)
    return statistics.linear_regression(seconds, sizes).slope


def quiet(server: Server) -> bool:
    """Whether nothing waits or runs."""
    names = ("modelserver_queue_requests", "modelserver_batches_in_flight")
    return all(server.metric(name) == 0 for name in names)


def tracebacks(server: Server) -> list[str]:
    """The line before each traceback in the log."""
    lines = (server.home.log() + server.home.output()).splitlines()
    return [
        lines[max(0, number - 1)][:300] for number, line in enumerate(lines) if line.startswith("Traceback")
    ]
