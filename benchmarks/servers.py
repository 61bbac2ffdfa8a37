"""Servers under measurement: on free loopback ports, in a folder of their own, stopped by process id."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import psutil

from modelserver.tools.tune.own_server import (
    family,
    free_ports,
    last_output,
    own_environment,
    start_process,
    stop_process,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
QUEUE_SIZE = 1000  # job_queue_size, as the peers were measured with
START_TIMEOUT = 120.0
PAUSE = 0.005  # seconds between looks


class BenchmarkError(Exception):
    """A measurement cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers: ``pid`` of its main process, ``port`` of its predictions."""

    pid: int
    port: int
    folder: Path

    def url(self, path: str) -> str:
        """The address of a path on the port of predictions."""
        return f"http://{HOST}:{self.port}{path}"


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

    def unregister(self, name: str) -> None:
        """Remove a model, with its worker."""
        call_well(self.management_port, "DELETE", f"/models/{name}", timeout=300)


@dataclass(slots=True)
class CpuMeter:
    """Processor seconds that a process and, unless it is ``alone``, its descendants use from now on."""

    pid: int
    alone: bool = False
    _before: dict[int, float] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._spent()

    def _spent(self) -> dict[int, float]:
        spent = cpu_seconds(self.pid)
        return {self.pid: spent.get(self.pid, 0.0)} if self.alone else spent

    def used(self) -> float:
        """Processor seconds since this meter was made; processes that ended meanwhile do not count."""
        return sum(seconds - self._before.get(pid, 0.0) for pid, seconds in self._spent().items())


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
    content_type: str | None = None,
    headers: Iterable[tuple[str, str]] = (),
) -> tuple[int, bytes]:
    """One HTTP request on a connection of its own: status and body. Raises OSError."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        typed = {"Content-Type": content_type} if content_type else {}
        connection.request(method, target, body, typed | dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(repr(error)) from error
    finally:
        connection.close()


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
    with process(echo_command(port), folder, {}) as child:
        wait_until_it_answers(child, port, "/", folder)
        yield Running(child.pid, port, folder)


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
    with process(command, folder, environment) as child:
        wait_until_it_answers(child, inference, "/ping", folder)
        yield ModelServer(child.pid, inference, folder, management)


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


def wait_until(
    child: subprocess.Popen[bytes], done: Callable[[], bool], otherwise: str, timeout: float
) -> None:
    """Returns when it is done. Raises TimeoutError, or BenchmarkError where the process has ended."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if done():
            return
        if child.poll() is not None:
            raise BenchmarkError(f"it ended with status {child.returncode}")
        time.sleep(PAUSE)
    raise TimeoutError(f"{otherwise} within {timeout:g} s")


def accepts(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def wait_until_it_answers(child: subprocess.Popen[bytes], port: int, path: str, folder: Path) -> None:
    """Returns at the first answer below 500. Raises BenchmarkError with the output if none comes."""

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return call(port, "GET", path, timeout=5)[0] < 500
        return False

    try:
        wait_until(child, answers, "no answer", START_TIMEOUT)
    except (TimeoutError, BenchmarkError) as error:
        output = last_output(folder / "output")
        raise BenchmarkError(f"{' '.join(map(str, child.args))}: {error}\n{output}") from None  # type: ignore[arg-type]
