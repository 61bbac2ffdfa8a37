"""Archives that cannot be served: the error names archive, step and cause, and nothing else is touched."""

import json
import stat
import zipfile

import pytest
from tests.differential.archives import plain_files, write_zip
from tests.e2e.serving import Home, Server, serving

MANIFEST = "MAR-INF/MANIFEST.json"
CONFIGURED = {"model": {"configFile": "model-config.yaml"}}
PARSE = "Failed to parse signature.json. MAR-INF/MANIFEST.json: "


def described(manifest):
    return {**plain_files("bad"), MANIFEST: manifest}


def handled_by(handler):
    return plain_files("bad", model={"handler": handler})


def configured(text):
    return {**plain_files("bad", **CONFIGURED), "model-config.yaml": text.encode()}


TAG = "say: !!python/object/apply:os.system ['true']\n"
UP = {**plain_files("bad"), "../slip_was_here.txt": b"x"}
# Name, files, what the message says of step and cause: one of each kind, tests/models/archives and
# tests/models/options have all.
REFUSED = (
    ("cut", described(b'{"model": {"modelName": "b'), f"{PARSE}line 1, column 25: Unterminated string"),
    ("slash", plain_files("a/b"), "The model name 'a/b' cannot be part of a path."),
    ("above", handled_by("../up.py:go"), "Invalid handler '../up.py:go': it must not leave the archive"),
    ("system", handled_by("os:system"), "Invalid handler 'os:system': os is a standard module of Python"),
    ("tag", configured(TAG), "model-config.yaml: line 1: could not determine a constructor for the tag"),
    ("slip", UP, "entry '../slip_was_here.txt': '..' is not"),
    ("link", {}, "Invalid archive 'link.mar'"),
    ("text", {}, "Invalid archive 'text.mar'"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = tmp_path_factory.mktemp("bad_archives")
    write_zip(store / "good.mar", plain_files("good"))
    for name, files, _ in REFUSED:
        write_zip(store / f"{name}.mar", files)
    write_zip(store / "absent.mar", handled_by("absent.py"))
    write_zip(store / "empty_module.mar", {**handled_by("plain.py"), "plain.py": b""})
    (store / "text.mar").write_text("this is no archive\n")
    link = zipfile.ZipInfo("passwords")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(store / "link.mar", "w") as archive:
        archive.writestr(MANIFEST, json.dumps({"model": {"modelName": "bad", "handler": "x"}}))
        archive.writestr(link, "/etc/passwd")
    return store


@pytest.fixture(scope="module")
def server(tmp_path_factory, store):
    home = Home(tmp_path_factory.mktemp("home"))
    with serving(Server(home, store, settings={"install_py_dep_per_model": "true"})) as server:
        yield server.registered("good.mar")


@pytest.fixture(autouse=True)
def untouched(server):
    before = server.describe("good")["workers"][0]["pid"]
    yield
    assert server.predict("good").text == "fine"
    assert server.describe("good")["workers"][0]["pid"] == before
    assert [model["modelName"] for model in server.management.get("/models").json()["models"]] == ["good"]
    (workdir,) = server.home.workdirs()
    assert len([path for path in workdir.iterdir() if (path / "plain.py").exists()]) == 1
    assert server.inference.get("/ping").status_code == 200


def refusal(server, url, **parameters):
    response = server.register(url, **parameters)
    assert response.status_code == 400, response.text
    message = response.json()["message"]
    assert len(message) < 500
    return message


@pytest.mark.parametrize(
    ("name", "cause"), [(name, cause) for name, _, cause in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_bad_archive_is_refused(server, name, cause):
    """Manifest, handler, configuration and entries: each is a 400 before any worker is started (F58-F60)."""
    message = refusal(server, f"{name}.mar")

    assert cause in message
    # A name that the manifest has is the cause itself.
    assert f"{name}.mar" in message or name == "slash"


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("absent.mar", "The handler module 'absent' is neither in the archive nor a built-in handler"),
        ("empty_module.mar", "Expected only one class in custom service code or a function entry point []"),
    ],
)
def test_handler_that_is_not_there_fails_the_registration(server, url, cause):
    """What only a worker notices is taken back, with the archive's name for a renamed model too (F40)."""
    response = server.register(url, model_name="renamed")

    assert response.status_code == 500
    message = response.json()["message"]
    assert message.startswith(f"Failed to start workers for model renamed version: 1.0. Archive '{url}': ")
    assert cause in message
