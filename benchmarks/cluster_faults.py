"""How soon a worker on another machine is ready, a lost one is noticed and replaced, and a large model sent.

Over TLS on loopback, as shipped. A node is an agent with its worker: both are killed, or both are stopped, as
a machine that hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.archives import HANDLER, build_noop
from benchmarks.report import Mark, number, table
from benchmarks.servers import BenchmarkError, ModelServer, call, model_server
from modelserver.ext.cluster.node.dial import LOCAL_SOCKET
from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.tune.own_server import family

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAME = "noop"
# Seconds until a lost worker is given up here.
_PATIENCE = 60.0
_PAUSE = 0.01
LOST_AFTER = 10  # worker_lost_timeout as shipped
# MB that the server may grow by while it sends a model.
_GROWTH = 64


@dataclass(frozen=True, slots=True)
class Loss:
    """Seconds from the loss of a node until describe shows it, and until another worker serves."""

    noticed: float
    replaced: float


@dataclass(frozen=True, slots=True)
class Sent:
    """A model of ``size_mb`` that a node did not have: seconds until its worker serves.

    ``growth_mb`` is what the server's memory grew by meanwhile, at most.
    """

    size_mb: int
    ready: float
    growth_mb: float


@dataclass(frozen=True, slots=True)
class Happened:
    """``ready``: seconds until another worker serves, where its node has the model."""

    ready: float
    killed: Loss
    frozen: Loss
    sent: Sent | None = None


def measure(tell: Callable[[str], None], archive_mb: int = 0) -> Happened:
    """All of it, on servers of their own; ``archive_mb``: of the large model, 0 for none.

    Raises BenchmarkError.
    """
    happened = _nodes(tell)
    if archive_mb:
        sent = send_archive(archive_mb)
        tell(f"{archive_mb} MB: ready after {sent.ready:.1f} s, the server grew by {sent.growth_mb:.0f} MB")
        happened = replace(happened, sent=sent)
    return happened


def _nodes(tell: Callable[[str], None]) -> Happened:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        settings: dict[str, str | int] = {"worker_launcher": "agents", "worker_lost_timeout": LOST_AFTER}
        with model_server(folder, folder / "server", settings, variables={LOCAL_SOCKET: "0"}) as server:
            server.register(build_noop(folder), NAME)
            ready = another(server)
            tell(f"another worker is ready after {ready:.2f} s")
            killed = lose(server, signal.SIGKILL)
            tell(f"killed: noticed after {killed.noticed:.2f} s, replaced after {killed.replaced:.2f} s")
            frozen = lose(server, signal.SIGSTOP)
            tell(f"frozen: noticed after {frozen.noticed:.2f} s, replaced after {frozen.replaced:.2f} s")
    return Happened(ready, killed, frozen)


def send_archive(size_mb: int) -> Sent:
    """A model with a file of random bytes, sent to a node with an empty cache. Raises BenchmarkError."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        archive = _large_archive(folder, size_mb)
        settings: dict[str, str | int] = {"worker_launcher": "agents"}
        variables = {LOCAL_SOCKET: "0", "MODELSERVER_CACHE": str(folder / "cache")}
        with model_server(folder, folder / "server", settings, variables=variables) as server:
            server.register(archive, NAME, initial_workers=0)
            before = peak_mb(server.pid, anew=True)
            began = time.perf_counter()
            scale(server, 1)
            return Sent(size_mb, time.perf_counter() - began, peak_mb(server.pid) - before)


def _large_archive(folder: Path, size_mb: int) -> str:
    weights = folder / "weights.bin"
    with weights.open("wb") as file:
        for _ in range(size_mb):
            file.write(os.urandom(1_000_000))
    handler = folder / "handler.py"
    handler.write_text(HANDLER.format(seconds=0.0), "utf-8")
    config = ArchiveConfig(
        model_name=NAME,
        handler=str(handler),
        version="1.0",
        extra_files=str(weights),
        archive_format="zip-store",
        export_path=folder,
        force=True,
    )
    built = build_archive(config).name
    weights.unlink()
    return built


def peak_mb(pid: int, *, anew: bool = False) -> float:
    """The most that a process has had resident, or, ``anew``, has now, from when on the most is told."""
    if anew:
        Path(f"/proc/{pid}/clear_refs").write_text("5", "ascii")
    status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def another(server: ModelServer) -> float:
    """Seconds until one more worker serves; afterwards there is one again. Raises BenchmarkError."""
    began = time.perf_counter()
    scale(server, 2)
    ready = time.perf_counter() - began
    scale(server, 1)
    return ready


def scale(server: ModelServer, workers: int) -> None:
    """Returns when so many serve. Raises BenchmarkError."""
    target = f"/models/{NAME}?min_worker={workers}&max_worker={workers}&synchronous=true"
    status, answer = call(server.management_port, "PUT", target, timeout=600)
    if status != 200:
        raise BenchmarkError(f"PUT {target} was answered {status}: {answer.decode(errors='replace')}")


def lose(server: ModelServer, how: signal.Signals) -> Loss:
    """Sends the signal to the only worker's node. Raises BenchmarkError if it is not replaced."""
    (worker,) = workers(server)
    node = node_of(server.pid, worker["pid"])
    began = time.perf_counter()
    try:
        for process in node:
            process.send_signal(how)
        noticed = _until(server, lambda found: not _serves(found, worker["pid"]), "noticed") - began
        replaced = _until(server, lambda found: _replaced(found, worker["pid"]), "replaced") - began
    finally:
        for process in node:
            with contextlib.suppress(psutil.Error):
                process.kill()
    return Loss(noticed, replaced)


def node_of(server: int, worker: int) -> list[psutil.Process]:
    """The agent of a worker and the worker, in this order. Raises BenchmarkError."""
    for process in family(server):
        if process.pid == worker:
            agent = process.parent()
            if agent is not None and agent.pid != server:
                return [agent, process]
    raise BenchmarkError(f"worker {worker} has no agent")


def workers(server: ModelServer) -> list[dict[str, Any]]:
    """What the server tells of the model's workers. Raises BenchmarkError."""
    status, answer = call(server.management_port, "GET", f"/models/{NAME}")
    if status != 200:
        raise BenchmarkError(f"describe was answered {status}: {answer.decode(errors='replace')}")
    found: list[dict[str, Any]] = json.loads(answer)[0]["workers"]
    return found


def _serves(found: Sequence[dict[str, Any]], pid: int) -> bool:
    return any(each["pid"] == pid and each["status"] == "READY" for each in found)


def _replaced(found: Sequence[dict[str, Any]], pid: int) -> bool:
    return any(each["pid"] != pid and each["status"] == "READY" for each in found)


def _until(server: ModelServer, seen: Callable[[list[dict[str, Any]]], bool], what: str) -> float:
    """The time at which it was seen. Raises BenchmarkError."""
    deadline = time.perf_counter() + _PATIENCE
    while (now := time.perf_counter()) < deadline:
        if seen(workers(server)):
            return now
        time.sleep(_PAUSE)
    raise BenchmarkError(f"a lost worker was not {what} within {_PATIENCE:g} s")


def report(happened: Happened) -> str:
    """A Markdown table."""
    rows = [
        ["another worker, on a node that has the model", "", number(happened.ready)],
        ["a node is killed", number(happened.killed.noticed), number(happened.killed.replaced)],
        ["a node is frozen", number(happened.frozen.noticed), number(happened.frozen.replaced)],
    ]
    if (sent := happened.sent) is not None:
        rows.append([f"a model of {sent.size_mb:,} MB comes to a node", "", number(sent.ready)])
    return "\n".join(["## Nodes", "", table(["what", "noticed after s", "ready after s"], rows), ""])


def marks(happened: Happened) -> list[Mark]:
    """How soon it should be."""
    killed, frozen, sent = happened.killed, happened.frozen, happened.sent
    found = [
        Mark("ready on a node that has the model", happened.ready, "<=", 5.0, " s"),
        Mark("a killed node is noticed", killed.noticed, "<=", 2.0, " s"),
        Mark("a killed node is replaced", killed.replaced, "<=", 15.0, " s"),
        Mark("a frozen node is noticed", frozen.noticed, "<=", LOST_AFTER, " s"),
        Mark("a frozen node is replaced, from then", frozen.replaced - frozen.noticed, "<=", 15.0, " s"),
    ]
    if sent is not None:
        grown = f"the server grows while it sends {sent.size_mb:,} MB"
        found.append(Mark(grown, sent.growth_mb, "<=", _GROWTH, " MB"))
    return found
