"""A server whose workers run on a real Ray cluster of three nodes."""

import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.elsewhere import store_beside
from tests.e2e.load import Load, is_echo
from tests.e2e.serving import Home, Server, archived, command_of, free_port, serving, wait_until
from tests.e2e.test_distributed import CONFIG, SUMMING
from tests.ext.cluster.ray_nodes import RayCluster, guarded, redis, short_folder

pytestmark = [
    pytest.mark.slow,  # starts a cluster of three nodes
    pytest.mark.timeout(400),  # several waits, each as patient as a busy machine needs
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray has no wheel for this Python"),
    pytest.mark.skipif(sys.platform != "linux", reason="the cluster's processes are looked up in /proc"),
]

_PATIENCE = 90.0


class Nodes:
    """A head without room for workers, and two nodes for two each; ``raylets`` are the nodes' processes.

    ``persistent``: variables of a cluster whose head keeps its state; none if there is nothing to keep it.
    """

    def __init__(self, folder, persistent):
        self._folder, self._port, self.persistent = folder, free_port(), persistent
        self.start()

    def start(self, count=2, **variables):
        """A cluster at the same address as any before it."""
        self.cluster = RayCluster(self._folder, self._port, **variables)
        self.cluster.add(num_cpus=0)
        self.raylets = [self.add() for _ in range(count)]

    def add(self):
        """One more node; of its resource, it has enough for one rank."""
        return self.cluster.add(num_cpus=2, resources={"rank": 1})["raylet"]

    def kill_gcs(self):
        """The head's only task here."""
        for process in self.processes():
            if process.name() == "gcs_server":
                process.kill()

    def processes(self):
        return psutil.Process(self.cluster.process.pid).children(recursive=True)


def on(nodes):
    return {
        "worker_launcher": "ray",
        "ray_address": nodes.cluster.address,
        "placement_timeout": _PATIENCE,
        # None of these tests is about silence, and a busy machine is silent for seconds.
        "worker_lost_timeout": _PATIENCE,
        "default_response_timeout": 60,
    }


@pytest.fixture(scope="module")
def nodes():
    with short_folder() as folder, guarded(folder), redis(folder) as persistent:
        made = Nodes(folder, persistent)
        yield made
        made.cluster.close()


@pytest.fixture(scope="module")
def server(nodes, model_store, tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("ray"))
    store = store_beside(model_store, home.path)
    ranks = "resources: {num_cpus: 0, custom: {rank: 2}}\n"
    archived(store, "summing", SUMMING, config=CONFIG.format(processes=2, fails="null") + ranks)
    with serving(Server(home, store, settings=on(nodes))) as made:
        # The first of a node starts Ray's own processes.
        made.management.timeout = httpx.Timeout(_PATIENCE)
        made.registered("echo.mar", initial_workers=4, batch_size=4)
        yield made


@pytest.fixture(scope="module")
def other(server, nodes, tmp_path_factory):
    """Another server of the cluster, which soon gives up waiting for room. Its worker needs no CPU."""
    settings = {**on(nodes), "worker_resources": '{"num_cpus": 0}', "placement_timeout": 15}
    store = Path(str(server.settings["model_store"]))
    archived(store, "large", SUMMING, config="resources: {num_cpus: 1}\n")
    result = Server(Home(tmp_path_factory.mktemp("other")), store, settings=settings)
    try:
        result.start()
        result.management.timeout = httpx.Timeout(_PATIENCE)
        result.registered("echo.mar", initial_workers=0)
        result.management.put("/models/echo", params={"min_worker": 1})
        wait_until(lambda: result.predict("echo", b"x").status_code == 200, "it has a worker", _PATIENCE)
        yield result
    finally:
        result.kill()


def loaded(server):
    """Paced clients: as fast as they can, they would take the processors from the cluster."""
    return Load(server, "echo", 4, is_echo, pause=0.01)


def workers(server):
    return [worker for worker in server.describe("echo")["workers"] if worker["status"] == "READY"]


def places(server):
    names = [worker["node"]["name"] for worker in workers(server)]
    return {name: names.count(name) for name in names}


def test_workers_are_spread_over_the_nodes(server):
    """Each node has as many as fit; the description has their nodes and their memory."""
    assert sorted(places(server).values()) == [2, 2]
    wait_until(lambda: all(worker["memoryUsage"] > 1 << 20 for worker in workers(server)), "sizes are told")
    assert server.predict("echo", b"x" * 1_000_000).content == b"x" * 1_000_000


def try_a_worker_of_two_ranks(server, nodes):
    """Each has its part of the resources, here on a node of its own; they meet, and compute together. When
    one is killed, the whole worker ends, and gives back its places: another has them at once.
    """
    before = worker_pids(nodes)
    server.registered("summing.mar")
    assert server.predict("summing", b"7").json() == {"sum": 21, "ranks": 2, "gpu": None}
    ranks = set(worker_pids(nodes)) - set(before)
    assert len(ranks) == 2
    placed = re.findall(r"summing_1.0-rank[01] has a place on node (\w+)", server.home.log())
    assert len(set(placed)) == 2
    os.kill(max(ranks - {server.describe("summing")["workers"][0]["pid"]}), signal.SIGKILL)
    wait_until(lambda: not ranks & set(worker_pids(nodes)), "both end", _PATIENCE)
    wait_until(lambda: server.predict("summing", b"7").status_code == 200, "it is back", _PATIENCE)
    assert server.describe("summing")["workers"][0]["node"]["name"] in placed
    server.unregister("summing")
    wait_until(lambda: worker_pids(nodes) == before, "nothing is left", _PATIENCE)


def test_worker_without_room_says_what_is_free(server, nodes, other):
    """It names requested and free resources; placed workers serve on, others that have room start at once."""
    other.registered("large.mar", initial_workers=0)
    with ThreadPoolExecutor() as pool:
        parameters = {"min_worker": 1, "synchronous": "true"}
        scaling = pool.submit(other.management.put, "/models/large", params=parameters)
        try_a_worker_of_two_ranks(server, nodes)
        response = scaling.result()
    assert response.status_code == 500
    assert "no machine was found within 15 s. Ray has free 0 of 4 CPU" in response.json()["message"]
    assert "Ray has free 0 of 4 CPU" in other.describe("large")["workers"][0]["failure"]
    assert other.predict("echo", b"x").content == b"x"
    other.unregister("large")


def test_another_server_that_is_killed_costs_nothing(server, nodes, other):
    """Its worker and that one's place are gone; those of this server answer all the time."""
    before = {worker["pid"] for worker in workers(server)}
    with loaded(server) as load:
        (pid,) = set(worker_pids(nodes)) - before
        worker = psutil.Process(pid)
        place = worker.parent()
        other.process.kill()
        _, alive = psutil.wait_procs([worker, place], _PATIENCE)
        assert alive == []
        load.more()
    assert set(load.statuses) == {200}
    assert load.wrong == []
    assert set(worker_pids(nodes)) == before


def test_killed_worker_comes_back(server):
    """Only the batch that it had begun fails; it comes back."""
    with loaded(server) as load:
        load.more()
        victim = workers(server)[0]["pid"]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in {w["pid"] for w in workers(server)}, "it is gone", _PATIENCE)
        wait_until(lambda: len(workers(server)) == 4, "it is back", _PATIENCE)
        load.more()
    assert set(load.statuses) <= {200, 500}
    assert load.wrong == []
    assert load.statuses[500] <= 4


def test_workers_of_a_killed_node_are_replaced(server, nodes):
    """With all that runs there: what its workers had begun fails, and they are replaced on another node."""
    added = nodes.add()
    lost = psutil.Process(nodes.raylets[0])
    lost_pids = {child.pid for child in lost.children(recursive=True)} & set(worker_pids(nodes))
    assert len(lost_pids) == 2
    with loaded(server) as load:
        load.more()
        for process in (lost, *lost.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: not lost_pids & {w["pid"] for w in workers(server)}, "they are missed", _PATIENCE)
        wait_until(lambda: len(workers(server)) == 4, "they are replaced", _PATIENCE)
        load.more()
    nodes.raylets[0] = added
    assert set(load.statuses) <= {200, 500}
    assert load.wrong == []
    assert load.statuses[500] <= len(lost_pids) * 4
    assert sorted(places(server).values()) == [2, 2]


def test_killed_helper_and_raylet_cost_nothing(server, nodes):
    """What talks with Ray comes back; a node's Ray is gone, but not its workers: no request is lost."""
    before = {worker["pid"] for worker in workers(server)}
    with loaded(server) as load:
        load.more()
        for process in psutil.Process(server.pid).children():
            if "modelserver.ext.cluster.ray_helper" in command_of(process):
                process.kill()
        load.more()
        os.kill(nodes.raylets[0], signal.SIGKILL)
        wait_until(lambda: "it answers: it serves on" in server.home.log(), "the place is gone", _PATIENCE)
        load.more()
        still = {worker["pid"] for worker in workers(server)}
    assert set(load.statuses) == {200}
    assert load.wrong == []
    assert still <= before
    assert len(still) >= 2


def test_workers_are_scaled_to_none_and_back(server, nodes):
    """Places are given back, and asked for again on the node left; meanwhile there is a 503 at once."""
    assert server.management.put("/models/echo", params={"min_worker": 0, "max_worker": 0}).is_success
    wait_until(lambda: not worker_pids(nodes), "the workers end", _PATIENCE)
    refused = server.predict("echo", b"x")
    assert refused.status_code == 503
    answer = server.management.put("/models/echo", params={"min_worker": 2, "synchronous": "true"})
    assert answer.is_success, answer.text
    assert list(places(server).values()) == [2]
    assert server.predict("echo", b"x").content == b"x"


def test_cluster_that_is_gone_may_come_back(server, nodes):
    """Without the head, what runs serves on. Once nothing runs, requests are refused with Retry-After at
    once; a new cluster at that address brings the workers back by itself.
    """
    before = worker_pids(nodes)
    with loaded(server) as load:
        nodes.kill_gcs()
        load.more()
        assert worker_pids(nodes) == before
    assert set(load.statuses) == {200}
    assert load.wrong == []

    nodes.cluster.close()
    wait_until(lambda: not workers(server), "no worker is left", _PATIENCE)
    refused = server.predict("echo", b"x")
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    nodes.start(1, **nodes.persistent)
    wait_until(lambda: len(workers(server)) == 2, "they are placed", _PATIENCE)
    assert server.predict("echo", b"x").content == b"x"


def test_head_that_keeps_its_state_may_start_anew(server, nodes):
    """The nodes stay, what runs serves on, and a worker that was killed meanwhile is placed again."""
    if not nodes.persistent:
        pytest.skip("redis-server is not installed")
    with loaded(server) as load:
        nodes.kill_gcs()
        victim, other = (worker["pid"] for worker in workers(server))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(workers(server)) == 1, "it is missed", _PATIENCE)
        load.more()
        nodes.cluster.start_gcs_anew()
        wait_until(lambda: len(workers(server)) == 2, "it is placed again", _PATIENCE)
        load.more()
    assert set(load.statuses) <= {200, 500}
    assert load.wrong == []
    assert load.statuses[500] <= 4
    assert other in {worker["pid"] for worker in workers(server)}
    assert all(psutil.pid_exists(raylet) for raylet in nodes.raylets)


def worker_pids(nodes):
    pids = []
    for process in nodes.processes():
        with suppress(psutil.Error):
            if "modelserver.ext.cluster.node.worker" in process.cmdline():
                pids.append(process.pid)
    return pids
