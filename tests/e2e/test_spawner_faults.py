"""What becomes of the process that workers with torch are forked from, and of what they leave (F39, F45)."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.e2e.serving import Home, Server, command_of, serving, wait_until

from modelserver.engine.pools.spawner import can_fork
from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from collections.abc import Iterator

from tests.e2e.conftest import MODEL_CODE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_fork(), reason="the system cannot fork workers safely"),
]

# Seconds as docs/architecture.md says, and what a busy machine may take longer.
NOTICED, BUSY = 2.0, 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model that does as it is told and needs torch, so that its workers are forked."""
    folder = tmp_path_factory.mktemp("spawner")
    code = folder / "heavy.py"
    code.write_text("import torch\n" + (MODEL_CODE / "obey.py").read_text())
    store = folder / "store"
    build_archive(ArchiveConfig("heavy", str(code), "1.0", export_path=store))
    with serving(Server(Home(folder / "home"), store)) as started:
        yield started.registered("heavy.mar")


def spawner_of(server: Server) -> psutil.Process | None:
    """The process that workers are forked from, if there is one now."""
    found = [
        child for child in psutil.Process(server.pid).children() if "worker.spawner" in command_of(child)
    ]
    return found[0] if found else None


def parent_of_the_next(server: Server) -> psutil.Process | None:
    """Where a worker that is started now comes from."""
    server.registered("heavy.mar", model_name="next")
    [worker] = server.describe("next")["workers"]
    parent = psutil.Process(worker["pid"]).parent()
    assert server.predict("next", {}).status_code == 200
    server.unregister("next")
    return parent


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended, though whoever inherited it need not have looked yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def test_orphans_of_a_forked_worker(server: Server) -> None:
    """They are told from those of other forked workers, and end with their own (F45)."""
    server.registered("heavy.mar", model_name="other")
    left, others = (
        [psutil.Process(pid) for pid in server.predict(name, {"do": "orphans", "count": 50}).json()["pids"]]
        for name in ("heavy", "other")
    )
    [worker] = [psutil.Process(each["pid"]) for each in server.describe("heavy")["workers"]]
    assert worker.parent() == spawner_of(server)
    worker.kill()

    wait_until(lambda: all(map(is_gone, left)), "they end", 5)
    assert not any(map(is_gone, others))
    server.unregister("other")
    wait_until(lambda: all(map(is_gone, others)), "the others end with theirs", 5)
    server.wait_ready("heavy")


def test_a_spawner_that_is_stopped(server: Server) -> None:
    """It is noticed though nobody needs it, and replaced; workers can be started meanwhile, and are forked
    again as soon as the next one has imported torch (F39).
    """
    old = spawner_of(server)
    assert old is not None
    old.suspend()
    began = time.monotonic()
    wait_until(lambda: "The spawner was stopped by a signal" in server.home.log(), "it is noticed")
    assert time.monotonic() - began < NOTICED + BUSY
    wait_until(lambda: is_gone(old), "it is ended")

    # Meanwhile they are Pythons of their own.
    assert parent_of_the_next(server) in (psutil.Process(server.pid), spawner_of(server))
    new = wait_until(lambda: spawner_of(server), "another takes its place")
    wait_until(lambda: parent_of_the_next(server) == new, "workers are forked again")
    assert server.predict("heavy", {}).status_code == 200


def test_a_spawner_that_is_killed(server: Server) -> None:
    """It is replaced before anybody needs it; the worker that it had forked serves on (F39)."""
    old = spawner_of(server)
    assert old is not None
    worker = server.predict("heavy", {}).json()["pid"]
    old.kill()
    new = wait_until(lambda: found if (found := spawner_of(server)) != old else None, "another is there", 5)

    assert server.predict("heavy", {}).json()["pid"] == worker
    wait_until(lambda: parent_of_the_next(server) == new, "workers are forked again")
