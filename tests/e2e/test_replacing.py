"""A running model's archive is replaced by another while requests come in (F52)."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.serving import Home, Server, archived, serving, wait_until

from modelserver.models.settings.properties import parse

# Answers with its own name before what came; a body that is a number is slept through first.
SOURCE = """
import time

def handle(data, context):
    if data is None:
        return None
    answers = []
    for row in data:
        body = bytes(row["body"])
        time.sleep(float(body) if body.replace(b".", b"").isdigit() else 0.001)
        answers.append(b"{name}:" + body)
    return answers
"""


def archive(folder, name, version, config=""):
    """``<name>.mar`` of the model ``m``."""
    code = folder / f"{name}_code"
    code.mkdir()
    broken = "raise RuntimeError('this one is no good')\n"
    source = broken if name == "broken" else SOURCE.format(name=name)
    archived(code, "m", source, version, config).rename(folder / f"{name}.mar")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Archives of one model: ``a`` and ``b`` of one version, ``c`` of another, and some that cannot load."""
    made = tmp_path_factory.mktemp("versions")
    archive(made, "a", "1.0")
    archive(made, "b", "1.0", config="batchSize: 3\nresponseTimeout: 33\n")
    archive(made, "c", "2.0")
    archive(made, "broken", "1.0")
    archive(made, "turns", "1.0", config="sequenceBatching: true\nsequenceMaxIdleMSec: 60000\n")
    return made


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    return tmp_path_factory.mktemp("outside")


@pytest.fixture(scope="module")
def server(tmp_path_factory, store, outside):
    home = Home(tmp_path_factory.mktemp("home"))
    settings = {"allowed_urls": f"file://{outside}/.*"}
    with serving(Server(home, store, settings=settings)) as made:
        yield made


@pytest.fixture
def model(server):
    """The model ``m``, of the archive ``a``, registered with some settings."""
    server.registered("a.mar", batch_size=2, max_batch_delay=1, batch_policy="greedy", min_workers=1)
    yield server
    for described in server.management.get("/models/m/all").json():
        server.management.delete(f"/models/m/{described['modelVersion']}")
    server.management.delete("/models/m")


def replace(server, url, path="m", **parameters):
    values = {"url": url, "synchronous": "true", **{k: str(v) for k, v in parameters.items()}}
    return server.management.put(f"/models/{path}", params=values)


def test_archive_of_the_same_version_takes_the_place(model):
    """What the registration asked for stays, the rest comes with the new archive."""
    response = replace(model, "b.mar")
    described = model.describe("m")

    assert response.status_code == 200
    assert response.json()["status"] == 'Model "m" Version: 1.0 replaced by version 1.0 with 1 workers'
    assert model.predict("m", b"x").content == b"b:x"
    assert (described["modelUrl"], described["batchSize"], described["responseTimeout"]) == ("b.mar", 2, 33)
    assert described["batching"]["policy"]["value"] == "greedy"
    assert "replacement" not in described
    # The load time of the worker that is gone is not shown any more.
    wait_until(lambda: model.metrics.get("/metrics").text.count("WorkerLoadTime{") == 1, "one worker")
    newest = sorted((model.home.path / "logs" / "config").glob("*.cfg"))[-1]
    state = json.loads(parse(newest.read_bytes())["model_snapshot"])
    assert state["models"]["m"]["1.0"]["marName"] == "b.mar"


def test_archive_of_another_version_takes_the_place(model):
    """The version is the new archive's, the default follows, and other settings may be given. Beside others,
    a version that is named is replaced; a number that another version has is refused.
    """
    assert replace(model, "c.mar", batch_size=8, min_worker=2).status_code == 200
    described = model.management.get("/models/m/all").json()
    fields = [(each["modelVersion"], each["batchSize"], each["minWorkers"]) for each in described]
    assert fields == [("2.0", 8, 2)]
    assert model.predict("m", b"x").content == b"c:x"
    assert model.predict("m/1.0", b"x").status_code == 404

    model.registered("a.mar")
    statuses = [replace(model, url, "m/1.0").status_code for url in ("c.mar", "b.mar")]
    assert statuses == [409, 200]
    assert model.predict("m/1.0", b"x").content == b"b:x"
    assert model.predict("m/2.0", b"x").content == b"c:x"


def test_archive_that_cannot_be_loaded_changes_nothing(model):
    """The old archive goes on serving; response and description say why (F52)."""
    reason = "this one is no good"
    response = replace(model, "broken.mar")
    assert (response.status_code, reason in response.json()["message"]) == (500, True), response.text
    failed = model.describe("m")["replacement"]

    assert (failed["status"], failed["modelUrl"]) == ("FAILED", "broken.mar")
    assert reason in failed["failure"]
    assert model.predict("m", b"x").content == b"a:x"
    assert len(model.workers()) == 1
    assert replace(model, "b.mar").status_code == 200
    assert "replacement" not in model.describe("m")


def test_requests_that_wait_are_served_by_the_old_archive(model):
    """Requests that run and wait when the new archive takes the place get the answers they were sent for."""
    with ThreadPoolExecutor(8) as clients:
        arrived = model.metric("ts_inference_requests_total", model_name="m") + 8
        futures = [clients.submit(model.predict, "m", b"0.1") for _ in range(8)]
        model.wait_arrived("m", arrived)
        assert replace(model, "c.mar").status_code == 200
        late = model.predict("m", b"x")
        responses = [each.result() for each in futures]

    assert [(response.status_code, response.content) for response in responses] == [(200, b"a:0.1")] * 8
    assert late.content == b"c:x"
    wait_until(lambda: len(model.workers()) == 1, "the old worker is gone")


def test_archive_is_fetched_again(server, store, outside):
    """It takes its file's place only if it loads. For a model of sequences the response says what to do."""
    url, fetched = f"file://{outside}/remote.mar", store / "remote.mar"
    content = {name: (store / f"{name}.mar").read_bytes() for name in ("a", "b", "broken")}
    (outside / "remote.mar").write_bytes(content["a"])
    server.registered(url)
    for name, status, now in (("broken", 500, "a"), ("b", 200, "b")):
        (outside / "remote.mar").write_bytes(content[name])
        assert replace(server, url).status_code == status
        assert fetched.read_bytes() == content[now]
    assert server.predict("m", b"x").content == b"b:x"
    assert replace(server, "c.mar").status_code == 200

    assert not fetched.exists()
    assert [path.name for path in store.iterdir() if path.name.startswith(".")] == []
    server.unregister("m")
    server.registered("turns.mar")
    refused = replace(server, "b.mar")
    assert (refused.status_code, "Register the archive as another version" in refused.text) == (400, True)
    server.unregister("m")
