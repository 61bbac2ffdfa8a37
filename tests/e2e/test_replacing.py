"""A running model's archive is replaced by another while requests come in (F52)."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.e2e.serving import Home, Server, serving, wait_until

from modelserver.models.settings.properties import parse
from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

# Answers with its own name before what came; a body that is a number is slept through first.
SOURCE = """
import time

def handle(data, context):
    if data is None:
        time.sleep({loading})
        return None
    answers = []
    for row in data:
        body = bytes(row["body"])
        time.sleep(float(body) if body.replace(b".", b"").isdigit() else 0.001)
        answers.append(b"{name}:" + body)
    return answers
"""


def archive(folder: Path, name: str, version: str, source: str, config: str = "") -> None:
    """``<name>.mar`` of the model ``m``."""
    code = folder / f"{name}_code"
    code.mkdir()
    handler = code / "own.py"
    handler.write_text(source)
    yaml = code / "model-config.yaml"
    yaml.write_text(config)
    build_archive(
        ArchiveConfig("m", str(handler), version, export_path=code, config_file=str(yaml) if config else None)
    )
    (code / "m.mar").rename(folder / f"{name}.mar")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of one model: ``a`` and ``b`` of one version, ``c`` of another, and some that cannot load."""
    made = tmp_path_factory.mktemp("versions")
    archive(made, "a", "1.0", SOURCE.format(name="a", loading=0))
    archive(made, "b", "1.0", SOURCE.format(name="b", loading=0), "batchSize: 3\nresponseTimeout: 33\n")
    archive(made, "c", "2.0", SOURCE.format(name="c", loading=0))
    archive(made, "slow", "3.0", SOURCE.format(name="slow", loading=1))
    archive(made, "broken", "1.0", "raise RuntimeError('this one is no good')\n")
    archive(made, "turns", "1.0", SOURCE.format(name="t", loading=0),
            "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\n")  # fmt: skip
    return made


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside of the store from which archives may be fetched."""
    return tmp_path_factory.mktemp("outside")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store: Path, outside: Path) -> Iterator[Server]:
    home = Home(tmp_path_factory.mktemp("home"))
    settings = {"allowed_urls": f"file://{outside}/.*"}
    with serving(Server(home, store, settings=settings)) as made:
        yield made


@pytest.fixture
def model(server: Server) -> Iterator[Server]:
    """The model ``m``, of the archive ``a``, as one that was asked for in some detail."""
    server.registered("a.mar", batch_size=2, max_batch_delay=1, batch_policy="greedy", min_workers=1)
    yield server
    for described in server.management.get("/models/m/all").json():
        server.management.delete(f"/models/m/{described['modelVersion']}")
    server.management.delete("/models/m")


def replace(server: Server, url: str, path: str = "m", **parameters: object) -> httpx.Response:
    given = {"url": url, "synchronous": "true", **{k: str(v) for k, v in parameters.items()}}
    return server.management.put(f"/models/{path}", params=given)


def test_another_archive_of_the_same_version(model: Server) -> None:
    """It takes the place; what the registration asked for stays, the rest comes with the new archive."""
    answer = replace(model, "b.mar")
    assert (answer.status_code, answer.json()["status"]) == (
        200,
        'Model "m" Version: 1.0 replaced by version 1.0 with 1 workers',
    )
    described = model.describe("m")

    assert model.predict("m", b"x").content == b"b:x"
    assert (described["modelUrl"], described["batchSize"], described["responseTimeout"]) == ("b.mar", 2, 33)
    assert described["batching"]["policy"]["value"] == "greedy"
    assert "replacement" not in described
    # The load time of the worker that is gone is not shown any more.
    wait_until(lambda: model.metrics.get("/metrics").text.count("WorkerLoadTime{") == 1, "one worker")
    state = json.loads(parse(newest_snapshot(model).read_bytes())["model_snapshot"])
    assert state["models"]["m"]["1.0"]["marName"] == "b.mar"


def newest_snapshot(server: Server) -> Path:
    return sorted((server.home.path / "logs" / "config").glob("*.cfg"))[-1]


def test_another_version(model: Server) -> None:
    """The version is the new archive's, the default follows, and other settings may be given."""
    assert replace(model, "c.mar", batch_size=8, min_worker=2).status_code == 200
    described = model.management.get("/models/m/all").json()

    shown = [(each["modelVersion"], each["batchSize"], each["minWorkers"]) for each in described]
    assert shown == [("2.0", 8, 2)]
    assert model.predict("m", b"x").content == b"c:x"
    assert model.inference.post("/predictions/m/1.0", content=b"x").status_code == 404


def test_a_version_beside_others(model: Server) -> None:
    """A version that is named is replaced; a number that another version has is refused."""
    model.registered("c.mar")
    refused = replace(model, "c.mar", "m/1.0")
    assert (refused.status_code, replace(model, "b.mar", "m/1.0").status_code) == (409, 200)

    assert model.inference.post("/predictions/m/1.0", content=b"x").content == b"b:x"
    assert model.inference.post("/predictions/m/2.0", content=b"x").content == b"c:x"


@pytest.mark.parametrize(
    ("url", "status", "reason"),
    [
        ("broken.mar", 500, "this one is no good"),
        ("absent.mar", 404, "Model not found at: absent.mar"),
        ("http://127.0.0.1:9/a.mar", 404, "does not match any allowed URL(s)"),
        ("../a.mar", 404, "Relative path is not allowed in url: ../a.mar"),
    ],
)
def test_what_cannot_be_loaded_changes_nothing(model: Server, url: str, status: int, reason: str) -> None:
    """The old archive goes on serving; answer and description say why (F52)."""
    answer = replace(model, url)
    assert (answer.status_code, reason in answer.json()["message"]) == (status, True), answer.text
    failed = model.describe("m")["replacement"]

    assert (failed["status"], failed["modelUrl"], reason in failed["failure"]) == ("FAILED", url, True)
    assert model.predict("m", b"x").content == b"a:x"
    assert len(model.workers()) == 1
    assert replace(model, "b.mar").status_code == 200
    assert "replacement" not in model.describe("m")


def test_other_parameters_that_are_refused(model: Server) -> None:
    """Another name, a value out of range; an unknown model or version is not found."""
    assert replace(model, "b.mar", model_name="other").status_code == 400
    assert replace(model, "b.mar", batch_size=-7).status_code == 400
    assert replace(model, "b.mar", "none").status_code == 404
    assert replace(model, "b.mar", "m/9").status_code == 404
    assert model.predict("m", b"x").content == b"a:x"


def test_changes_at_the_same_time(model: Server) -> None:
    """While one archive is loaded beside the running one, further changes of that version are refused."""
    begun = replace(model, "slow.mar", synchronous="false")
    assert (begun.status_code, begun.json()["status"]) == (202, "Processing worker updates...")
    coming = model.describe("m")["replacement"]
    assert (coming["status"], coming["modelVersion"]) == ("LOADING", "3.0")
    refused = [
        replace(model, "b.mar"),
        model.management.put("/models/m", params={"min_worker": "2"}),
        model.management.put("/models/m", params={"batch_size": "4"}),
        model.management.delete("/models/m"),
        model.register("slow.mar"),
    ]
    assert [answer.status_code for answer in refused] == [409] * 5
    assert model.predict("m", b"x").content == b"a:x"
    wait_until(lambda: model.predict("m", b"x").content == b"slow:x", "the new archive serves")

    assert model.describe("m")["modelVersion"] == "3.0"


def test_what_waits_is_served_by_the_old_one(model: Server) -> None:
    """Requests that run and wait when the new archive takes the place get the answers they were sent for."""
    with ThreadPoolExecutor(8) as clients:
        before = model.metric("ts_inference_requests_total", model_name="m")
        asked = [clients.submit(model.predict, "m", b"0.2") for _ in range(8)]
        arrived = before + 8
        wait_until(
            lambda: model.metric("ts_inference_requests_total", model_name="m") == arrived, "they wait"
        )
        assert replace(model, "c.mar").status_code == 200
        late = model.predict("m", b"x")
        answers = [each.result() for each in asked]

    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b"a:0.2")] * 8
    assert late.content == b"c:x"
    wait_until(lambda: len(model.workers()) == 1, "the old worker is gone")


@pytest.mark.slow
def test_a_fetched_archive(server: Server, store: Path, outside: Path) -> None:
    """An archive is fetched again from its URL, and takes its file's place in the store only if it loads."""
    url, fetched = f"file://{outside}/remote.mar", store / "remote.mar"
    content = {name: (store / f"{name}.mar").read_bytes() for name in ("a", "b", "broken")}
    (outside / "remote.mar").write_bytes(content["a"])
    server.registered(url)
    (outside / "remote.mar").write_bytes(content["broken"])
    assert replace(server, url).status_code == 500
    assert fetched.read_bytes() == content["a"]
    (outside / "remote.mar").write_bytes(content["b"])
    assert replace(server, url).status_code == 200
    assert fetched.read_bytes() == content["b"]
    assert server.predict("m", b"x").content == b"b:x"
    assert replace(server, "c.mar").status_code == 200

    assert not fetched.exists()
    assert [path.name for path in store.iterdir() if path.name.startswith(".")] == []
    server.unregister("m")


def test_sequences(server: Server) -> None:
    """A model of sequences is not replaced, and the answer says what to do instead."""
    server.registered("turns.mar")
    answer = replace(server, "b.mar")

    assert (answer.status_code, "Register the archive as another version" in answer.text) == (400, True)
    server.unregister("m")


@pytest.mark.slow
def test_no_answer_is_lost(model: Server) -> None:
    """While archives take each other's place, each of many requests gets one answer, its own (F52)."""
    results: Counter[str] = Counter()
    stop = threading.Event()

    def ask(client: int) -> int:
        number = 0
        while not stop.is_set():
            token = f"{client}-{number}"
            answer = model.predict("m", token.encode())
            tag, _, echoed = answer.text.partition(":")
            results[tag if (answer.status_code, echoed) == (200, token) else answer.text] += 1
            number += 1
        return number

    with ThreadPoolExecutor(6) as clients:
        asked = [clients.submit(ask, client) for client in range(6)]
        statuses = [
            replace(model, f"{name}.mar", min_worker=1 + (name == "c")).status_code
            for name in ("b", "broken", "c", "a", "b", "c", "a")
        ]
        time.sleep(0.1)
        stop.set()
        sent = sum(each.result() for each in asked)

    assert statuses == [200, 500, 200, 200, 200, 200, 200]
    assert set(results) == {"a", "b", "c"}
    assert results.total() == sent > 100
    wait_until(lambda: len(model.workers()) == 1, "the workers of former archives are gone")
    assert model.metric("modelserver_batches_in_flight") == model.metric("modelserver_queue_requests") == 0
