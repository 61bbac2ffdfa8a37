"""The parameters of workers and pools."""

from __future__ import annotations

import enum
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from modelserver.batching.policies import Adaptive, Window, make_policy
from modelserver.errors import ServiceUnavailable
from modelserver.pools.gate import BASE_NEED, StartGate

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Mapping

    from modelserver.batching.policies import Policy
    from modelserver.pools.launching import Launcher
    from modelserver.pools.printed_metrics import Measured
    from modelserver.wire.messages import Load


class Spawner(Protocol):
    """Forks workers instead of starting a new Python for each."""

    async def spawn(
        self, spec: WorkerSpec, environment: Mapping[str, str], outputs: tuple[int, int], connection: int
    ) -> Child:
        """A child with these descriptors. Raises SpawnRefused with the reason if it cannot be forked."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """How every worker of one model version is started.

    ``threads`` are the cores that the workers share, ``own_threads`` the number that the model sets per
    process, 0 if it does not; ``frame_limit`` is in bytes. ``spawner`` forks processes if it can; otherwise
    each is a new Python process. ``launcher`` starts them on other machines. ``gate`` limits how many load
    at once, and ``need`` are the bytes that loading may take. ``concurrency``: how many batches a worker runs
    at once, answered in any order; 0: one at a time. ``idempotent``: batches may run again of which nobody
    knows whether a lost worker began them. ``measured`` gets printed metrics. ``ipex``: whether handlers use
    Intel's extension, and on GPUs.
    """

    load: Load
    threads: int
    frame_limit: int
    own_threads: int = 0
    hidden_variables: re.Pattern[str] | None = None
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    spawner: Spawner | None = None
    launcher: Launcher | None = None
    gate: StartGate = field(default_factory=StartGate)
    need: int = BASE_NEED
    concurrency: int = 0
    idempotent: bool = False
    ranks: Ranks | None = None
    measured: Measured | None = None
    ipex: tuple[bool, bool] = (False, False)

    def environment(self, server: Mapping[str, str]) -> dict[str, str]:
        """The server's environment without hidden variables (``blacklist_env_vars``) and with thread counts.

        Numeric libraries read their thread counts only when they load.
        """
        hidden = self.hidden_variables
        environment = {k: v for k, v in server.items() if hidden is None or not hidden.fullmatch(k)}
        for name in THREAD_VARIABLES:
            environment[name] = str(self.own_threads or environment.get(name) or self.threads)
        environment["PYTHONUNBUFFERED"] = "1"
        environment["TS_DECODE_INPUT_REQUEST"] = str(self.load.decode_input_request).lower()
        environment["TS_IPEX_ENABLE"], environment["TS_IPEX_GPU_ENABLE"] = (str(x).lower() for x in self.ipex)
        return {**environment, **self.extra_environment}


class Child(Protocol):
    """A process, however it was started."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None:
        """Ends it; ProcessLookupError if it has ended."""

    async def wait(self) -> int | None:
        """Its exit code, negative for a signal; None if unknown."""


_PORTS_TRIED = 1000


class Ports:
    """Ports for the rendezvous of ranks: free ones counting up from ``first``; any free ones if that is 0."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._given = 0

    def next(self) -> int:
        """A free port. Raises OSError if there is none."""
        if not self._first:
            return free_port(0)
        for _ in range(_PORTS_TRIED):
            port = self._first + self._given % _PORTS_TRIED
            self._given += 1
            try:
                return free_port(port if port < 1 << 16 else 0)
            except OSError:
                continue
        raise OSError(f"no port of {self._first} and the next {_PORTS_TRIED} is free")


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


THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How a pool batches, and its limits; times in seconds. ``tickets``: only idle workers accept requests.

    A worker is recycled above ``max_worker_memory`` bytes or after ``max_worker_requests``; 0 is unlimited.
    """

    batch_size: int
    policy: str
    max_delay: float
    max_requests: int
    max_bytes: int
    tickets: bool = False
    max_worker_memory: int = 0
    max_worker_requests: int = 0


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


def policy_for(limits: PoolLimits, current: Policy | None = None) -> Policy:
    """The policy for these limits; what ``current`` has learned is kept if only its delay changes.

    Batches of one are always full, so there is nothing to wait for or learn.
    """
    name = limits.policy if limits.batch_size > 1 else "greedy"
    if current is None or current.name != name:
        return make_policy(name, limits.max_delay)
    if isinstance(current, (Window, Adaptive)):
        current.max_delay = limits.max_delay
    return current


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
    reason = failure.partition("\n")[0][:LONGEST_REASON]
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
