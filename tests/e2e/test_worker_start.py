import json

import psutil
import pytest
from tests.e2e.serving import MODEL_CODE, archived, wait_until

from modelserver.ext.forking.spawner import can_fork

TELL = """
import json, os, sys
{imports}
def handle(data, context):
    if data is None:
        return None
    heavy = sorted({{"torch", "torchvision", "PIL", "numpy"}} & set(sys.modules))
    facts = {{"heavy": heavy, "parent": os.getppid(), "random": {random}, "threads": {threads}}}
    return [json.dumps(facts) for _ in data]
"""


@pytest.fixture
def store(tmp_path):
    """Archives that describe their process: one without torch, one with; and one that obeys, with torch."""
    made = tmp_path / "store"
    made.mkdir()
    numbers = {"random": "torch.rand(1).item()", "threads": "torch.get_num_threads()"}
    archived(made, "light", TELL.format(imports="", random=0, threads=0))
    archived(made, "heavy", TELL.format(imports="import torch", **numbers))
    archived(made, "obeying", "import torch\n" + (MODEL_CODE / "obey.py").read_text())
    return made


def facts(server, name):
    return json.loads(server.predict(name, b"x").content)


def helpers(server):
    """The server's processes that are no workers, but for those that read archives and bodies."""
    workers = {process.pid for process in server.workers()}
    others = [child for child in psutil.Process(server.pid).children(True) if child.pid not in workers]
    return [child for child in others if "modelserver.engine.offload" not in child.cmdline()]


def test_handler_without_torch_gets_none(start_server, store):
    server = start_server(model_store=store).registered("light.mar", synchronous=True)

    assert facts(server, "light")["heavy"] == []
    assert helpers(server) == []


@pytest.mark.slow  # imports torch
@pytest.mark.skipif(not can_fork(), reason="the system cannot fork workers safely")
def test_workers_with_torch_are_forked(start_server, store):
    """One process imports torch for all workers; those that die are replaced by forks, and what their
    handlers forked ends with them (F39, F45). When the server stops, the process reports how they ended.
    """
    # With an environment of its own, nothing of it is forked from a process of the tests.
    server = start_server(model_store=store, environment={})
    server.registered("heavy.mar", initial_workers=2, synchronous=True)
    (spawner,) = helpers(server)
    workers = server.workers()
    numbers = {facts(server, "heavy")["random"] for _ in range(8)}
    first = facts(server, "heavy")
    for worker in workers:
        worker.kill()
    wait_until(lambda: len({*server.workers()} - {*workers}) == 2, "others take their places")
    server.wait_ready("heavy", 2)

    assert [worker.ppid() for worker in server.workers()] == [spawner.pid] * 2
    assert len(numbers) == 8
    assert first["parent"] == facts(server, "heavy")["parent"] == spawner.pid
    assert first["threads"] == max(1, len(psutil.Process().cpu_affinity() or [1]) // 2)
    assert spawner.num_threads() == 1

    orphans = {}
    for name in ("one", "other"):
        server.registered("obeying.mar", model_name=name)
        pids = server.predict(name, {"do": "orphans", "count": 20}).json()["pids"]
        orphans[name] = [psutil.Process(pid) for pid in pids]
    psutil.Process(server.describe("one")["workers"][0]["pid"]).kill()
    wait_until(lambda: not any(map(is_alive, orphans["one"])), "they end with their worker")
    assert all(map(is_alive, orphans["other"]))
    server.wait_ready("one")
    for name in ("one", "other"):
        server.unregister(name)

    ends = "exited with status 0, as requested"
    before = server.home.log().count(ends)
    server.stop()
    assert not spawner.is_running()
    assert "unknown status" not in server.home.log()
    assert server.home.log().count(ends) == before + 2


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow  # imports torch
def test_workers_may_be_started_one_by_one(start_server, store):
    """With worker_start=spawn each worker is a Python process of its own."""
    server = start_server(model_store=store, worker_start="spawn").registered("heavy.mar", synchronous=True)

    assert facts(server, "heavy")["parent"] == server.pid
    assert helpers(server) == []
