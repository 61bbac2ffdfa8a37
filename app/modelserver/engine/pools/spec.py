"""The parameters of workers and pools."""

from __future__ import annotations

import enum
import math
import os
import re
import socket
import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from modelserver.engine.batching.policies import Adaptive, Policy, Window, make_policy
from modelserver.engine.pools.gate import BASE_NEED, COPIES, StartGate
from modelserver.engine.pools.output import Measured, without_quote
from modelserver.engine.pools.variables import THREAD_VARIABLES
from modelserver.engine.telemetry.gpus import VISIBLE
from modelserver.engine.wire.messages import Answer, Load, Parts, Result, ToServer, ToWorker
from modelserver.errors import ModelServerError, ServiceUnavailable

if TYPE_CHECKING:
    from modelserver.engine.batching.queue import BatchQueue
    from modelserver.engine.batching.request import Batch, Request
    from modelserver.engine.demand import Demand
    from modelserver.engine.pools.local_process import Child

Worker_contra = TypeVar("Worker_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Receiver:
    """What receives the messages of one process.

    ``on_message`` gets each with the bytes after it, which are only valid during the call. ``on_lost`` is
    called once when the connection is lost, with the reason or None for an orderly end.
    """

    on_message: Callable[[ToServer, memoryview], None]
    on_lost: Callable[[str | None], None]


@dataclass(slots=True)
class Node:
    """The other machine that a process runs on, as it last described itself.

    ``name`` is the cluster's name for it. ``resident`` are the bytes of memory of the worker's process,
    ``of_family`` also those of all its descendants, ``gpu`` the worker's GPUs in words; ``reports`` counts
    how often these came.
    """

    name: str
    host: str = ""
    resident: int = 0
    of_family: int = 0
    gpu: str = ""
    reports: int = 0


class Process(Protocol):
    """The running process of a worker, or several with the same interface."""

    @property
    def pid(self) -> int:
        """Its number on its machine."""

    @property
    def pids(self) -> list[int]:
        """Its processes on this machine; none if it runs on another one."""

    @property
    def node(self) -> Node | None:
        """Where it runs; None: on this machine."""

    @property
    def round_trip(self) -> float:
        """Seconds that a message takes there and back, as measured; 0.0 on this machine."""

    @property
    def recalls(self) -> bool:
        """Whether batches can be taken back from it."""

    @property
    def batches_started(self) -> int | None:
        """How many batches it had started when it ended; None before its end, or if unknown."""

    @property
    def for_memory(self) -> bool | None:
        """After its end by SIGKILL: whether the system killed it for lack of memory; None if unknown."""

    def send(self, message: ToWorker, bodies: Sequence[bytes] = ()) -> None:
        """Sends one message; dropped if the connection is lost."""

    def allow(self, limit: int) -> None:
        """Changes the limit for its frames, in bytes."""

    def recall(self, sequence: int) -> int | None:
        """Takes back the batches below ``sequence`` that it has not begun; returns how many it has begun.

        None: it has been asked, and will answer with a :class:`~modelserver.engine.wire.messages.Recalled`.
        Raises OSError.
        """

    def kill(self) -> None:
        """Ends it without asking."""

    async def wait(self) -> str:
        """Waits for its end, and returns how it ended."""

    def last_output(self, lines: int = 20) -> str:
        """The last lines of its output."""


class Launcher(Protocol):
    """Starts the processes of workers on other machines."""

    async def __call__(
        self, spec: WorkerSpec, label: str, receivers: Sequence[Receiver]
    ) -> Sequence[Process]:
        """Starts a worker's process for each receiver, the ranks in their order, and sends them their model.

        Raises OSError if one cannot be started, StartFailed if the model is why.
        """


class Machines(Protocol):
    """Other machines for workers."""

    def launcher(self, demand: Demand, packages: tuple[str, bool, str]) -> Launcher:
        """What starts the workers of one model version, each of which needs ``demand``.

        ``packages``: the model's requirements file, whether it gets a virtual environment, and the module
        that installs both.
        """


class WorkerOwner(Protocol[Worker_contra]):
    """The receiver of a worker's events, called on the event loop."""

    def pump(self) -> None:
        """Another worker may have room."""

    def workers_changed(self) -> None:
        """A worker has left, or will not come back."""

    async def release(self, worker: Worker_contra) -> None:
        """Waits until a leaving worker has done what no other can."""

    def worker_ready(self, worker: Worker_contra, seconds: float) -> None: ...

    def worker_answered(
        self, worker: Worker_contra, batch: Batch, result: Result, tail: memoryview
    ) -> None: ...

    def worker_streamed(self, worker: Worker_contra, message: Parts, tail: memoryview) -> None: ...

    def worker_returned(self, worker: Worker_contra, batch: Batch) -> None:
        """The batch was taken back: the worker has not begun it, and never will."""

    def worker_failed(self, worker: Worker_contra, error: ModelServerError) -> None:
        """A process that had loaded has ended, which nobody wished: another process replaces it."""

    def worker_lost(
        self, worker: Worker_contra, running: Batch | None, unbegun: list[Batch], error: ModelServerError
    ) -> None:
        """A process ended. ``running`` had begun and is lost; ``unbegun`` batches may go elsewhere."""


class Affinity(Protocol):
    """Which worker gets which request: those of one sequence need the state that one worker has.

    Requests that a method returns are no longer queued: the caller ends them.
    """

    @property
    def queue(self) -> BatchQueue:
        """The waiting requests."""

    @property
    def leaving(self) -> Collection[Any]:
        """Workers in :meth:`leave`: they get requests of the sequences that they have."""

    @property
    def statistics(self) -> dict[str, int]:
        """How many sequences are ``living``, and how many requests of theirs are ``waiting``."""

    def knows(self, sequence_id: str) -> bool:
        """Whether the sequence has begun here and not ended, or its state was lost lately."""

    def lives(self, request: Request) -> bool:
        """Whether the request belongs to a sequence that has begun and not ended."""

    def has_ticket(self, request: Request, free: Sequence[Hashable]) -> bool:
        """Whether one of the ``free`` workers could run the request in its next batch."""

    def place(self, ready: Sequence[Hashable], workers: int) -> None:
        """Assigns new sequences to ready workers, the first ones preferred, of this number of workers."""

    def take(self, worker: Hashable, now: float) -> Batch | None:
        """The next batch that is due for a free worker, if any."""

    def due(self, worker: Hashable, now: float) -> float:
        """The time of its next batch; infinity if nothing waits for it."""

    def next_end(self) -> float:
        """The time at which :meth:`expire` has something to do."""

    def expire(self, now: float) -> list[Request]:
        """Ends what is over; returns the requests that waited."""

    def finished(
        self, batch: Batch, now: float, worker: Hashable = None, answers: Sequence[Answer] = ()
    ) -> list[Request]:
        """The worker has answered the batch, or it has failed; returns the requests that waited for what ends
        with it.
        """

    def lose(self, worker: Hashable, now: float) -> list[tuple[Request, ModelServerError]]:
        """The worker's state is lost; returns the requests that waited for it, with the reason."""

    def remove_unplaced(self) -> list[Request]:
        """Removes the requests that belong to no worker yet."""

    async def leave(self, worker: Hashable, patience: float) -> None:
        """Waits until nobody needs the worker's state; for ``patience`` seconds, unless it has a limit."""


class OnDemand(Protocol):
    """Starts workers of a pool that has none when requests need them."""

    @property
    def refusal(self) -> ModelServerError | None:
        """Why requests cannot wait for workers now; None: they can."""

    def wake(self) -> None:
        """A request waits, and there are no workers."""

    def changed(self) -> None:
        """Workers have come or gone."""

    async def load(self, size: int = 0, seconds: float = math.inf) -> None:
        """Waits until a worker has loaded the model, for a request of ``size`` bytes at most ``seconds``.

        Raises ModelServerError.
        """

    def park(self) -> None:
        """Ends the workers until the next request. Raises Conflict while they have requests."""

    def loaded(self, seconds: float) -> None:
        """A worker has loaded the model, which took so long in its process."""

    def describe(self) -> dict[str, Any]:
        """For the description of the version."""


class PoolScaler(Protocol):
    """Starts and ends workers of a pool as its load needs."""

    @property
    def wish(self) -> int:
        """How many workers it wants; 0 before its first decision."""

    def describe(self) -> dict[str, Any]:
        """What it has seen and decided, for the description of the version."""


class Forker(Protocol):
    """Forks workers instead of starting a new Python for each."""

    async def spawn(
        self, spec: WorkerSpec, environment: Mapping[str, str], outputs: tuple[int, int], connection: int
    ) -> Child | None:
        """A child with these descriptors; None if it cannot be forked."""


class StoppableForker(Forker, Protocol):
    """What forks the workers of a server, and ends with it."""

    def refuse(self) -> None:
        """Forks nothing any more; the ends of workers are still reported."""

    async def close(self) -> None:
        """Ends what forks; workers live on."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """How every worker of one model version is started.

    ``threads`` are the cores that the workers share, ``own_threads`` the number that the model sets per
    process, 0 if it does not; ``frame_limit`` is in bytes. ``spawner`` forks processes if it can; otherwise
    each is a new Python process. ``launcher`` starts them on other machines. ``gate`` limits how many load
    at once, and ``need`` are the bytes that loading may take. ``concurrency``: how many batches a worker runs
    at once, answered in any order; 0: one at a time. ``idempotent``: batches may run again of which nobody
    knows whether a lost worker began them. ``measured`` gets printed metrics. ``ipex``: whether handlers use
    Intel's extension, and on GPUs. ``named_files`` are files of the server, by the variable that names each.
    ``worth``: requests wait until a worker has started, those first that are worth most; None: not on demand.
    ``room``: for how many more workers there is memory, below 0 if it is exceeded. ``shortage``: what
    requests receive whose time passes while they wait for memory.
    """

    load: Load
    threads: int
    frame_limit: int
    own_threads: int = 0
    hidden_variables: re.Pattern[str] | None = None
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    named_files: Mapping[str, Path] = field(default_factory=dict)
    python: str = sys.executable
    spawner: Forker | None = None
    launcher: Launcher | None = None
    gate: StartGate = field(default_factory=StartGate)
    need: int = BASE_NEED
    concurrency: int = 0
    idempotent: bool = False
    ranks: Ranks | None = None
    measured: Measured | None = None
    ipex: tuple[bool, bool] = (False, False)
    worth: Callable[[], float] | None = None
    room: Callable[[], float] | None = None
    shortage: Callable[[], ModelServerError | None] = lambda: None

    @property
    def files(self) -> int:
        """Bytes of the model's files, which all processes of a worker read."""
        processes = 1 if self.ranks is None else max(1, self.ranks.processes)
        return max(0, self.need // processes - BASE_NEED) // COPIES

    def own_environment(self) -> dict[str, str]:
        """The variables that workers have in addition to the environment of their machine."""
        own = dict.fromkeys(THREAD_VARIABLES, str(self.own_threads)) if self.own_threads else {}
        own["TS_DECODE_INPUT_REQUEST"] = str(self.load.decode_input_request).lower()
        own["TS_IPEX_ENABLE"], own["TS_IPEX_GPU_ENABLE"] = (str(x).lower() for x in self.ipex)
        named = {name: str(path) for name, path in self.named_files.items()}
        return {**own, **named, **self.extra_environment}

    @staticmethod
    def threads_in(environment: Mapping[str, str]) -> int:
        """The number of threads that all numeric libraries have with a worker's variables; 0: they differ."""
        first, *others = (environment[name] for name in THREAD_VARIABLES)
        return int(first) if first.isdecimal() and all(other == first for other in others) else 0


_PORTS_TRIED = 1000


class Ports:
    """Ports for the rendezvous of ranks: free ones counting up from ``first``; any free ones if that is 0.

    ``used`` counts those that have been tried or returned.
    """

    def __init__(self, first: int, used: int = 0) -> None:
        self.first = first
        self.used = used

    def next(self) -> int:
        """A free port. Raises OSError if there is none."""
        if not self.first:
            return free_port(0)
        for _ in range(_PORTS_TRIED):
            port = self.first + self.used % _PORTS_TRIED
            self.used += 1
            try:
                return free_port(port if port < 1 << 16 else 0)
            except OSError:
                continue
        raise OSError(f"no port of {self.first} and the next {_PORTS_TRIED} is free")


def free_port(port: int) -> int:
    """The port, or any for 0, if it can be bound now. Raises OSError."""
    with socket.socket() as probe:
        probe.bind(("", port))
        bound: int = probe.getsockname()[1]
        return bound


@dataclass(frozen=True, slots=True)
class Ranks:
    """How a worker spans processes and devices.

    ``processes`` is 0 for a single ordinary process that sees a group of devices. ``groups`` maps the first
    device of each group, which the pool assigns, to its devices. ``broadcast``: every rank gets every batch.
    ``threads`` is per rank, 0: its share of the worker's.
    """

    processes: int
    broadcast: bool = True
    groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    threads: int = 0
    ports: Ports = field(default_factory=lambda: Ports(0))

    def member_spec(
        self,
        spec: WorkerSpec,
        *,
        rank: int,
        local: tuple[int, int],
        machine: tuple[int, int],
        meeting: tuple[str, int],
        gpus: tuple[int | None, str] = (None, ""),
    ) -> WorkerSpec:
        """The spec for the process of this rank, which is number ``local[0]`` of ``local[1]`` on its machine.

        That is ``machine[0]`` of ``machine[1]``; all ranks meet at the host and port of ``meeting``. It gets
        the GPU of its local rank among its worker's devices, or number ``gpus[0]`` of those in ``gpus[1]``. A
        failed batch is not retried in parts, as ranks could choose different parts.
        """
        alone, count, (gpu_id, devices) = lone_spec(spec, self), self.processes, gpus
        load = msgspec.structs.replace(
            alone.load,
            gpu_id=gpu_id if alone.load.gpu_id is None else local[0],
            isolate=spec.load.isolate and count == 1,
            rank=rank,
            ranks=count,
        )
        environment = {
            **alone.extra_environment,
            **_variables(rank, count, local, machine, meeting),
            **(dict.fromkeys(THREAD_VARIABLES, str(self.threads)) if self.threads else {}),
            **({VISIBLE: devices} if devices else {}),
        }
        return replace(alone, load=load, threads=max(1, spec.threads // count), extra_environment=environment)


def lone_spec(spec: WorkerSpec, ranks: Ranks) -> WorkerSpec:
    """The spec for one process that sees a group of devices, numbered from 0."""
    devices = ranks.groups.get(-1 if spec.load.gpu_id is None else spec.load.gpu_id, ())
    load = msgspec.structs.replace(spec.load, gpu_id=0 if devices else None)
    environment = {**spec.extra_environment, **visible(devices)}
    return replace(spec, load=load, extra_environment=environment, spawner=None, ranks=None)


def _variables(
    rank: int, count: int, local: tuple[int, int], machine: tuple[int, int], meeting: tuple[str, int]
) -> dict[str, str]:
    """The variables that torchrun sets for a process."""
    host, port = meeting
    ranks = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": local[0], "GROUP_RANK": machine[0]}
    sizes = {"WORLD_SIZE": count, "ROLE_WORLD_SIZE": count, "LOCAL_WORLD_SIZE": local[1]}
    others = {"GROUP_WORLD_SIZE": machine[1], "MASTER_PORT": port}
    restarts = {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    return {
        "MASTER_ADDR": host,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": f"modelserver_{port}",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "LOGLEVEL": "INFO",
        **{name: str(number) for name, number in {**ranks, **sizes, **others, **restarts}.items()},
    }


def visible(devices: Sequence[int], server: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable that limits a process to these devices, numbered as the server sees them."""
    if not devices:
        return {}
    names = [name.strip() for name in server.get(VISIBLE, "").split(",") if name.strip()]
    known = {device: names[device] if device < len(names) else str(device) for device in devices}
    return {VISIBLE: ",".join(known[device] for device in devices)}


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How a pool batches, and its limits; times in seconds. ``tickets``: only idle workers accept requests.

    A worker is recycled after ``max_worker_requests``; 0 is unlimited. ``options`` are further options of the
    model by their names, for whatever part of the pool they are of.
    """

    batch_size: int
    policy: str
    max_delay: float
    max_requests: int
    max_bytes: int
    tickets: bool = False
    max_worker_requests: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def make_policy(self, current: Policy | None = None) -> Policy:
        """The policy for these limits; what ``current`` has learned is kept if only its delay changes.

        Batches of one are always full, so there is nothing to wait for or learn.
        """
        name = self.policy if self.batch_size > 1 else "greedy"
        if current is None or current.name != name:
            return make_policy(name, self.max_delay)
        if isinstance(current, (Window, Adaptive)):
            current.max_delay = self.max_delay
        return current


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool at one moment. ``pending`` and ``capacity`` count requests."""

    pending: int
    capacity: int
    instances: int
    batches_in_flight: int
    ready: int
    loading: int
    failed: int


# Characters of the reason in responses.
LONGEST_REASON = 500


def no_worker(model: str, version: str | None = None, failure: str = "") -> ServiceUnavailable:
    """The refusal if the queue is full or there are no workers, with the reason if workers fail.

    TorchServe's message is the same for both (reference 6.5). ``version``: as in the request.
    """
    named = "" if version is None else f' Version {version}"'
    text = (
        f'Model "{model}"{named} has no worker to serve inference request. '
        "Please use scale workers API to add workers. If this is a sequence inference, please check if it is "
        "closed, or expired; or exceeds maxSequenceJobQueueSize"
    )
    reason = without_quote(failure).partition("\n")[0][:LONGEST_REASON]
    return ServiceUnavailable(f"{text}. Its workers fail: {reason}" if reason else text)


class WorkerState(enum.Enum):
    """The state of a worker, as shown by describe."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class WorkerTimes:
    """The timeouts of a worker, in seconds."""

    startup: float
    response: float
    silence: float
    max_retry: float


def backoff() -> Iterator[float]:
    """Seconds between retries: 1, 1, 2, 3, 5, 8 … (reference 18.4), at most a minute."""
    a, b = 1, 1
    while True:
        yield float(min(a, 60))
        a, b = b, a + b
