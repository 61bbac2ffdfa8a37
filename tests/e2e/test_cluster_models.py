"""What handlers and models can do as if on other machines, as they can on the server's own."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.e2e import test_model_environments as environments
from tests.e2e.chunks import ChunkReader
from tests.e2e.conftest import MODEL_CODE
from tests.e2e.elsewhere import elsewhere, store_beside
from tests.e2e.serving import ROOT, wait_until
from tests.e2e.test_autoscaling import QUICK, Clients
from tests.e2e.test_distributed import CONFIG, REDUCING, SUMMING, pack

from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.elsewhere import Elsewhere

pytestmark = pytest.mark.slow

_COUNTING = """
from ts.metrics.metric_type_enum import MetricTypes

def handle(data, context):
    if data is None:
        return None
    context.metrics.get_metric("Words", MetricTypes.COUNTER).add_or_update(2, [context.model_name, "Model"])
    print("[METRICS]Steps.Count:3|#Level:Model|#type:COUNTER|#hostname:h,1700000000")
    return [b"x"] * len(data)
"""
_METRICS = """
model_metrics:
  counter:
    - {name: Words, unit: count, dimensions: [ModelName, Level]}
    - {name: Steps, unit: Count, dimensions: [Level]}
"""
_CLASSES = """
import torch

class TinyClasses(torch.nn.Module):
    def forward(self, pictures):
        return torch.stack((pictures.mean((1, 2, 3)), pictures.amax((1, 2, 3)) + 5), dim=1)
"""


def write_store(store: Path) -> None:
    """Archives of these tests."""
    pack(store, "summing", SUMMING, CONFIG.format(processes=3, fails="null") + "placement: spread\n")
    pack(store, "reducing", REDUCING, CONFIG.format(processes=2, fails="null"))
    for name, config in (
        ("turns", "continuousBatching: true\nbatchSize: 3\n"),
        ("meeting", "asyncCommunication: true\nbatchSize: 1\n"),
    ):
        pack(store, f"{name}s", (MODEL_CODE / f"{name}.py").read_text(), config)
    sequences = "sequenceBatching: true\nmaxNumSequence: 8\nbatchSize: 4\n"
    pack(store, "summed", (MODEL_CODE / "sums.py").read_text(), sequences)
    pack(store, "stays", (MODEL_CODE / "leaks.py").read_text(), "resources: local\n")
    pack(store, "counting", _COUNTING, "")
    environments.pack(
        store, "needy", environments.HANDLER, "--no-index\n./tiny-1.0-py3-none-any.whl\n", answer=3
    )
    environments.pack(store, "failing", environments.HANDLER, "--no-index\nno-such-package-anywhere\n")
    folder = store.parent
    (folder / "tiny_classes.py").write_text(_CLASSES)
    (folder / "index_to_name.json").write_text(json.dumps({"0": "dark", "1": "light"}))
    build_archive(
        ArchiveConfig(
            "classes",
            "image_classifier",
            "1.0",
            model_file=folder / "tiny_classes.py",
            extra_files=str(folder / "index_to_name.json"),
            export_path=store,
        )
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model_store: Path) -> Iterator[Elsewhere]:
    """One for all tests, with archives of its own beside the usual ones."""
    folder = tmp_path_factory.mktemp("m")
    store = store_beside(model_store, folder)
    write_store(store)
    (folder / "metrics.yaml").write_text(_METRICS)
    settings = {"install_py_dep_per_model": "true", "metrics_config": folder / "metrics.yaml"}
    with elsewhere(folder, store, **settings) as one:
        # Of torch, each worker imports its own.
        one.management.timeout = httpx.Timeout(90)
        yield one


def test_ranks_on_several_machines(server: Elsewhere) -> None:
    """A worker of three processes has three machines; when one ends, it ends as a whole, and has new ones."""
    server.registered("summing.mar")
    assert len(server.agents()) == len(server.workers()) == 3
    described = server.describe("summing")["workers"]
    assert [worker["node"]["name"] for worker in described] == ["process-1"]
    assert server.predict("summing", b"7").json() == {"sum": 42, "ranks": 3, "gpu": None}
    assert server.predict("summing", b"x" * 3_000_000).json()["sum"] == 0
    server.home.wait_for_log("W-9000-summing_1.0-rank2@process-3-stdout", "model_log.log")

    before = {each.pid for each in (*server.agents(), *server.workers())}
    server.agents()[2].kill()
    wait_until(lambda: not before & {each.pid for each in (*server.agents(), *server.workers())}, "all end")
    server.wait_ready("summing")
    assert server.predict("summing", b"7").json()["sum"] == 42
    server.unregister("summing")
    wait_until(lambda: server.agents() == [], "nothing is left")


def test_all_reduce(server: Elsewhere) -> None:
    """torch.distributed finds its variables: two processes reduce over gloo."""
    server.registered("reducing.mar")
    assert [server.predict("reducing", body).json() for body in (b"0", b"2.5")] == [0.0, 7.5]
    server.unregister("reducing")


def test_a_handler_that_comes_with_the_server(server: Elsewhere) -> None:
    """The image classifier classifies there; what is no picture is told to its client."""
    picture = ROOT / "examples" / "mnist" / "digit-2.png"
    server.registered("classes.mar")
    assert list(server.predict("classes", picture.read_bytes()).json()) == ["light", "dark"]
    assert server.predict("classes", b"none").status_code == 400
    server.unregister("classes")


def test_continuous_batching(server: Elsewhere, tmp_path: Path) -> None:
    """Requests join and leave a running batch, and one whose client has left takes no more part."""
    notes = str(tmp_path / "notes")
    server.registered("turnss.mar", model_name="turns")

    def steps() -> list[list[str]]:
        return [json.loads(line)["batch"] for line in (tmp_path / "notes").read_text().splitlines()]

    long = {"name": "long", "turns": 100_000, "notes": notes}
    with server.inference.stream("POST", "/predictions/turns", json=long) as answer:
        # Kept, as its end would be that of the connection.
        parts = answer.iter_raw()
        assert next(parts).startswith(b"long1 ")
        short = server.predict("turns", {"name": "short", "turns": 3})
        assert short.text == "short1 short2 short3 "
        assert ["long", "short"] in steps()
    wait_until(
        lambda: server.predict("turns", {"name": "next", "turns": 1}) and steps()[-1] == ["next"], "left"
    )
    server.unregister("turns")


def test_an_asynchronous_handler(server: Elsewhere, tmp_path: Path) -> None:
    """Its calls run at the same time; one whose client leaves is cancelled."""
    server.registered("meetings.mar", model_name="meeting")
    with ThreadPoolExecutor(8) as pool:
        orders = [{"name": str(number), "meet": 8} for number in range(8)]
        answers = list(pool.map(lambda order: server.predict("meeting", order), orders))
    assert [answer.headers["x-name"] for answer in answers] == [order["name"] for order in orders]
    hanging = {"name": "a", "do": "hang", "notes": str(tmp_path / "notes")}
    with ChunkReader(server.port, "/predictions/meeting", hanging):
        wait_until(
            lambda: server.describe("meeting")["jobQueueStatus"]["pendingRequests"] == 0, "it has begun"
        )
        time.sleep(0.1)
    wait_until((tmp_path / "notes").exists, "it is cancelled")
    server.unregister("meeting")


def test_sequences(server: Elsewhere) -> None:
    """Each stays with the machine that has its state."""
    server.registered("summed.mar", initial_workers=2)
    names = [f"sequence-{number}" for number in range(6)]

    def step(name: str) -> dict[str, Any]:
        answer = server.predict("summed", {"add": 1}, headers={"ts_request_sequence_id": name})
        told: dict[str, Any] = answer.json()
        return told

    with ThreadPoolExecutor(6) as pool:
        steps = [list(pool.map(step, names)) for _ in range(3)]
    assert [[told["seen"] for told in turn] for turn in steps] == [[[1] * count] * 6 for count in (1, 2, 3)]
    (pids,) = {tuple(told["pid"] for told in turn) for turn in steps}
    assert len(set(pids)) == 2
    server.unregister("summed")


def test_local_workers_beside_remote_ones(server: Elsewhere) -> None:
    """A model with ``resources: local`` stays on the server's machine; two versions are served side by side,
    and the default one changes.
    """
    server.registered("stays.mar").registered("echo.mar").registered("echo-v2.mar")
    (local,) = server.describe("stays")["workers"]
    assert "node" not in local
    assert len(server.agents()) == 2
    assert server.predict("stays").text == str(local["pid"])
    assert server.predict("echo", b"x").content == b"x"
    assert server.predict("echo/2.0", b"x").json()["values"] == {"body": "x"}
    assert server.management.put("/models/echo/2.0/set-default").status_code == 200
    assert server.predict("echo", b"x").json()["values"] == {"body": "x"}
    for name in ("stays", "echo/1.0", "echo/2.0"):
        server.unregister(name)


def test_recycled_and_scaled(server: Elsewhere) -> None:
    """Workers are replaced after so many requests, and as many as the load needs, without a failure."""
    server.registered("leaks.mar", max_worker_requests=10)
    pids = [server.predict("leaks") for _ in range(60)]
    assert {answer.status_code for answer in pids} == {200}
    wait_until(lambda: server.predict("leaks").text != pids[0].text, "it is recycled")
    server.unregister("leaks")

    server.registered("obey.mar", model_name="grows", min_workers=1, max_workers=2, **QUICK)
    clients = Clients(server, "grows", 6)
    with clients.asking():
        wait_until(lambda: server.ready("grows") == 2, "a second machine serves")
    assert clients.answers == {"right": clients.asked}
    wait_until(lambda: len(server.agents()) == 1, "its place is given back")
    server.unregister("grows")


def test_metrics_of_handlers(server: Elsewhere) -> None:
    """Those of ``metrics_config`` are known there; what it counts and what it prints is shown."""
    server.registered("counting.mar", initial_workers=2)
    assert {server.predict("counting").status_code for _ in range(4)} == {200}
    wait_until(lambda: server.metric("Words", ModelName="counting") == 8, "they are counted")
    wait_until(lambda: server.metric("Steps", Level="Model") == 12, "what is printed, too")
    server.unregister("counting")


def test_packages_of_a_model(server: Elsewhere) -> None:
    """They are installed there, and pip's lines are in the model's log with the node; if that fails, the
    registration is refused as on the server's machine.
    """
    with ThreadPoolExecutor() as pool:
        refused, _ = pool.map(server.register, ("failing.mar", "needy.mar"))
    assert (refused.status_code, refused.json()["type"]) == (400, "ModelException"), refused.text
    assert (
        "Custom pip package installation failed for model failing. pip ended with"
        in refused.json()["message"]
    )
    assert server.predict("needy").json()[0] == 3
    log = server.home.log("model_log.log")
    assert "failing_1.0-pip@process-" in log
    assert "no-such-package-anywhere" in log
    server.unregister("needy")
