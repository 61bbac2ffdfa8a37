"""Models with packages and a configuration of their own, installed and read by a real server."""

import hashlib
import zipfile

import pytest
import yaml
from tests.e2e.serving import Home, Server, archived, serving

HANDLER = """
import json, sys
import tiny

def handle(data, context):
    facts = [tiny.ANSWER, sys.prefix != sys.base_prefix, sys.prefix]
    return None if data is None else [json.dumps(facts)] * len(data)
"""
SHOWING = """
import json

def handle(data, context):
    return None if data is None else [json.dumps(context.model_yaml_config)] * len(data)
"""
CONFIG = """
minWorkers: 1
maxWorkers: 1
batchSize: 3
handler: {profile: false, model_path: "x y", deep: {list: [1, 2.5, yes, ~, [a]]}}
micro_batching: {micro_batch_size: 2, parallelism: {preprocess: 2, inference: 1}}
onnx: {providers: [CPUExecutionProvider]}
my_own: {anything: 1}
"""


WHEEL = "tiny-1.0-py3-none-any.whl"


def pack(store, name, code, requirements="", config="", answer=0):
    """In the store; with an ``answer`` it brings a package ``tiny``, whose hash ``HASH`` stands for."""
    folder = store.parent / name
    folder.mkdir()
    wheel = write_wheel(folder, answer) if answer else None
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest() if wheel else ""
    options = {"extra_files": str(wheel)} if wheel else {}
    if requirements:
        options["requirements_file"] = folder / "requirements.txt"
        options["requirements_file"].write_text(requirements.replace("HASH", digest))
    archived(store, name, code, config=config, **options)


def write_wheel(folder, answer):
    info = "tiny-1.0.dist-info"
    made = folder / WHEEL
    with zipfile.ZipFile(made, "w") as wheel:
        wheel.writestr("tiny.py", f"ANSWER = {answer}\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    store = tmp_path_factory.mktemp("packed") / "store"
    hashed = f"--no-index\n./{WHEEL} --hash=sha256:"
    pack(store, "folder", HANDLER, f"{hashed}HASH\n", answer=1)
    pack(store, "wrong", HANDLER, f"{hashed}{'0' * 64}\n", answer=1)
    pack(store, "isolated", HANDLER, f"--no-index\n./{WHEEL}\n", "useVenv: true\n", answer=2)
    pack(store, "failing", HANDLER, "--no-index\nno-such-package-anywhere\n")
    pack(store, "showing", SHOWING, config=CONFIG)
    cache = tmp_path_factory.mktemp("cache") / "cache"
    home = Home(tmp_path_factory.mktemp("home"), {"MODELSERVER_CACHE": str(cache)})
    with serving(Server(home, store, settings={"install_py_dep_per_model": "true"})) as server:
        yield server


@pytest.mark.slow  # pip installs packages, and makes a virtual environment
def test_each_model_has_its_own_packages(server):
    """Two of one name are served side by side, one in a virtual environment; the next load uses the cache."""
    server.registered("folder.mar")
    server.registered("isolated.mar")
    folder, venv = server.predict("folder").json(), server.predict("isolated").json()

    assert folder[0] == 1
    assert venv[:2] == [2, True]
    assert "/environments/venv-" in venv[2]
    assert folder[2] != venv[2]
    log = server.home.log("model_log.log")
    assert "folder_1.0-pip MODEL_LOG - " in log
    assert log.count("Successfully installed tiny-1.0") == 2
    server.unregister("folder")
    server.unregister("isolated")

    assert server.registered("folder.mar").predict("folder").json()[0] == 1
    assert server.home.log("model_log.log").count("folder_1.0-pip MODEL_LOG - Successfully installed") == 1
    server.home.wait_for_log("folder 1.0: its packages are already installed")
    server.unregister("folder")


@pytest.mark.slow  # starts pip twice
def test_failing_installation_takes_the_registration_back(server):
    """The message is TorchServe's, with pip's last lines; unlike there, the model is not left behind. Another
    file than the one whose hash is named is refused (F67).
    """
    for name, reason in (
        ("failing", "NO MATCHING DISTRIBUTION FOUND FOR NO-SUCH-PACKAGE-ANYWHERE"),
        ("wrong", "HASH"),
    ):
        response = server.register(f"{name}.mar")

        assert (response.status_code, response.json()["type"]) == (400, "ModelException")
        message = response.json()["message"]
        assert message.startswith(f"Custom pip package installation failed for model {name}. ")
        assert reason in message.upper()
        assert server.management.get("/models").json() == {"models": []}


def test_handlers_get_the_whole_configuration(server):
    """What the author wrote reaches the handler untouched, with the keys that the server reads too."""
    server.registered("showing.mar")

    assert server.predict("showing").json() == yaml.safe_load(CONFIG)
    assert server.describe("showing")["batchSize"] == 3
    server.unregister("showing")
