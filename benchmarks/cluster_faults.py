"""How soon a worker on another machine is ready, and how soon a lost one is noticed and replaced.

Over TLS on loopback, as shipped. A node is an agent with its worker: both are killed, or both are stopped, as
a machine that hangs.
"""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.archives import build_noop
from benchmarks.report import Mark, number, table
from benchmarks.servers import BenchmarkError, ModelServer, call, family, model_server
from modelserver.node.dial import LOCAL_SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAME = "noop"
# Seconds until a lost worker is given up here.
_PATIENCE = 60.0
_PAUSE = 0.01
LOST_AFTER = 10  # worker_lost_timeout as shipped


@dataclass(frozen=True, slots=True)
class Loss:
    """Seconds from the loss of a node until describe shows it, and until another worker serves."""

    noticed: float
    replaced: float


@dataclass(frozen=True, slots=True)
class Happened:
    """``ready``: seconds until another worker serves, where its node has the model."""

    ready: float
    killed: Loss
    frozen: Loss


def measure(tell: Callable[[str], None]) -> Happened:
    """All of it, on a server of its own. Raises BenchmarkError."""
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


def another(server: ModelServer) -> float:
    """Seconds until one more worker serves; afterwards there is one again. Raises BenchmarkError."""
    began = time.perf_counter()
    _scale(server, 2)
    ready = time.perf_counter() - began
    _scale(server, 1)
    return ready


def _scale(server: ModelServer, workers: int) -> None:
    target = f"/models/{NAME}?min_worker={workers}&max_worker={workers}&synchronous=true"
    status, answer = call(server.management_port, "PUT", target)
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
    return "\n".join(["## Nodes", "", table(["what", "noticed after s", "ready after s"], rows), ""])


def marks(happened: Happened) -> list[Mark]:
    """How soon it should be."""
    killed, frozen = happened.killed, happened.frozen
    return [
        Mark("ready on a node that has the model", happened.ready, "<=", 5.0, " s"),
        Mark("a killed node is noticed", killed.noticed, "<=", 2.0, " s"),
        Mark("a killed node is replaced", killed.replaced, "<=", 15.0, " s"),
        Mark("a frozen node is noticed", frozen.noticed, "<=", LOST_AFTER, " s"),
        Mark("a frozen node is replaced, from then", frozen.replaced - frozen.noticed, "<=", 15.0, " s"),
    ]
