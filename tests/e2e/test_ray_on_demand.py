"""Models on demand whose workers run on a real Ray cluster: the memory of its node is the budget."""

import sys
from importlib.util import find_spec

import httpx
import pytest
from tests.e2e.serving import MODEL_CODE, Home, Server, archived, free_port, serving, wait_until
from tests.ext.cluster.ray_nodes import RayCluster, guarded, short_folder

pytestmark = [
    pytest.mark.slow,  # starts a cluster
    pytest.mark.timeout(400),  # several waits, each as patient as a busy machine needs
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray has no wheel for this Python"),
    pytest.mark.skipif(sys.platform != "linux", reason="the memory of processes is read in /proc"),
]

_PATIENCE = 90.0
_MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One node with memory for one worker of 150 MiB, and two models that reserve as much; one reserves what
    was measured.
    """
    store, home = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("home")
    for name in ("one", "other"):
        resources = f"resources: {{num_cpus: 0, memory: {150 * _MIB}}}\n"
        archived(store, name, MODEL_CODE / "witness.py", config=resources)
    archived(store, "measured", MODEL_CODE / "witness.py", config="resources: {num_cpus: 0}\n")
    with short_folder() as folder, guarded(folder):
        cluster = RayCluster(folder, free_port())
        cluster.add(num_cpus=0, memory=_MIB)
        cluster.add(num_cpus=1, memory=250 * _MIB)
        settings = {
            "worker_launcher": "ray",
            "ray_address": cluster.address,
            "placement_timeout": _PATIENCE,
            "worker_lost_timeout": _PATIENCE,
            "load": "on-demand",
        }
        variables = {"MODELSERVER_CACHE": str(home / "cache")}
        with serving(Server(Home(home, variables), store, settings=settings)) as made:
            made.management.timeout = httpx.Timeout(_PATIENCE)
            for name in ("one", "other", "measured"):
                made.registered(f"{name}.mar", initial_workers=None)
            yield made
        cluster.close()


def parking(server, name):
    return server.describe(name)["parking"]


def test_model_makes_room_for_another_on_its_node(server):
    """The request waits until the first model may be parked, and Ray has its memory back."""
    assert server.predict("one", b"x", timeout=_PATIENCE).text.startswith("one|x|")
    assert server.predict("other", b"y", timeout=_PATIENCE).text.startswith("other|y|")
    assert (parking(server, "one")["state"], parking(server, "one")["parks"]) == ("parked", {"memory": 1})
    assert server.predict("one", b"z", timeout=_PATIENCE).text.startswith("one|z|")
    assert parking(server, "other")["state"] == "parked"


def test_memory_on_the_node_is_measured(server):
    """It is what the next worker reserves."""
    assert server.management.post("/models/one", params={"action": "park"}).status_code == 200
    assert server.predict("measured", b"x", timeout=_PATIENCE).text.startswith("measured|x|")
    memory = wait_until(lambda: parking(server, "measured").get("memory"), "its node has reported")

    assert parking(server, "measured")["need"] == memory
    assert memory > _MIB
