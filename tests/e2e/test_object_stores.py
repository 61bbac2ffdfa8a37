"""Models from object stores and the hub: the model store itself, and what is registered."""

import json
import signal

import pytest
from tests.e2e.serving import Home, Server, archived, free_port, serving, wait_until
from tests.object_stores import SECRETS, denying, google, hub, s3

pytestmark = pytest.mark.slow  # starts stores, and servers that download

_HANDLER = """\
def handle(data, context):
    return None if data is None else ["{}" for _ in data]
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Three archives, each answering its name."""
    folder = tmp_path_factory.mktemp("archives")
    for name in ("one", "two", "three"):
        archived(folder, name, _HANDLER.format(name))
    return {name: (folder / f"{name}.mar").read_bytes() for name in ("one", "two", "three")}


@pytest.fixture(scope="module")
def bucket(archives):
    with s3() as made:
        made.put("store/one.mar", archives["one"])
        made.put("store/notes.txt", b"no archive")
        made.put("other/two.mar", archives["two"])
        made.put("other/new.mar", archives["two"])
        manifest = {"runtime": "python", "model": {"modelName": "folder", "handler": "h.py:handle"}}
        made.put("other/folder/MAR-INF/MANIFEST.json", json.dumps(manifest).encode())
        made.put("other/folder/h.py", _HANDLER.format("folder").encode())
        yield made


@pytest.fixture(scope="module")
def variables(archives, bucket, tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("downloads"))
    with hub() as repository, google() as googles:
        repository.files = {"three.mar": archives["three"]}
        googles.put("two.mar", archives["two"])
        yield {**bucket.variables, **repository.variables, **googles.variables, "MODELSERVER_CACHE": cache}


@pytest.fixture(scope="module")
def server(variables, tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("server"), variables, for_children=True)
    settings = {"load_models": "all", "allowed_urls": "(s3|gs|hf)://.*,http://127.0.0.1.*"}
    with serving(Server(home, "s3://models/store", (), settings)) as started:
        yield started


def test_models_come_from_each_store(server, bucket, archives):
    """The model store is loaded at the start, listed, and loaded from when a client says so; other models
    come from a folder or an archive of each store. The URL is described, and the progress logged.
    """
    assert server.predict("one").text == "one"
    bucket.put("store/two.mar", archives["two"])

    def listed():
        models = server.inference.post("/v2/repository/index", json={}).json()
        return {entry["name"]: entry["state"] for entry in models}

    wait_until(lambda: listed().get("two") == "UNAVAILABLE", "the listing is new")
    assert listed() == {"one": "READY", "two": "UNAVAILABLE"}
    assert server.inference.post("/v2/repository/models/two/load", json={}).status_code == 200
    assert server.predict("two").text == "two"

    urls = {
        "s3://models/other/folder": "folder",
        "gs://models/two.mar": "two",
        "hf://owner/tiny@main/three.mar": "three",
    }
    for url, answer in urls.items():
        name = url.partition(":")[0]
        server.registered(url, model_name=name)

        assert server.predict(name).text == answer
        assert server.describe(name)["modelUrl"] == url
        server.home.wait_for_log(f"Downloading {url.rpartition('/')[2]}: 100 %")


def test_permission_is_needed_and_no_secret_is_revealed(server, bucket):
    """Also for an archive in the cache. Neither logs and snapshots nor descriptions have a secret."""
    with denying(bucket):
        refused = server.register("s3://models/store/one.mar", model_name="x")
    texts = [server.management.get("/models/one").text]
    texts += [path.read_text() for path in (server.home.path / "logs").rglob("*") if path.is_file()]

    assert refused.status_code == 400
    assert refused.json()["message"] == (
        "Failed to download archive from: s3://models/store/one.mar: the server's credentials do not allow it"
    )
    assert any("models/other/folder" in text for text in texts[1:])
    assert [secret for secret in SECRETS for text in texts if secret in text] == []


def test_snapshot_restores_what_was_downloaded(variables, bucket, tmp_path):
    """What came from a store, and what was downloaded with ``s3_sse_kms``."""
    (tmp_path / "store").mkdir()
    home = Home(tmp_path / "home", variables, for_children=True)
    url = f"{bucket.url}/other/two.mar"
    with serving(Server(home, tmp_path / "store", (), {"allowed_urls": ".*"})) as server:
        server.registered(url, model_name="signed", s3_sse_kms=True)
        server.registered("s3://models/store/one.mar")
        assert [path.name for path in (tmp_path / "store").iterdir()] == ["two.mar"]
    with serving(Server(home, tmp_path / "store", (), {"allowed_urls": ".*"})) as server:
        assert server.predict("signed").text == "two"
        assert server.predict("one").text == "one"


@pytest.mark.usefixtures("bucket")
def test_serve_takes_such_a_url(variables, tmp_path):
    """``modelserver serve`` takes it without a setting, and shows the progress."""
    home = Home(tmp_path, variables)
    process = home.popen("serve", "s3://models/other/new.mar", "--port", free_port(3))
    try:
        wait_until(lambda: "Ctrl-C" in home.output() or process.poll() is not None, "it serves")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
    assert "two is served from s3://models/other/new.mar" in home.output()
    assert "Downloading new.mar: 100 %" in home.output()
