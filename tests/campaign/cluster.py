"""Marked requests by all protocols while the machines of workers are killed, frozen, paused and scaled at
random: each gets exactly one answer, its own or an error that a fault explains, and the workers come back.

Half of the time the machines are agents of this one, and half, if Ray is installed, nodes of a Ray cluster on
loopback: whole nodes are killed and others join, the GCS ends and comes back with its state in Redis, or
everything ends and another cluster takes its place.
"""

import contextlib
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import psutil
from tests.campaign.crowd import Tally, ask_by_grpc, ask_by_http
from tests.campaign.report import Report
from tests.campaign.targets import MIB, Holdings, build_store, quiet, settled, tracebacks
from tests.e2e.elsewhere import LOST, Elsewhere, freezing
from tests.e2e.grpc_client import grpc_settings
from tests.e2e.serving import command_of, free_port, serving, wait_until
from tests.ext.cluster.ray_nodes import RayCluster, guarded, redis, short_folder

MODEL, WORKERS, BATCH = "witness", 3, 4
CLIENTS, GRPC_CLIENTS = 8, 2
# Seconds between a client's requests: as fast as they can, they would take the processors from the cluster.
PAUSE = 0.002
CAUSES = {(MODEL, 500): "its worker was lost", (MODEL, 503): "there was no worker"}
# Seconds for all workers to be back; with Ray, a node's first has to start Ray's own processes.
_BACK = {"agents": 60.0, "Ray": 180.0}
# The most batches that a worker has when it is lost.
_HELD = 3
GROWTH = 16 * MIB


class Machines(Protocol):
    """What can happen to the machines; each returns how many workers were lost for good."""

    @property
    def faults(self) -> Sequence[Callable[[random.Random], int]]: ...


class Agents:
    def __init__(self, server: Elsewhere) -> None:
        self._server = server

    @property
    def faults(self) -> Sequence[Callable[[random.Random], int]]:
        workers = (self.worker_killed, self.frozen, self.paused, self.scaled)
        return (self.machine_killed, *workers, self.all_killed)

    def machine_killed(self, chance: random.Random) -> int:
        self._one(chance).kill()
        return 1

    def worker_killed(self, chance: random.Random) -> int:
        for worker in self._one(chance).children():
            worker.kill()
        return 1

    def frozen(self, chance: random.Random) -> int:
        agent = self._one(chance)
        with freezing(agent, *agent.children()):
            time.sleep(LOST + 1)
        return 1

    def paused(self, chance: random.Random) -> int:
        agent = self._one(chance)
        with freezing(agent, *agent.children()):
            time.sleep(LOST / 3)
        return 0

    def scaled(self, chance: random.Random) -> int:
        return scale(self._server, chance)

    def all_killed(self, chance: random.Random) -> int:
        agents = self._server.agents(MODEL)
        for agent in agents:
            agent.kill()
        return len(agents)

    def _one(self, chance: random.Random) -> psutil.Process:
        return chance.choice(self._server.agents(MODEL))


class Nodes:
    """Those of a Ray cluster at this port: a head without room for workers, and two nodes for two each.

    ``variables`` are more of the cluster's environment.
    """

    def __init__(self, server: Elsewhere, folder: Path, port: int, variables: Mapping[str, str]) -> None:
        self._server = server
        self._folder, self._port, self._variables = folder, port, variables
        self.start()

    def start(self) -> None:
        """A cluster that knows nothing of any before it."""
        self.cluster = RayCluster(self._folder, self._port, **self._variables)
        self.cluster.add(num_cpus=0)
        self._raylets = [self._add(), self._add()]

    def _add(self) -> int:
        return self.cluster.add(num_cpus=2)["raylet"]

    @property
    def faults(self) -> Sequence[Callable[[random.Random], int]]:
        often = (self.node_killed, self.worker_killed, self.helper_killed, self.scaled)
        head = (self.gcs_killed,) if self._variables else ()
        return (*often, *often, *head, *head, self.cluster_replaced)

    def node_killed(self, chance: random.Random) -> int:
        """Kills a node with all that runs there; a new one joins."""
        raylet = psutil.Process(self._raylets.pop(chance.randrange(len(self._raylets))))
        for process in (raylet, *raylet.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._raylets.append(self._add())
        return 2

    def worker_killed(self, chance: random.Random) -> int:
        workers = [w for w in self._server.describe(MODEL)["workers"] if w["status"] == "READY"]
        psutil.Process(chance.choice(workers)["pid"]).kill()
        return 1

    def helper_killed(self, chance: random.Random) -> int:
        for process in psutil.Process(self._server.pid).children():
            if "modelserver.ext.cluster.ray_helper" in command_of(process):
                process.kill()
        return 0

    def scaled(self, chance: random.Random) -> int:
        return scale(self._server, chance)

    def gcs_killed(self, chance: random.Random) -> int:
        """And a worker, before it is started anew with what it knew: the nodes stay."""
        self._kill_gcs()
        time.sleep(chance.uniform(0.5, 3.0))
        lost = self.worker_killed(chance)
        time.sleep(chance.uniform(0.5, 3.0))
        self.cluster.start_gcs_anew()
        return lost

    def cluster_replaced(self, chance: random.Random) -> int:
        """Some time after its GCS all of it ends, with all workers."""
        self._kill_gcs()
        time.sleep(chance.uniform(1.0, 5.0))
        self.cluster.close()
        self.start()
        return WORKERS

    def _kill_gcs(self) -> None:
        for process in psutil.Process(self.cluster.process.pid).children(recursive=True):
            if process.name() == "gcs_server":
                process.kill()


def scale(server: Elsewhere, chance: random.Random) -> int:
    """Scales to another number of workers and back; workers finish the requests that they have."""
    for count in (chance.randint(1, WORKERS + 1), WORKERS):
        server.management.put(f"/models/{MODEL}?min_worker={count}&synchronous=true")
    return 0


def run(report: Report, seconds: float) -> None:
    """Agents, then Ray."""
    has_ray = find_spec("ray") is not None
    share = seconds / 2 if has_ray else seconds
    with _folder() as folder, serving(_server(folder, worker_launcher="agents")) as server:
        disturb(report, "agents", server, Agents(server), share)
    if not has_ray:
        report.skip("nodes of a Ray cluster", "Ray is not installed")
        return
    with _folder() as folder, short_folder() as short, guarded(short), redis(short) as variables:
        if not variables:
            report.skip("a GCS that comes back with its state", "redis-server is not installed")
        port = free_port()
        server = _server(folder, worker_launcher="ray", ray_address=f"127.0.0.1:{port}")
        nodes = Nodes(server, short, port, variables)
        try:
            with serving(server):
                disturb(report, "Ray", server, nodes, share)
        finally:
            nodes.cluster.close()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _server(folder: Path, **settings: Any) -> Elsewhere:
    server = Elsewhere(folder, build_store(folder), **grpc_settings(), **settings)
    server.management.timeout = 200.0
    return server


def disturb(report: Report, what: str, server: Elsewhere, machines: Machines, seconds: float) -> None:
    """Disturbs one server; the report has the results under the name ``what``."""
    server.registered(f"{MODEL}.mar", batch_size=BATCH, initial_workers=WORKERS)
    chance, done, back = random.Random(7), Counter[str](), list[float]()
    lost, tally, ended = 0, Tally(CAUSES), threading.Event()

    def going() -> bool:
        return not ended.is_set()

    with ThreadPoolExecutor(GRPC_CLIENTS + 1) as pool:
        load = [pool.submit(ask_by_http, server, tally, CLIENTS, going, PAUSE)]
        load += [pool.submit(ask_by_grpc, server, tally, n, going, PAUSE) for n in range(GRPC_CLIENTS)]
        try:
            time.sleep(min(2.0, seconds / 4))
            before, end = Holdings.of(server), time.monotonic() + seconds
            while time.monotonic() < end:
                fault = chance.choice(machines.faults)
                lost += fault(chance)
                done[fault.__name__] += 1
                began = time.monotonic()
                # A fault that is not noticed yet is none that has been recovered from.
                time.sleep(chance.uniform(0.2, 1.0))
                wait_until(lambda: len(server.pids(MODEL)) == WORKERS, "all workers are back", _BACK[what])
                back.append(time.monotonic() - began)
        finally:
            ended.set()
    for each in load:
        each.result()
    wait_until(lambda: quiet(server), "nothing waits or runs")
    after = settled(server, before, GROWTH / before.memory)
    report.figure(f"{what}: requests answered with their own", tally.answered.total())
    for kind, count in sorted(tally.answered.items()):
        report.figure(f"{what}:   {kind}", count)
    for error, cause in CAUSES.items():
        report.figure(f"{what}: an error because {cause}", tally.failed[error])
    report.figure(f"{what}: broken off by their clients", tally.broken_off)
    report.figure(f"{what}: wrong, missing or unexplained answers", len(tally.wrong))
    report.figure(f"{what}: slowest answer", f"{tally.slowest:.1f} s")
    report.figure(f"{what}: faults", ", ".join(f"{count} {name}" for name, count in sorted(done.items())))
    report.figure(
        f"{what}: all workers back after", f"{statistics.median(back):.1f} s, at most {max(back):.1f} s"
    )
    report.figure(f"{what}: resident memory", f"{before.memory / MIB:.0f} -> {after.memory / MIB:.0f} MiB")
    report.figure(f"{what}: descriptors", f"{before.descriptors} -> {after.descriptors}")
    report.failures += [f"{what}: {wrong}" for wrong in tally.wrong]
    failed = tally.failed[MODEL, 500]
    report.hold(failed <= lost * _HELD * BATCH, f"{what}: {failed} requests failed, by {lost} lost workers")
    report.hold(tally.slowest < LOST + 10, f"{what}: a request took {tally.slowest:.1f} s")
    report.hold(
        after.memory - before.memory <= GROWTH, f"{what}: resident memory grew to {after.memory / MIB:.0f}"
    )
    report.hold(
        after.descriptors <= before.descriptors + 6, f"{what}: descriptors grew to {after.descriptors}"
    )
    report.hold(not tracebacks(server), f"{what}: tracebacks in the log: {tracebacks(server)[:3]}")
