"""The state of a server survives its end, however it comes (reference 17)."""

import contextlib
import itertools
import json
import random
import threading
import time

import httpx
import pytest
from tests.e2e.serving import Home, Server, serving, wait_until

from modelserver.ext.snapshots.files import SnapshotFolder
from modelserver.models.settings.properties import parse


def snapshot_files(home):
    return sorted((home.path / "logs" / "config").glob("*.cfg"))


def kinds(home):
    return [path.stem.partition("-")[2] for path in snapshot_files(home)]


def names(server):
    return {model["modelName"] for model in server.management.get("/models").json()["models"]}


@pytest.mark.slow  # starts three servers
def test_state_survives_a_restart(tmp_path, model_store):
    """The next server serves the same in the same way; with ``--ncs`` nothing is written or restored."""
    home = Home(tmp_path / "home")
    with serving(Server(home, model_store)) as server:
        server.registered("echo.mar", batch_size=4, max_batch_delay=30, batch_policy="greedy")
        server.registered("sums.mar", initial_workers=0, handler="sums.py:Sums")
        assert server.register("none.mar").status_code == 404
        server.management.get("/models/echo")
    assert kinds(home) == ["startup", "snapshot", "snapshot", "shutdown"]
    values = parse(snapshot_files(home)[-1].read_bytes())
    assert values["model_store"] == str(model_store)
    state = json.loads(values["model_snapshot"])
    assert (state["name"], state["modelCount"]) == (snapshot_files(home)[-1].name, 2)
    with serving(Server(home, model_store, ["--models", "tell.mar"])) as server:
        server.wait_ready("echo")
        assert server.predict("echo", b"x").status_code == 200
        described = server.describe("echo")
        assert (described["batchSize"], described["maxBatchDelay"]) == (4, 30)
        assert described["batching"]["policy"] == {"value": "greedy", "source": "snapshot"}
        assert names(server) == {"echo", "sums", "tell"}
        line = next(line for line in home.output().splitlines() if "Restoring 2 model versions" in line)
        assert line.endswith("-shutdown.cfg; also loading, unless restored: tell.mar")
    files = snapshot_files(home)
    with serving(Server(home, model_store, ["--ncs"])) as server:
        assert names(server) == set()
    assert snapshot_files(home) == files


@pytest.mark.slow  # starts three servers
def test_fetched_file_goes_with_its_model_after_a_restart(tmp_path, model_store):
    """Its copy in the store is restored, and replaced by the same URL; both failed as the file exists."""
    home, store, url = Home(tmp_path / "home"), tmp_path / "store", f"file://{model_store}/echo.mar"
    store.mkdir()
    with serving(Server(home, store, settings={"allowed_urls": "file://.*"})) as server:
        server.registered(url)
    with serving(Server(home, store, settings={"allowed_urls": "file://.*"})) as server:
        server.wait_ready("echo")
        replaced = server.management.put("/models/echo", params={"url": url, "synchronous": "true"})
        assert (replaced.status_code, [path.name for path in store.iterdir()]) == (200, ["echo.mar"])
    with serving(Server(home, store, settings={"allowed_urls": "file://.*"})) as server:
        server.unregister("echo")
        assert list(store.iterdir()) == []


def test_configured_state_is_restored(tmp_path, model_store):
    """Its ``model_snapshot``, with ``--ncs`` too; what has no archive is listed as failed (F55)."""
    one = {"minWorkers": 1, "maxWorkers": 1}
    models = {name: {"1.0": {"marName": f"{name}.mar", **one}} for name in ("echo", "gone")}
    settings = {"model_snapshot": json.dumps({"models": models})}
    with serving(Server(Home(tmp_path), model_store, ["--ncs"], settings)) as server:
        server.wait_ready("echo")
        described = server.describe("gone")
        assert (described["status"], described["failure"]) == ("FAILED", "Model not found at: gone.mar")
        refused = server.predict("gone")
        assert refused.status_code == 503
        assert "could not be restored: Model not found at: gone.mar" in refused.json()["message"]
        assert server.inference.get("/ping").status_code == 500
        server.unregister("gone")
        assert server.inference.get("/ping").status_code == 200


class Changes(threading.Thread):
    """Registers and removes models while somebody answers; ``states`` has each state that was requested."""

    def __init__(self, server):
        super().__init__()
        self.states: list[dict[str, int]] = [{}]
        self._server = server

    def run(self):
        with contextlib.suppress(httpx.HTTPError):
            for number in itertools.count(1):
                name = f"m{number % 5}"
                state = dict(self.states[-1])
                is_served = state.pop(name, None) is not None
                if not is_served:
                    state[name] = 1 + number % 7
                self.states.append(state)
                if is_served:
                    answer = self._server.management.delete(f"/models/{name}")
                else:
                    parameters = {"model_name": name, "batch_size": state[name], "initial_workers": 0}
                    answer = self._server.register("echo.mar", **parameters)
                assert answer.status_code == 200

    def wait_for(self, count):
        """Returns once so many have been requested."""
        wait_until(lambda: len(self.states) > count, "models are changed")


def restored_state(server):
    return {name: server.describe(name)["batchSize"] for name in names(server)}


def remove_all(server):
    for name in names(server):
        server.unregister(name)


@pytest.mark.slow  # starts six servers
def test_server_killed_at_any_moment_restores_its_state(tmp_path, model_store):
    """It comes back with what it last confirmed, or with the change that it was killed in (F54)."""
    chance = random.Random(54)
    home = Home(tmp_path)
    expected = [{}]
    for _ in range(6):
        server = Server(home, model_store).start()
        try:
            assert restored_state(server) in expected[-2:]
            remove_all(server)
            changes = Changes(server)
            changes.start()
            changes.wait_for(chance.randrange(2, 25))
            time.sleep(chance.uniform(0, 0.02))
            server.process.kill()
            server.process.wait()
            changes.join()
        finally:
            server.kill()
        expected = changes.states
        newest = SnapshotFolder(home.path / "logs" / "config", {}).newest()
        assert newest is not None
        written = {m.name: m.registration.batch_size for m in newest[1].models}
        assert written in expected[-2:]
