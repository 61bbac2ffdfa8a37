"""A server of one's own for a test: the real command, in a directory of its own, on free ports."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import httpx
import psutil
from tests.e2e.preloaded import Forked, Preloaded

from modelserver.tools.archiver import ArchiveConfig, WorkflowConfig, build_archive, build_workflow

STARTED = "Model server started."
# Seconds, however much else runs: a start takes two of a processor.
PATIENCE = 60.0
ROOT = Path(__file__).parents[2]
MODEL_CODE = Path(__file__).parent / "model_code"

# Between those of Ray's workers and those that connections get, and others for each process of pytest-xdist:
# nobody takes a port before the server that it is for.
_PORTS = range(20_000, 32_000)
_PROCESSES = 8
_share = len(_PORTS) // _PROCESSES
_first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES * _share
_own = _PORTS[_first : _first + _share]
_start = random.randrange(_share)
_ports = itertools.cycle([*_own[_start:], *_own[:_start]])


def free_port(adjacent: int = 1) -> int:
    """The first of so many adjacent ports that nobody uses, and that no other test of this run gets soon."""
    while True:
        ports = [next(_ports) for _ in range(adjacent)]
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(ports[0], ports[0] + adjacent):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            if ports[-1] == port:
                return ports[0]


def addresses(scheme: str = "http", host: str = "127.0.0.1") -> dict[str, str]:
    """The settings of a server's three addresses, at free ports."""
    roles = ("inference", "management", "metrics")
    return {f"{role}_address": f"{scheme}://{host}:{free_port()}" for role in roles}


def run_to_end(
    command: Iterable[object], folder: Path, environment: Mapping[str, str], seconds: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder to its end, whatever its status."""
    where: dict[str, Any] = {"cwd": folder, "env": environment, "timeout": seconds}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **where)


def output_of(script: str, folder: Path, environment: Mapping[str, str]) -> str:
    """What a script of bash printed, all commands of which succeeded."""
    done = run_to_end(["bash", "-euo", "pipefail", "-c", script], folder, environment, 90)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied(store: Path, others: Path, *names: str) -> Path:
    """The store, which is made if need be, with archives of another one."""
    store.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(others / f"{name}.mar", store)
    return store


def archived(
    store: Path, name: str, source: str | Path, version: str = "1.0", config: str = "", **options: Any
) -> Path:
    """``<name>.mar`` in the store, which is made if need be, of a handler's text or file; ``config`` is its
    ``model-config.yaml``.
    """
    store.mkdir(exist_ok=True)
    path = source if isinstance(source, Path) else store / (re.sub(r"\W", "_", name) + ".py")
    if isinstance(source, str):
        path.write_text(textwrap.dedent(source))
    with tempfile.TemporaryDirectory() as folder:
        if config:
            options["config_file"] = Path(folder) / "model-config.yaml"
            options["config_file"].write_text(config)
        return build_archive(ArchiveConfig(name, str(path), version, export_path=store, **options))


def workflow(store: Path, name: str, folder: Path, specification: str = "workflow.yaml") -> Path:
    """``<name>.war`` in the store, of a specification and ``functions.py`` in the folder."""
    files = folder / specification, folder / "functions.py"
    return build_workflow(WorkflowConfig(name, *files, export_path=store, force=True))


def wait_until(happened: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true value that ``happened`` returns; fails the test if none comes in time."""
    deadline = time.monotonic() + seconds
    while not (value := happened()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain: {what}")
        time.sleep(0.02)
    return value


def connections_of(process: psutil.Process, kind: str) -> list[Any]:
    """The process's sockets; psutil 5 has another name for it."""
    read = getattr(process, "net_connections", None) or process.connections  # type: ignore[attr-defined]
    return list(read(kind))


def command_of(process: psutil.Process) -> str:
    """Its command line; nothing if it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def words_of(pid: int) -> list[str]:
    """The command line of a process. Where all are looked through, psutil would take three times as long."""
    if sys.platform != "linux":
        return psutil.Process(pid).cmdline()
    words = Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace").rstrip("\0").split("\0")
    # Who changes its own puts spaces between the words.
    return words if len(words) > 1 else words[0].split(" ")


def processes_of(server: int, module: str) -> list[psutil.Process]:
    """The server's living processes that run a module: its children, and those that name its id last."""
    result = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            words = words_of(pid)
            if module in words:
                process = psutil.Process(pid)
                is_its = words[-1] == str(server) or process.ppid() == server
                if is_its and process.status() != psutil.STATUS_ZOMBIE:
                    result.append(process)
    return result


def worker_processes(server: int) -> list[psutil.Process]:
    """The living worker processes of the server with this process id."""
    return processes_of(server, "modelserver.engine.worker")


@functools.cache
def preloaded() -> Preloaded:
    made = Preloaded(ROOT)
    atexit.register(made.end)
    return made


class Home:
    """A directory that commands run in, with a temporary directory, so a pid file, of its own.

    ``environment`` is added to that of the tests, without their ``TS_*`` variables; ``for_children``: only
    what the server starts reads it at its own start. Where ``forks``, a server and its spawner are forked
    from processes that have imported what they need.
    """

    def __init__(
        self, path: Path, environment: Mapping[str, str] | None = None, *, for_children: bool = False
    ) -> None:
        self.path = path
        self.python: str | Path = sys.executable
        self.temp = path / "tmp"
        self.temp.mkdir(parents=True, exist_ok=True)
        self.pid_file = self.temp / ".model_server.pid"
        roots = os.pathsep.join(str(ROOT / name) for name in ("app", "handlers"))
        saved = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("TS_", "MODELSERVER_", "LOG_LOCATION", "METRICS_LOCATION"))
        }
        # Variables that an interpreter or a library reads at its start would come too late.
        self.forks = (environment is None or for_children) and hasattr(os, "pidfd_open")
        self.environment = {**saved, "TMPDIR": str(self.temp), "PYTHONPATH": roots, **(environment or {})}

    def write_config(self, settings: Mapping[str, object], name: str = "server.properties") -> Path:
        """A configuration file with these settings; an entry ``None`` leaves its key out."""
        path = self.path / name
        lines = [f"{key}={value}" for key, value in settings.items() if value is not None]
        path.write_text("\n".join(lines) + "\n", "latin-1")
        return path

    def run(self, *arguments: object, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end. Of a detached server it is the start only."""
        command = [self.python, "-m", "modelserver", *arguments]
        return run_to_end(command, self.path, self.environment, timeout)

    def popen(self, *arguments: object) -> subprocess.Popen[bytes] | Forked:
        """Starts the command; what it prints goes to ``out.txt``."""
        if self.forks and self.python == sys.executable:
            with (self.path / "out.txt").open("wb") as out:
                texts = [str(each) for each in arguments]
                return preloaded().start(texts, self.path, self.environment, out.fileno())
        return self.start([self.python, "-m", "modelserver", *arguments])

    def start(
        self, command: Iterable[object], folder: Path | None = None, **more: str
    ) -> subprocess.Popen[bytes]:
        """Starts any command, here or in a folder; what it prints goes to ``out.txt``."""
        with (self.path / "out.txt").open("wb") as out:
            return subprocess.Popen(
                [*map(str, command)],
                cwd=folder or self.path,
                env={**self.environment, **more},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        """What the server in the foreground has printed so far."""
        return (self.path / "out.txt").read_text("utf-8", "replace")

    def log(self, name: str = "ts_log.log") -> str:
        path = self.path / "logs" / name
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def wait_for_log(self, text: str, name: str = "ts_log.log") -> None:
        """Until the log, which is written in the background, has this text; fails the test if it does not."""
        wait_until(lambda: text in self.log(name), f"{text!r} in {name}")

    def pid(self) -> int | None:
        return int(self.pid_file.read_text()) if self.pid_file.exists() else None

    def workdirs(self) -> list[Path]:
        return list(self.temp.glob("modelserver-*"))


class Server:
    """A server in the foreground, with a client for each of its ports.

    Args:
        home: where it runs.
        model_store: its archives.
        flags: further flags of the command.
        settings: of its configuration file, beside the addresses.
    """

    def __init__(
        self,
        home: Home,
        model_store: Path | str,
        flags: Sequence[object] = (),
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.home = home
        ports = {name: free_port() for name in ("inference", "management", "metrics")}
        addresses = {f"{name}_address": f"http://127.0.0.1:{port}" for name, port in ports.items()}
        # However many cores there are: tests look at the process that has the connections.
        fixed = {**addresses, "model_store": model_store, "frontend_processes": 1, "enable_grpc_api": "false"}
        self.settings: dict[str, object] = {**fixed, **(settings or {})}
        self.flags = flags
        self.inference = _client(str(self.settings["inference_address"]))
        self.management = _client(str(self.settings["management_address"]))
        self.metrics = _client(str(self.settings["metrics_address"]))
        self.port = ports["inference"]
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._terminated = False

    def start(self) -> Server:
        config = self.home.write_config(self.settings)
        self._process = self.home.popen("--start", "--foreground", "--ts-config", config, *self.flags)
        wait_until(lambda: STARTED in self.home.output() or self._process.poll() is not None, "it starts")
        assert STARTED in self.home.output(), self.home.output()
        return self

    @property
    def process(self) -> subprocess.Popen[bytes] | Forked:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self) -> list[psutil.Process]:
        return worker_processes(self.pid)

    def processes(self) -> list[psutil.Process]:
        """The server and its front ends; workers are none of them."""
        main = psutil.Process(self.pid)
        return [main, *(each for each in main.children() if "modelserver.ext.frontends" in command_of(each))]

    def tokens(self) -> dict[str, str]:
        """The tokens of its key file, by what they allow."""
        document = json.loads((self.home.path / "key_file.json").read_text())
        return {scope: entry["key"] for scope, entry in document.items()}

    def memory(self) -> int:
        return sum(process.memory_info().rss for process in self.processes())

    def port_of(self, listener: str) -> int:
        """The port of the ``inference``, ``management`` or ``metrics`` listener."""
        return int(str(self.settings[f"{listener}_address"]).rpartition(":")[2])

    def sockets_to(self, clients: Iterable[socket.socket]) -> set[str]:
        """The sockets at its end of these connections, named as in :meth:`sockets`, once all are accepted."""
        ports = {(client.getpeername()[1], client.getsockname()[1]) for client in clients}

        def accepted() -> set[str]:
            return {
                os.readlink(f"/proc/{process.pid}/fd/{each.fd}")
                for process in self.processes()
                for each in connections_of(process, "tcp4")
                if each.raddr and (each.laddr.port, each.raddr.port) in ports
            }

        wait_until(lambda: len(accepted()) == len(ports), "the server accepts them")
        return accepted()

    def sockets(self) -> set[str]:
        """All that the server and its front ends have open, those of clients that are gone too."""
        names = set()
        for process in self.processes():
            for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    names.add(os.readlink(descriptor))
        return {name for name in names if name.startswith("socket:")}

    @contextlib.contextmanager
    def limited(self, kind: int, soft: int) -> Iterator[None]:
        """A limit (``resource.RLIMIT_*``) of its process and of its helpers, taken back afterwards."""
        helpers = processes_of(self.pid, "modelserver.engine.offload")
        limited = (self.pid, *(helper.pid for helper in helpers))
        before = {pid: resource.prlimit(pid, kind) for pid in limited}
        for pid, (_, hard) in before.items():
            resource.prlimit(pid, kind, (soft, hard))
        try:
            yield
        finally:
            for pid, limit in before.items():
                resource.prlimit(pid, kind, limit)

    def stop(self) -> int:
        """Ends it as an operator would; returns the exit status and checks that nothing is left over."""
        self.terminate()
        try:
            code = self.process.wait(PATIENCE)
        finally:
            self.kill()
        assert self.workers() == []
        assert self.home.workdirs() == []
        assert not self.home.pid_file.exists()
        return code

    def terminate(self) -> None:
        """Sends SIGTERM once; a second one would end the server less gently."""
        if not self._terminated and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._terminated = True

    def kill(self) -> None:
        for process in self.workers():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for client in (self.inference, self.management, self.metrics):
            client.close()

    # -- what tests ask of it

    def register(self, url: str, **parameters: object) -> httpx.Response:
        """Registers an archive; with one worker unless told otherwise."""
        return self.management.post(
            "/models", params=_texts({"url": url, "initial_workers": 1, **parameters})
        )

    def registered(self, url: str, **parameters: object) -> Server:
        answer = self.register(url, **parameters)
        assert answer.status_code == 200, answer.text
        return self

    def unregister(self, name: str) -> None:
        """Removes a model; it must have existed."""
        answer = self.management.delete(f"/models/{name}")
        assert answer.status_code == 200, answer.text

    def describe(self, name: str) -> dict[str, Any]:
        answer = self.management.get(f"/models/{name}")
        assert answer.status_code == 200, answer.text
        described: dict[str, Any] = answer.json()[0]
        return described

    def predict(self, name: str, body: object = b"", **arguments: Any) -> httpx.Response:
        if isinstance(body, dict):
            return self.inference.post(f"/predictions/{name}", json=body, **arguments)
        return self.inference.post(f"/predictions/{name}", content=body, **arguments)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def occupied(self, pool: Executor, name: str, file: Path) -> Iterator[Future[httpx.Response]]:
        """A worker of ``obey`` computes a request until the block ends, which the file tells it."""
        future = pool.submit(self.predict, name, {"do": "wait", "file": str(file)})
        try:
            self.wait_busy(name)
            yield future
        finally:
            file.touch()

    def v1(self, name: str, instances: object, **fields: object) -> httpx.Response:
        return self.inference.post(f"/v1/models/{name}:predict", json={"instances": instances, **fields})

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.metrics.get("/metrics").text.splitlines():
            result = re.fullmatch(rf"{name}(?:{{(.*)}})? ([^ ]+)", line)
            if result and all(f'{key}="{value}"' in (result[1] or "") for key, value in labels.items()):
                total += float(result[2])
        return total

    def wait_ready(self, name: str, workers: int = 1) -> None:
        wait_until(
            lambda: [w["status"] for w in self.describe(name)["workers"]].count("READY") == workers,
            f"{name} has {workers} workers",
        )

    def wait_busy(self, name: str, batches: int = 1) -> None:
        """Until its workers have so many: those that they compute, and the next."""
        count = functools.partial(self.metric, "modelserver_batches_in_flight", model_name=name)
        wait_until(lambda: count() >= batches, f"{name} is busy")

    def wait_arrived(self, name: str, requests: int) -> None:
        count = functools.partial(self.metric, "ts_inference_requests_total", model_name=name)
        wait_until(lambda: count() >= requests, f"{requests} requests have come for {name}")

    def wait_pending(self, name: str, requests: int) -> None:
        wait_until(
            lambda: self.describe(name)["jobQueueStatus"]["pendingRequests"] == requests,
            f"{requests} requests wait for {name}",
        )


def queue_ms(answer: httpx.Response) -> float:
    return float(answer.headers["server-timing"].partition("queue;dur=")[2].partition(",")[0])


def _client(address: str) -> httpx.Client:
    limits = httpx.Limits(max_connections=None)
    if address.startswith("unix:"):
        transport = httpx.HTTPTransport(uds=address.removeprefix("unix:"))
        return httpx.Client(transport=transport, base_url="http://local", timeout=PATIENCE)
    return httpx.Client(base_url=address, timeout=PATIENCE, limits=limits, trust_env=False)


def _texts(parameters: Mapping[str, object]) -> dict[str, str]:
    """Query parameters as TorchServe's clients write them; None leaves one out."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in parameters.items()
        if value is not None
    }


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Started and stopped; what is left over fails the test."""
    try:
        yield server.start()
        server.stop()
    finally:
        if server._process is not None:
            server.kill()
