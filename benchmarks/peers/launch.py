"""How each server is started and asked for a work: a command, variables, and what to post. Starts nothing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks.peers.apps.task import Task, environment
from benchmarks.peers.packages import PEERS, missing, python_of
from benchmarks.servers import QUEUE_SIZE, ROOT, configuration, echo_command, grpc_settings, thread_variables
from benchmarks.works import Question, Work, form_body, raw_body, rows_body
from modelserver.tools.tune.own_server import free_ports


@dataclass(frozen=True, slots=True)
class Setup:
    """What all servers of a comparison share.

    ``store`` holds the archives, ``peers`` the peers' environments; ``archives`` has the file of each model;
    ``queue`` is the number of requests that may wait.
    """

    store: Path
    peers: Path | None
    archives: Mapping[str, str] = field(default_factory=dict)
    arch: str = ""
    picture: bytes = b""
    threads: int = 1
    queue: int = QUEUE_SIZE


@dataclass(frozen=True, slots=True)
class Job:
    """One server's part of the comparison, with a folder of its own."""

    work: Work
    folder: Path
    setup: Setup


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server starts: ``health`` is asked until 2xx, then ``registration`` posted (port, path).

    ``queue`` says in words how many requests may wait.
    """

    command: tuple[str, ...]
    port: int
    question: Question
    queue: str
    health: str
    variables: Mapping[str, str] = field(default_factory=dict)
    registration: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A server in one configuration. ``works`` says whether it has a part in a work, ``title`` is for tables.

    ``peer`` names the environment it needs, None for ours; ``group`` is a name for it and its siblings.
    """

    name: str
    title: str
    group: str
    launch: Callable[[Job], Launch]
    works: Callable[[Work], bool]
    peer: str | None = None
    is_optional: bool = False  # only when named

    def refusal(self, peers: Path | None) -> str | None:
        """Why it cannot start, None if it can be tried."""
        return None if self.peer is None else missing(peers, PEERS[self.peer])


def any_work(work: Work) -> bool:
    """All but the memory of workers, which is about our own and TorchServe's way of making them."""
    return not work.name.startswith("workers")


def _archive_work(_work: Work) -> bool:
    return True


def _noop(work: Work) -> bool:
    return work.kind == "noop"


def _batching(work: Work) -> bool:
    return any_work(work) and work.batch > 1


def _network(work: Work) -> bool:
    return work.kind == "resnet" and any_work(work)


# Ours and TorchServe: archives, registered by HTTP


def modelserver(job: Job, *, adaptive: bool = False, variant: str = "") -> Launch:
    """This server as shipped: access log and metrics are on."""
    parameters = {"batch_policy": "adaptive"} if adaptive else {"max_batch_delay": str(job.work.delay_ms)}
    if job.work.kind == "resnet":
        variant = variant or "auto"
    command = [sys.executable, "-m", "modelserver", "--start", "--foreground", "--ncs"]
    return _torchserve_like(job, command, parameters, {}, variant)


def torchserve(job: Job, *, quiet: bool = False) -> Launch:
    """TorchServe as shipped, or with its logs of requests and metrics off, its best case."""
    assert job.setup.peers is not None
    program = python_of(job.setup.peers, "torchserve").with_name("torchserve").resolve()
    command = [str(program), "--start", "--foreground", "--ncs", "--disable-token-auth", "--enable-model-api"]
    settings = {"disable_token_authorization": "true", "enable_model_api": "true"}
    if quiet:
        log = job.folder / "log4j2.xml"
        shutil.copy(ROOT / "benchmarks" / "peers" / "quiet.xml", log)
        command += ["--log-config", str(log)]
        settings |= {"async_logging": "true", "disable_system_metrics": "true"}
    parameters = {"max_batch_delay": str(job.work.delay_ms)}
    launch = _torchserve_like(job, command, parameters, settings, "")
    # Its workers run the first python of the path, and nothing that this process imports is theirs.
    path = os.pathsep.join([str(program.parent), os.environ.get("PATH", os.defpath)])
    return replace(launch, variables={**launch.variables, "PATH": path, "PYTHONPATH": ""})


def _torchserve_like(
    job: Job, command: list[str], parameters: Mapping[str, str], settings: Mapping[str, str], variant: str
) -> Launch:
    limits = {"job_queue_size": job.setup.queue, "default_response_timeout": 300}
    ports = {key: value for key, value in grpc_settings()[0].items() if key.endswith("_port")}
    config, (inference, management, _) = configuration(job.folder, {**ports, **limits, **settings})
    store = ["--model-store", str(job.setup.store.resolve()), "--ts-config", str(config)]
    name = job.work.kind
    query = {
        "url": job.setup.archives[f"{name} {variant}".strip()],
        "model_name": name,
        "batch_size": str(job.work.batch),
        "initial_workers": str(job.work.workers),
        "synchronous": "true",
        **parameters,
    }
    return Launch(
        command=(*command, *store),
        port=inference,
        question=Question(f"/predictions/{name}", *raw_body(job.work.kind, job.setup.picture)),
        queue=f"job_queue_size={job.setup.queue}",
        health="/ping",
        variables=_threads(job),
        registration=(management, f"/models?{urlencode(query)}"),
    )


# In this environment


def echo(_job: Job) -> Launch:
    """Bare uvicorn that answers a few bytes."""
    (port,) = free_ports(1)
    question = Question("/predictions/noop", *raw_body("noop", b""))
    return Launch(echo_command(port), port, question, "none", "/")


# In environments of their own


def litserve(job: Job) -> Launch:
    """LitServe with one worker. It takes JSON and forms only."""
    bodies = {
        "noop": (b'{"x": "%b"}' % (b"x" * 56), "application/json"),
        "mlp": rows_body(),
        "resnet": form_body(job.setup.picture),
    }
    return _app(job, "litserve", Question("/predict", *bodies[job.work.kind]), "unbounded", "/health")


def rayserve(job: Job) -> Launch:
    """Ray Serve with one replica."""
    question = Question("/", *raw_body(job.work.kind, job.setup.picture))
    return _app(job, "rayserve", question, f"max_ongoing_requests={job.setup.queue}", "/-/healthz")


def _app(job: Job, name: str, question: Question, queue: str, health: str) -> Launch:
    """The program of a peer, which imports our programs, and nothing else of what this process imports."""
    work, setup, (port,) = job.work, job.setup, free_ports(1)
    assert setup.peers is not None
    command = (str(python_of(setup.peers.resolve(), name)), "-m", f"benchmarks.peers.apps.{name}_app")
    task = Task(
        kind=work.kind,
        batch=work.batch,
        delay=work.delay_ms / 1e3,
        port=port,
        queue=setup.queue,
        threads=setup.threads,
        archive=str((setup.store / setup.archives.get(work.kind, "")).resolve()),
        arch=setup.arch,
    )
    # Sockets of Ray lie deep below its temporary folder, and their paths may not be long.
    variables = {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(job.folder)}
    return Launch(command, port, question, queue, health, environment(task) | _threads(job) | variables)


def _threads(job: Job) -> dict[str, str]:
    return thread_variables(job.setup.threads // job.work.workers or 1) if job.work.kind == "resnet" else {}


def _modelserver(name: str, title: str, works: Callable[[Work], bool], **how: Any) -> Subject:
    return Subject(name, title, "modelserver", partial(modelserver, **how), works)


QUIET = partial(torchserve, quiet=True)
SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("echo", "uvicorn echo", "echo", echo, _noop),
        _modelserver("window", "modelserver, window", _archive_work),
        _modelserver("adaptive", "modelserver, adaptive", _batching, adaptive=True),
        _modelserver("plain", "modelserver, optimize off", _network, variant="plain"),
        _modelserver("compile", "modelserver, compile", _network, variant="compile"),
        _modelserver("bf16", "modelserver, bf16", _network, variant="bf16"),
        _modelserver("bf16-compile", "modelserver, bf16, compile", _network, variant="bf16-compile"),
        _modelserver("int8", "modelserver, int8", _network, variant="int8"),
        Subject("torchserve", "TorchServe", "torchserve", torchserve, _archive_work, "torchserve"),
        Subject("torchserve-quiet", "TorchServe, logs off", "torchserve", QUIET, any_work, "torchserve"),
        Subject("litserve", "LitServe", "litserve", litserve, any_work, "litserve"),
        Subject("rayserve", "Ray Serve", "rayserve", rayserve, any_work, "rayserve", is_optional=True),
    )
}
