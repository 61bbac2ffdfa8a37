"""Servers that start with configuration files of TorchServe's repository and documentation."""

import os
import re
import ssl

import httpx
import pytest
from tests.e2e.serving import MODEL_CODE, STARTED, Home, Server, archived, free_port, serving, wait_until
from tests.models.settings.torchserve_configurations import CONFIGURATIONS, ENVIRONMENT

pytest.importorskip("cryptography")

from tests.surface.tls.certificates import Authority

pytestmark = pytest.mark.slow  # starts a server with each file

METRICS = "ts_metrics:\n  counter:\n    - {name: Requests2XX, unit: Count, dimensions: []}\n"
SERVER_TESTS = "frontend/server/src/test/resources"


def moved(text, folder):
    """A file with its ports and sockets replaced by free ones; what is on one port stays so."""
    places = {}

    def place(result):
        key, before, scheme = result.groups()
        new = f"unix:{folder}/a.sock" if scheme == "unix" else f"{scheme}://127.0.0.1:{free_port()}"
        return f"{key}={places.setdefault(before, new)}"

    text = re.sub(r"(?m)^(\w+_address)=((https?|unix):.*)$", place, text)
    return re.sub(r"(?m)^(grpc_\w+_port)=.*$", lambda result: f"{result[1]}={free_port()}", text)


def here(text, folder):
    """The entries of a file that was :func:`moved`. A value of several lines stays one."""
    return {**dict(re.findall(r"(?m)^(\w+)=((?:.*\\\n)*.*)$", moved(text, folder)))}


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def client(authority):
    context = ssl.create_default_context(cafile=str(authority.file))
    with httpx.Client(verify=context, trust_env=False, timeout=20) as made:
        yield made


@pytest.fixture
def home(tmp_path):
    """Where TorchServe's own tests run, as seen from the files that their configurations name."""
    return Home(tmp_path / "frontend" / "server")


def store_of(folder, *names):
    folder.mkdir(parents=True)
    for name in names:
        archived(folder, name, MODEL_CODE / "echo.py")
    return folder


def counts(description):
    """The settings of a model that the files name, and how many workers it has."""
    names = ("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout")
    return [description[name] for name in names] + [len(description["workers"])]


def test_absent_models_do_not_prevent_the_start(home, authority, client, tmp_path_factory):
    """Relative paths are relative to the folder where the server was started. Missing models are reported,
    and the server starts; the key ``models`` applies to a model that is registered later.
    """
    store_of(home.path.parent / "archive" / "src" / "test" / "resources" / "models", "vgg16")
    resources = home.path / "src" / "test" / "resources"
    resources.mkdir(parents=True)
    for file, name in zip(authority.issue("server"), ("key.pem", "certs.pem"), strict=True):
        file.rename(resources / name)
    (resources / "metrics_default.yaml").write_text(METRICS)
    # Paths of sockets must be short.
    sockets = tmp_path_factory.mktemp("s")
    settings = here(CONFIGURATIONS[f"{SERVER_TESTS}/config_test_env.properties"], sockets)

    with serving(Server(home, home.path, settings=settings)) as server:
        for absent in ("noop-v0.1", "noop-v1.0"):
            server.home.wait_for_log(f"Failed to load model: {absent}: Model not found at: {absent}")
        server.registered("vgg16.mar")
        answer = client.post(f"{settings['inference_address']}/predictions/vgg16", content=b"x")

        assert (answer.status_code, answer.content) == (200, b"x")
        assert counts(server.describe("vgg16")) == [1, 1, 8, 100, 120, 1]


class Unchanged(Server):
    """Started with a file's text as it is, but for addresses and what it takes from the environment."""

    def __init__(self, home, model_store, text):
        super().__init__(home, model_store)
        addresses = (f"{key}={self.settings[key]}" for key in self.settings if key.endswith("_address"))
        missing = [line for line in addresses if f"{line.partition('=')[0]}=" not in text]
        # The default ports of gRPC are not free.
        grpc = "true" if "grpc_inference_port=" in text else "false"
        own = ("frontend_processes=1", f"enable_grpc_api={grpc}", *missing)
        self._text = "\n".join([*own, moved(text, home.path)])

    def start(self):
        file = self.home.path / "theirs.properties"
        file.write_text(self._text)
        flags = ("--model-store", self.settings["model_store"], "--ts-config", file)
        self._process = self.home.popen("--start", "--foreground", *flags)
        wait_until(lambda: STARTED in self.home.output() or self.process.poll() is not None, "it starts")
        assert STARTED in self.home.output(), self.home.output()
        return self


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pair")).issue("server")


def covering():
    """A few of the files that set all keys between them; all files with ``MODELSERVER_LONG_TESTS=1``."""
    if os.environ.get("MODELSERVER_LONG_TESTS"):
        return list(CONFIGURATIONS)
    keys = {name: set(re.findall(r"(?m)^(\w+)=", text)) for name, text in CONFIGURATIONS.items()}
    chosen, missing = [], set().union(*keys.values())
    while missing:
        chosen.append(max(keys, key=lambda name: len(keys[name] & missing)))
        missing -= keys[chosen[-1]]
    return chosen


@pytest.mark.parametrize("name", covering())
def test_each_starts(name, tmp_path, pair):
    """With a model store that is empty, and the key, certificate and metrics that the file names."""
    home, text = Home(tmp_path / "h", ENVIRONMENT, for_children=True), CONFIGURATIONS[name]
    for key, content in (
        ("private_key_file", pair[0].read_text()),
        ("certificate_file", pair[1].read_text()),
        ("metrics_config", METRICS),
    ):
        for named in re.findall(rf"(?m)^{key}=(.*)$", text):
            (home.path / named).parent.mkdir(parents=True, exist_ok=True)
            (home.path / named).write_text(content)
    (tmp_path / "store").mkdir()

    with serving(Unchanged(home, tmp_path / "store", text)) as server:
        assert server.process.poll() is None
    assert "Traceback" not in home.output() + home.log()
