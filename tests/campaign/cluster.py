"""Marked requests while the machines of workers are killed, frozen, paused and scaled at random: each gets
exactly one answer, its own or an error that a fault explains, and the workers come back.

Half of the time the machines are agents of this one, and half, if Ray is installed, nodes of a Ray cluster on
loopback, of which whole nodes are killed and others join.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil
from tests.campaign.targets import MIB, Holdings, build_store, quiet, settled, tracebacks
from tests.cluster.ray_nodes import RayCluster, free_port, guarded, short_folder
from tests.e2e.elsewhere import LOST, Elsewhere, Load, freezing
from tests.e2e.serving import serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.campaign.report import Report

MODEL, WORKERS, BATCH = "witness", 3, 4
# Seconds for all workers to be back; with Ray, a node's first has to start Ray's own processes.
_BACK = {"agents": 60.0, "Ray": 180.0}
# Batches that a worker may have begun or been handed when it is lost.
_HELD = 3
GROWTH = 16 * MIB


class Machines(Protocol):
    """What can happen to the machines; each returns how many workers were lost for good."""

    @property
    def faults(self) -> Sequence[Callable[[random.Random], int]]: ...


class Agents:
    """Those of this machine."""

    def __init__(self, server: Elsewhere) -> None:
        self._server = server

    @property
    def faults(self) -> Sequence[Callable[[random.Random], int]]:
        return (
            self.machine_killed,
            self.worker_killed,
            self.frozen,
            self.paused,
            self.scaled,
            self.all_killed,
        )

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
    """Those of a Ray cluster, with room for two workers each."""

    def __init__(self, server: Elsewhere, cluster: RayCluster, raylets: list[int]) -> None:
        self._server = server
        self._cluster = cluster
        self._raylets = raylets

    @property
    def faults(self) -> Sequence[Callable[[random.Random], int]]:
        return (self.node_killed, self.worker_killed, self.helper_killed, self.scaled)

    def node_killed(self, chance: random.Random) -> int:
        """With all that runs there; a new one joins."""
        raylet = psutil.Process(self._raylets.pop(chance.randrange(len(self._raylets))))
        for process in (raylet, *raylet.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._raylets.append(self._cluster.add(num_cpus=2)["raylet"])
        return 2

    def worker_killed(self, chance: random.Random) -> int:
        workers = [w for w in self._server.describe(MODEL)["workers"] if w["status"] == "READY"]
        psutil.Process(chance.choice(workers)["pid"]).kill()
        return 1

    def helper_killed(self, chance: random.Random) -> int:
        for process in psutil.Process(self._server.pid).children():
            if "modelserver.cluster.ray_helper" in process.cmdline():
                process.kill()
        return 0

    def scaled(self, chance: random.Random) -> int:
        return scale(self._server, chance)


def scale(server: Elsewhere, chance: random.Random) -> int:
    """To another number of workers and back; what they were given is served to its end."""
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
    with _folder() as folder, short_folder() as short, guarded(short):
        cluster = RayCluster(short, free_port())
        try:
            cluster.add(num_cpus=0)
            raylets = [cluster.add(num_cpus=2)["raylet"] for _ in range(2)]
            settings = {"worker_launcher": "ray", "ray_address": cluster.address}
            with serving(_server(folder, **settings)) as server:
                disturb(report, "Ray", server, Nodes(server, cluster, raylets), share)
        finally:
            cluster.close()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _server(folder: Path, **settings: Any) -> Elsewhere:
    server = Elsewhere(folder, build_store(folder), **settings)
    server.management.timeout = 200.0
    return server


def disturb(report: Report, what: str, server: Elsewhere, machines: Machines, seconds: float) -> None:
    """One server; what holds is told under the name ``what``."""
    server.registered(f"{MODEL}.mar", batch_size=BATCH, initial_workers=WORKERS)
    chance, done, back = random.Random(7), Counter[str](), list[float]()
    lost = 0
    with Load(server, MODEL) as load:
        time.sleep(min(2.0, seconds / 4))
        before, end = Holdings.of(server), time.monotonic() + seconds
        while time.monotonic() < end:
            fault = chance.choice(machines.faults)
            lost += fault(chance)
            done[fault.__name__] += 1
            began = time.monotonic()
            # A fault that is not noticed yet is none that has been recovered from.
            time.sleep(chance.uniform(0.2, 1.0))
            wait_until(lambda: server.ready(MODEL) == WORKERS, f"{WORKERS} workers are back", _BACK[what])
            back.append(time.monotonic() - began)
    wait_until(lambda: quiet(server), "nothing waits or runs")
    after = settled(server, before, GROWTH / before.memory)
    statuses = dict(sorted(load.statuses.items()))
    report.figure(f"{what}: answers by status", statuses)
    report.figure(f"{what}: wrong or missing answers", len(load.wrong))
    report.figure(f"{what}: faults", ", ".join(f"{count} {name}" for name, count in sorted(done.items())))
    report.figure(
        f"{what}: all workers back after", f"{statistics.median(back):.1f} s, at most {max(back):.1f} s"
    )
    report.figure(f"{what}: resident memory", f"{before.memory / MIB:.0f} -> {after.memory / MIB:.0f} MiB")
    report.figure(f"{what}: descriptors", f"{before.descriptors} -> {after.descriptors}")
    report.failures += [f"{what}: {wrong}" for wrong in load.wrong]
    report.hold(set(statuses) <= {200, 500, 503}, f"{what}: answers {statuses}")
    most = lost * _HELD * BATCH
    report.hold(
        load.statuses[500] <= most, f"{what}: {load.statuses[500]} requests failed, by {lost} lost workers"
    )
    report.hold(load.slowest < LOST + 10, f"{what}: a request took {load.slowest:.1f} s")
    report.hold(
        after.memory - before.memory <= GROWTH, f"{what}: resident memory grew to {after.memory / MIB:.0f}"
    )
    report.hold(
        after.descriptors <= before.descriptors + 6, f"{what}: descriptors grew to {after.descriptors}"
    )
    report.hold(not tracebacks(server), f"{what}: tracebacks in the log: {tracebacks(server)[:3]}")
