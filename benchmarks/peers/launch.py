"""How each server is started and asked for a work: a command, variables, and what to post. Starts nothing."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from benchmarks.peers.apps.task import Task, environment
from benchmarks.peers.packages import PEERS, missing, python_of
from benchmarks.servers import QUEUE_SIZE, ROOT, configuration, echo_command, grpc_settings, thread_variables
from benchmarks.works import Question, Work, form_body, json_body, raw_body
from modelserver.tools.tune.own_server import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


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
    """LitServe with one worker."""
    task = _task(job)
    small = json_body(job.work.kind, {"x": "x" * 56})
    body = form_body("request", job.setup.picture) if job.work.kind == "resnet" else small
    question, variables = Question("/predict", *body), _variables(job, task)
    return Launch(_app(job, "litserve"), task.port, question, "unbounded", "/health", variables)


def rayserve(job: Job) -> Launch:
    """Ray Serve with one replica."""
    task = _task(job)
    question = Question("/", *raw_body(job.work.kind, job.setup.picture))
    # Its sockets lie deep below its temporary folder, and their paths may not be long.
    variables = _variables(job, task) | {"RAY_TMPDIR": str(job.folder)}
    queue = f"max_ongoing_requests={job.setup.queue}"
    return Launch(_app(job, "rayserve"), task.port, question, queue, "/-/healthz", variables)


def _app(job: Job, name: str) -> tuple[str, ...]:
    assert job.setup.peers is not None
    return (str(python_of(job.setup.peers.resolve(), name)), "-m", f"benchmarks.peers.apps.{name}_app")


def _task(job: Job) -> Task:
    (port,) = free_ports(1)
    archive = job.setup.archives.get(job.work.kind, "")
    return Task(
        kind=job.work.kind,
        batch=job.work.batch,
        delay=job.work.delay_ms / 1e3,
        port=port,
        queue=job.setup.queue,
        threads=job.setup.threads,
        archive=str((job.setup.store / archive).resolve()),
        arch=job.setup.arch,
    )


def _variables(job: Job, task: Task) -> dict[str, str]:
    """The task, and where our programs are imported from; nothing of what this process imports."""
    return environment(task) | _threads(job) | {"PYTHONPATH": str(ROOT)}


def _threads(job: Job) -> dict[str, str]:
    return thread_variables(job.setup.threads // job.work.workers or 1) if job.work.kind == "resnet" else {}


def _modelserver(
    name: str, title: str, works: Callable[[Work], bool], *, adaptive: bool = False, variant: str = ""
) -> Subject:
    def launch(job: Job) -> Launch:
        return modelserver(job, adaptive=adaptive, variant=variant)

    return Subject(name, title, "modelserver", launch, works)


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
