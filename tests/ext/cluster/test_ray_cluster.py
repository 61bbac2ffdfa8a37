"""Places on a real Ray cluster of this machine, whose nodes on loopback demand a token.

How workers are placed, killed and replaced there is tested in tests/e2e/test_ray.py.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio
from tests.e2e.serving import free_port
from tests.ext.cluster.ray_nodes import RayCluster, guarded, short_folder
from tests.waiting import until

from modelserver.engine.demand import Demand
from modelserver.ext.cluster import ray_placer
from modelserver.ext.cluster.placing import NoPlace
from modelserver.ext.cluster.ray_joining import demands_token
from modelserver.ext.cluster.ray_placer import RayPlacer

pytestmark = [
    pytest.mark.slow,  # starts two clusters of Ray
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray has no wheel for this Python"),
    pytest.mark.skipif(sys.platform != "linux", reason="the cluster's processes are looked up in /proc"),
]

_SECRET = "what-nobody-but-the-agent-may-see"
# Seconds for what takes a few, on a machine with other work.
_PATIENCE = 90.0
# Stands in for the agent: writes where it runs, until a signal ends it or its folder is gone.
_AGENT = """
import json, os, sys, time, types
def run(invitation, node):
    file, count = json.loads(invitation)["file"], 0
    while not os.path.exists(file + ".end"):
        count += 1
        try:
            with open(file + ".new", "w") as new:
                json.dump({"pid": os.getpid(), "node": node, "count": count}, new)
            os.replace(file + ".new", file)
        except OSError:
            return
        time.sleep(0.1)
sys.modules["modelserver.ext.cluster.node.agent"] = types.ModuleType("modelserver.ext.cluster.node.agent")
sys.modules["modelserver.ext.cluster.node.agent"].run = run
"""


@pytest.fixture(scope="module")
def folder():
    with short_folder() as path:
        yield path


@pytest.fixture(scope="module")
def cluster(folder):
    """A head and another node with a label and a resource of its own."""
    with guarded(folder):
        result = RayCluster(folder, free_port(), _AGENT)
        try:
            result.add(num_cpus=2)
            result.add(num_cpus=2, resources={"disk": 2}, labels={"zone": "a"})
            yield result
        finally:
            result.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(cluster):
    """The server's side. With other tests beside it, Ray may keep its helper waiting for longer than a server
    would stand.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_placer, "SILENCE", _PATIENCE)
        made = RayPlacer(cluster.address)
        yield made
        await made.close()


@pytest.fixture
def placer(server):
    """The same for all tests, as its helper takes seconds to start; each test's places are given back."""
    yield server
    for placement in list(server._places.values()):
        placement.withdraw()


class Invited:
    def __init__(self, folder):
        self.file = Path(tempfile.mkdtemp(dir=folder)) / "agent"

    @property
    def invitation(self):
        return json.dumps({"file": str(self.file), "secret": _SECRET})

    def report(self):
        """What it wrote last: ``pid``, ``node`` and ``count``, which goes up."""
        return dict(json.loads(self.file.read_text())) if self.file.exists() else {}

    async def until_up(self):
        await until(self.report, _PATIENCE)
        return self.report()


def search_for_secret(folder):
    """How many files below the folder and of processes can be read, and those that have the secret."""
    paths = [path for kind in ("cmdline", "environ") for path in Path("/proc").glob(f"[0-9]*/{kind}")]
    paths += [path for path in folder.rglob("*") if path.is_file()]
    texts = {}
    for path in paths:
        with contextlib.suppress(OSError):
            texts[path] = path.read_bytes()
    return len(texts), [path for path, text in texts.items() if _SECRET.encode() in text]


async def put(placer, folder, **demand):
    invited = Invited(folder)
    return invited, await placer.place([invited.invitation], Demand(**demand), "W-9000-noop_1.0")


async def test_a_resource_and_a_label_choose_the_node(placer, folder):
    by_resource, _ = await put(placer, folder, num_cpus=0.5, custom={"disk": 1}, memory=1 << 20)
    by_label, _ = await put(placer, folder, num_cpus=0.5, label_selector={"zone": "a"})
    packed, _ = await put(placer, folder, num_cpus=0.5, label_selector={"zone": "in(a, b)"}, placement="pack")
    nodes = {(await each.until_up())["node"] for each in (by_resource, by_label, packed)}

    assert len(nodes) == 1


async def test_the_invitation_reaches_the_agent_only(placer, folder, cluster):
    invited, _ = await put(placer, folder)
    await invited.until_up()
    await asyncio.sleep(1)
    looked_at, seen = search_for_secret(folder / "ray")
    script = (
        "import sys; from ray._raylet import GcsClientOptions, GlobalStateAccessor as A;"
        "a = A(GcsClientOptions.create(sys.argv[1], None, True, True)); a.connect();"
        "sys.stdout.buffer.write(b''.join(a.get_actor_table(None, None)))"
    )
    state = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script, cluster.address], check=True, capture_output=True
    )

    assert looked_at > 30
    assert seen == []
    assert b"W-9000-noop_1.0" in state.stdout
    assert _SECRET.encode() not in state.stdout


async def test_a_token_is_demanded(cluster, folder, monkeypatch):
    assert await asyncio.to_thread(demands_token, cluster.address)
    for variables in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "another" * 6}):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            placer = RayPlacer(cluster.address)
            with pytest.raises(NoPlace, match=r"demands another token: the server needs RAY_AUTH_MODE=token"):
                await put(placer, folder)
            await placer.close()


async def test_open_cluster_demands_no_token():
    """A cluster that takes anyone is known as such, so that the server can refuse it."""
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        cluster = RayCluster(folder, free_port())
        try:
            await asyncio.to_thread(cluster.add, num_cpus=0)
            assert not await asyncio.to_thread(demands_token, cluster.address)
        finally:
            cluster.close()


async def test_another_version_is_refused_with_both(cluster, folder, tmp_path):
    ray = tmp_path / "sitecustomize.py"
    ray.write_text("import ray\nray.__version__ = '2.59.9'\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        placer = RayPlacer(cluster.address)
        with pytest.raises(
            NoPlace, match=r"runs Ray \S+ with Python \S+, but ray_python .* has Ray 2\.59\.9"
        ):
            await put(placer, folder)
        await placer.close()
