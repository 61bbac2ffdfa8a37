"""Servers under measurement: on free loopback ports, in a folder of their own, stopped by process id."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from benchmarks.works import Question
from modelserver.tools.tune.own_server import (
    family,
    free_ports,
    last_output,
    own_environment,
    start_process,
    stop_process,
)

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
QUEUE_SIZE = 1000  # job_queue_size, as the peers were measured with
START_TIMEOUT = 120.0
PAUSE = 0.005  # seconds between looks
_WRONG = (400, 405, 415, 422)  # what waiting does not mend


class BenchmarkError(Exception):
    """A measurement cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers: ``pid`` of its main process, ``port`` of its predictions."""

    pid: int
    port: int
    folder: Path


@dataclass(frozen=True, slots=True)
class ModelServer(Running):
    """A running modelserver."""

    management_port: int = 0

    def register(self, archive: str, name: str, **parameters: str | int) -> None:
        """Register an archive of the store with one worker and wait until it serves.

        Raises BenchmarkError with the server's answer when it does not.
        """
        query = urlencode(
            {"url": archive, "model_name": name, "initial_workers": 1, "synchronous": "true", **parameters}
        )
        call_well(self.management_port, "POST", f"/models?{query}", timeout=300)

    def describe(self, name: str) -> dict[str, Any]:
        """The description of the model's only version. Raises BenchmarkError where there is none."""
        (version,) = json.loads(call_well(self.management_port, "GET", f"/models/{name}"))
        return dict(version)

    def unregister(self, name: str) -> None:
        """Remove a model, with its worker."""
        call_well(self.management_port, "DELETE", f"/models/{name}", timeout=300)


def cpu_meter(head: int, *, alone: bool = False) -> Callable[[], float]:
    """Reads the processor seconds since now of a process and, unless it is ``alone``, its descendants.

    Processes that ended meanwhile do not count.
    """

    def used() -> float:
        spent = cpu_seconds(head).items()
        return sum(each - before.get(pid, 0.0) for pid, each in spent if pid == head or not alone)

    before = cpu_seconds(head)
    return used


def cpu_seconds(pid: int) -> dict[int, float]:
    """Processor seconds, user and system, of a process and of each of its descendants."""
    spent = {}
    for process in family(pid):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            spent[process.pid] = times.user + times.system
    return spent


@dataclass(frozen=True, slots=True)
class Memory:
    """What processes hold in MB (10^6 bytes): ``pss`` counts pages that several share once."""

    rss_mb: float
    pss_mb: float
    processes: int


def memory_of(pid: int) -> Memory:
    """The memory of a process and its descendants; zeros where there are none."""
    rss = pss = count = 0
    for member in family(pid):
        try:
            text = Path(f"/proc/{member.pid}/smaps_rollup").read_text("utf-8")
        except OSError:
            continue
        sizes = {name: int(size) for name, size in re.findall(r"^(Rss|Pss): +(\d+) kB", text, re.MULTILINE)}
        rss, pss, count = rss + sizes.get("Rss", 0), pss + sizes.get("Pss", 0), count + 1
    return Memory(rss * 1024 / 1e6, pss * 1024 / 1e6, count)


def call(
    port: int,
    method: str,
    target: str,
    body: bytes | None = None,
    *,
    timeout: float = 60,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """One HTTP request on a connection of its own: status and body. Raises OSError."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(repr(error)) from error
    finally:
        connection.close()


def ask(port: int, question: Question) -> tuple[int, bytes]:
    """Status and body of an answer, on a connection of its own. Raises OSError."""
    if not question.body:
        return call(port, "GET", question.path, timeout=5)
    return call(port, "POST", question.path, question.body, headers=question.headers)


def call_well(port: int, method: str, target: str, body: bytes | None = None, timeout: float = 60) -> bytes:
    """The body of an answer of 200. Raises BenchmarkError for any other."""
    status, answer = call(port, method, target, body, timeout=timeout)
    if status != 200:
        raise BenchmarkError(f"{method} {target} was answered {status}: {answer.decode(errors='replace')}")
    return answer


def echo_command(port: int) -> tuple[str, ...]:
    """What starts bare uvicorn (uvloop, httptools, no access log) with the echo application."""
    command = [sys.executable, "-m", "uvicorn", "benchmarks.echo:app", "--app-dir", str(ROOT)]
    command += ["--host", HOST, "--port", str(port), "--loop", "uvloop", "--http", "httptools"]
    return (*command, "--no-access-log", "--log-level", "warning")


@contextlib.contextmanager
def echo_server(folder: Path) -> Iterator[Running]:
    """That server; ``folder`` is its own."""
    (port,) = free_ports(1)
    with running(echo_command(port), port, folder, health="/") as server:
        yield server


@contextlib.contextmanager
def model_server(
    store: Path,
    folder: Path,
    settings: Mapping[str, str | int] | None = None,
    threads: int | None = None,
    checkout: Path | None = None,
    *,
    variables: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Iterator[ModelServer]:
    """This server as shipped (access log, metrics), with ``store`` and no model; ``folder`` is its own.

    ``settings`` are more lines of config.properties, ``threads`` what one worker computes with; ``checkout``
    has another version, which is started instead; ``variables`` are more of its environment, and ``python``
    is its interpreter.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = {"enable_grpc_api": "false", "job_queue_size": QUEUE_SIZE, **(settings or {})}
    config, (inference, management, _) = configuration(folder, lines)
    command = [python, "-m", "modelserver", "--start", "--foreground", "--ncs"]
    command += ["--model-store", str(store.resolve()), "--ts-config", str(config)]
    environment = {**thread_variables(threads), **(variables or {})}
    if checkout is not None:
        parts = (str((checkout / part).resolve()) for part in ("app", "handlers"))
        environment["PYTHONPATH"] = os.pathsep.join(parts)
    with running(command, inference, folder, environment, health="/ping") as server:
        yield ModelServer(server.pid, inference, folder, management)


def configuration(folder: Path, settings: Mapping[str, str | int]) -> tuple[Path, list[int]]:
    """A file with the settings, and with free ports for inference, management and metrics."""
    ports = free_ports(3)
    roles = zip(("inference", "management", "metrics"), ports, strict=True)
    lines = {f"{role}_address": f"http://{HOST}:{port}" for role, port in roles} | dict(settings)
    config = folder / "config.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), "utf-8")
    return config, ports


def grpc_settings() -> tuple[dict[str, str | int], int]:
    """Settings with gRPC at free ports, and that of inference."""
    inference, management = free_ports(2)
    ports: dict[str, str | int] = {"grpc_inference_port": inference, "grpc_management_port": management}
    return {"enable_grpc_api": "true", **ports}, inference


def thread_variables(threads: int | None) -> dict[str, str]:
    """The environment that makes torch compute with so many threads; empty for None."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {} if threads is None else dict.fromkeys(names, str(threads))


@contextlib.contextmanager
def process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A child process whose output goes to ``folder/output``; it and all it started end with the block.

    Its temporary directory is a private one: the server keeps its pid file and unpacked models there.
    """
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    variables = own_environment(os.environ) | {"TMPDIR": str(temporary)} | dict(environment)
    child = start_process(command, folder, variables, folder / "output")
    try:
        yield child
    finally:
        stop_process(child)


def piped(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """A child process whose output is a pipe of text."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


@contextlib.contextmanager
def running(
    command: Sequence[str],
    port: int,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    *,
    health: str = "",
    patience: float = START_TIMEOUT,
) -> Iterator[Running]:
    """A server that listens, and answers 2xx at ``health`` where there is such a path.

    Raises BenchmarkError after ``patience`` seconds.
    """
    with process(command, folder, variables or {}) as child:
        with starting(child, folder):
            missing = partial(unanswered, port, Question(health)) if health else partial(unheard, port)
            wait_until(child, missing, patience)
        yield Running(child.pid, port, folder)


@contextlib.contextmanager
def starting(child: subprocess.Popen[bytes], folder: Path) -> Iterator[None]:
    """What goes wrong within comes with the command, and with the end of what it printed."""
    try:
        yield
    except BenchmarkError as error:
        raise BenchmarkError(f"{child.args!r}: {error}\n{last_output(folder / 'output')}") from None


def wait_until(child: subprocess.Popen[bytes], missing: Callable[[], str], timeout: float) -> None:
    """Returns when nothing is ``missing``, in words. Raises BenchmarkError, also if the process has ended."""
    deadline = time.monotonic() + timeout
    while text := missing():
        if child.poll() is not None:
            raise BenchmarkError(f"it ended with status {child.returncode}")
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{text}, after {timeout:g} s")
        time.sleep(PAUSE)


def unheard(port: int) -> str:
    """Nothing, if somebody listens there."""
    with socket.socket() as probe:
        return "it does not listen" if probe.connect_ex((HOST, port)) else ""


def unanswered(port: int, question: Question) -> str:
    """Nothing, if the answer is 2xx. Raises BenchmarkError for a body that is refused as wrong."""
    try:
        status, answer = ask(port, question)
    except OSError as error:
        return f"no answer from {question.path}: {error!r}"
    if 200 <= status < 300:
        return ""
    text = f"{question.path} was answered {status} {answer[:300].decode(errors='replace')}"
    if question.body and status in _WRONG:
        raise BenchmarkError(text)
    return text
