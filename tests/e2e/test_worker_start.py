"""How workers come into being in a running server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.e2e.serving import wait_until

from modelserver.engine.pools.spawner import can_fork
from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import StartServer
    from tests.e2e.serving import Server

TELL = """
import json, os, sys
{imports}
def handle(data, context):
    if data is None:
        return None
    heavy = sorted({{"torch", "torchvision", "PIL", "numpy"}} & set(sys.modules))
    told = {{"heavy": heavy, "parent": os.getppid(), "random": {random}, "threads": {threads}}}
    return [json.dumps(told) for _ in data]
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Archives that tell about their process: one without torch, one with."""
    made = tmp_path / "store"
    made.mkdir()
    sources = {
        "light": TELL.format(imports="", random=0, threads=0),
        "heavy": TELL.format(
            imports="import torch", random="torch.rand(1).item()", threads="torch.get_num_threads()"
        ),
    }
    for name, source in sources.items():
        handler = tmp_path / f"{name}_handler.py"
        handler.write_text(source)
        build_archive(ArchiveConfig(name, str(handler), "1.0", export_path=made))
    return made


def told(server: Server, name: str) -> dict[str, Any]:
    """What one of the model's workers says of itself."""
    answer: dict[str, Any] = json.loads(server.predict(name, b"x").content)
    return answer


def helpers(server: Server) -> list[psutil.Process]:
    """The server's processes that are no workers, but for those that read archives and bodies."""
    workers = {process.pid for process in server.workers()}
    others = [child for child in psutil.Process(server.pid).children(True) if child.pid not in workers]
    return [child for child in others if "modelserver.engine.offload" not in child.cmdline()]


def test_a_handler_without_torch_gets_none(start_server: StartServer, store: Path) -> None:
    """Its worker imports neither torch nor what comes with it, and no other process does."""
    server = start_server(model_store=store).registered("light.mar", synchronous=True)

    assert told(server, "light")["heavy"] == []
    assert helpers(server) == []


@pytest.mark.slow
@pytest.mark.skipif(not can_fork(), reason="the system cannot fork workers safely")
def test_workers_with_torch_are_forked(start_server: StartServer, store: Path) -> None:
    """One process imports torch for all workers; those that die are replaced by forks (F39). When the server
    stops, the process reports how they ended.
    """
    server = start_server(model_store=store)
    server.registered("heavy.mar", initial_workers=2, synchronous=True)
    (spawner,) = helpers(server)
    workers = server.workers()
    numbers = {told(server, "heavy")["random"] for _ in range(8)}
    first = told(server, "heavy")
    for worker in workers:
        worker.kill()
    wait_until(lambda: len({*server.workers()} - {*workers}) == 2, "others take their places")
    server.wait_ready("heavy", 2)

    assert [worker.ppid() for worker in server.workers()] == [spawner.pid] * 2
    assert len(numbers) == 8
    assert first["parent"] == told(server, "heavy")["parent"] == spawner.pid
    assert first["threads"] == max(1, len(psutil.Process().cpu_affinity() or [1]) // 2)
    assert spawner.num_threads() == 1
    server.stop()
    assert not spawner.is_running()
    assert "unknown status" not in server.home.log()
    assert server.home.log().count("exited with status 0, as requested") == 2


@pytest.mark.slow
def test_workers_may_be_started_one_by_one(start_server: StartServer, store: Path) -> None:
    """With worker_start=spawn each worker is a Python of its own."""
    server = start_server(model_store=store, worker_start="spawn").registered("heavy.mar", synchronous=True)

    assert told(server, "heavy")["parent"] == server.pid
    assert helpers(server) == []
