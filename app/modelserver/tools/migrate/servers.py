"""The servers that are asked: found running, or started on free ports of their own and ended afterwards."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psutil

from modelserver.engine.telemetry.text import shortened
from modelserver.tools.migrate import grpc_calls
from modelserver.tools.migrate.calls import MigrationError, Port, Probe, Response, send
from modelserver.tools.tune.own_server import family, last_output, start_process, stop_process

if TYPE_CHECKING:
    import subprocess

Address = tuple[str, int]
PATIENCE = 300.0  # seconds until a server must have loaded its models
_LONGEST_ANSWER = 300  # characters that are shown


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A model version as a server describes it; delays are in milliseconds, timeouts in seconds."""

    name: str
    version: str
    url: str
    ready: int = 0
    min_workers: int = 0
    max_workers: int = 0
    batch_size: int = 1
    max_batch_delay: int = 0
    response_timeout: int = 0
    gpu: bool = False
    failure: str = ""

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> ServedVersion:
        """From an element of a description."""
        workers = described.get("workers") or []
        failures = [described.get("failure"), *(worker.get("failure") for worker in workers)]
        return cls(
            described["modelName"],
            described["modelVersion"],
            described.get("modelUrl", ""),
            sum(worker.get("status") == "READY" for worker in workers),
            described.get("minWorkers", 0),
            described.get("maxWorkers", 0),
            max(1, described.get("batchSize", 1)),
            described.get("maxBatchDelay", 0),
            described.get("responseTimeout", 0),
            any(worker.get("gpu") is True for worker in workers),
            next((str(failure) for failure in failures if failure), ""),
        )

    @property
    def workers(self) -> tuple[int, int]:
        """How many it should have, at least and at most."""
        return self.min_workers, self.max_workers

    @property
    def settled(self) -> bool:
        """Whether it has the workers that it should have, or never will."""
        return bool(self.failure) or self.ready >= self.min_workers


@dataclass(frozen=True, slots=True)
class ComparedServer:
    """A running server.

    ``tokens`` are by the port that they are for; ``pid`` is the first of its processes, if they are on this
    machine; ``seconds`` is how long its start took, until all models had their workers.
    """

    name: str
    addresses: Mapping[Port, Address]
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    pid: int | None = None
    seconds: float | None = None

    def headers(self, call: Probe) -> tuple[tuple[str, str], ...]:
        """The request's, and this server's token unless the request has one."""
        token = self.tokens.get(call.port.removeprefix("grpc_"))
        if token is None or any(name.lower() == "authorization" for name, _ in call.headers):
            return call.headers
        return (*call.headers, ("Authorization", f"Bearer {token}"))

    def ask(self, call: Probe) -> Response:
        """Its answer; status 0 if there was none."""
        sent = replace(call, headers=self.headers(call))
        by = grpc_calls.send if call.method == grpc_calls.METHOD else send
        return by(sent, self.addresses[call.port])

    def versions(self) -> list[ServedVersion]:
        """All model versions, the default one of each model first. Raises MigrationError."""
        versions: list[ServedVersion] = []
        for name in self._names():
            path = f"/models/{quote(name, safe='')}"
            default, every = (self._json(each) for each in (path, f"{path}/all"))
            chosen = default[0]["modelVersion"] if default else None
            versions += sorted(
                map(ServedVersion.of, every or []), key=lambda version: version.version != chosen
            )
        return versions

    def _names(self) -> list[str]:
        names, page = [], ""
        while True:
            listed = self._json(f"/models?limit=100{page}")
            if not isinstance(listed, dict) or "models" not in listed:
                raise MigrationError(f"{self.name} does not list its models: {self._refusal()}")
            names += [model["modelName"] for model in listed["models"]]
            if not (token := listed.get("nextPageToken")):
                return names
            page = f"&next_page_token={token}"

    def _json(self, path: str) -> Any:
        """None for another answer than 200 with JSON, as of a server of another kind."""
        answer = self.ask(Probe("", "management", "GET", path))
        try:
            return json.loads(answer.body or b"null") if answer.status == 200 else None
        except ValueError:
            return None

    def _refusal(self) -> str:
        host, port = self.addresses["management"]
        answer = self.ask(Probe("", "management", "GET", "/models"))
        content = f"{answer.status} {(answer.body or b'').decode('utf-8', 'replace')}"
        text = shortened(" ".join(content.split()), _LONGEST_ANSWER) if answer.status else answer.reason
        hint = "; --key-file names the file with its tokens" if answer.status in (400, 401, 403) else ""
        return f"http://{host}:{port}/models was answered {text}{hint}"

    def memory(self) -> int | None:
        """Bytes of all its processes, shared pages counted once; None if they are not on this machine."""
        sizes = [_size(process) for process in family(self.pid)] if self.pid is not None else []
        return sum(sizes) or None


def _size(process: psutil.Process) -> int:
    try:
        info = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(info, "pss", 0) or info.rss)


def wait_settled(server: ComparedServer) -> None:
    """Returns when all models have their workers, or failed, at the latest after :data:`PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while not all(version.settled for version in server.versions()) and time.monotonic() < deadline:
        time.sleep(0.05)


def running_server(name: str, addresses: Mapping[Port, Address], tokens: Mapping[str, str]) -> ComparedServer:
    """A server of somebody else's. Raises MigrationError if it does not answer, or other ports do."""
    server = ComparedServer(name, addresses, tokens, pid=listener(addresses["inference"][1]))
    server.versions()
    ping = server.ask(Probe("", "inference", "GET", "/ping"))
    if ping.status in (0, 404):
        host, port = addresses["inference"]
        outcome = ping.status or ping.reason
        raise MigrationError(
            f"{name} does not answer at its inference address: http://{host}:{port}/ping: {outcome}"
        )
    return server


def listener(port: int) -> int | None:
    """The process on this machine that listens on the port; None if it is not seen."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                return connection.pid
    return None


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server.

    ``started_line``: what it prints once all models are registered, empty if it listens only then.
    ``whole``: all processes of its group are told to end, not only the first one.
    """

    name: str
    command: Sequence[str]
    addresses: Mapping[Port, Address]
    cwd: Path
    environment: Mapping[str, str]
    output: Path
    started_line: str = ""
    whole: bool = False


@contextlib.contextmanager
def started(launch: Launch) -> Iterator[ComparedServer]:
    """The running server, with its models loaded. Raises MigrationError with its last output."""
    began = time.monotonic()
    try:
        process = start_process(launch.command, launch.cwd, launch.environment, launch.output)
    except OSError as error:
        raise MigrationError(f"{launch.name} cannot be started: {error}") from error
    server = ComparedServer(launch.name, launch.addresses, pid=process.pid)
    try:
        _wait(launch, server, process)
        yield replace(server, seconds=time.monotonic() - began)
    finally:
        stop_process(process, whole=launch.whole)


def _wait(launch: Launch, server: ComparedServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise MigrationError(f"{launch.name} does not start:\n{last_output(launch.output)}")
        if _registered(launch, server) and all(version.settled for version in server.versions()):
            return
        time.sleep(0.05)
    if not _registered(launch, server):
        raise MigrationError(f"{launch.name} did not start in {PATIENCE:g} s:\n{last_output(launch.output)}")


def _registered(launch: Launch, server: ComparedServer) -> bool:
    has_printed = launch.started_line in launch.output.read_text("utf-8", "replace")
    return has_printed and server.ask(Probe("", "management", "GET", "/models")).status == 200
