"""The image's entry point, started as the manifests of ``deploy/`` start it, over real sockets."""

import contextlib
import signal
import sys

import grpc
import httpx
import pytest
import yaml
from tests.e2e.serving import PATIENCE, ROOT, STARTED, Home, archived, free_port, run_to_end, wait_until

_HANDLER = """
def handle(data, context):
    return None if data is None else [repr(row) for row in data]
"""
_TOKENS = {scope: f"{scope}-token-of-a-test" for scope in ("inference", "management", "API")}
_PREDICT = {"Authorization": f"Bearer {_TOKENS['inference']}"}


class Container:
    """The entry point in a directory like the image's; ``work`` is the server's own."""

    def __init__(self, home, ports, arguments):
        self.home = home
        self.work = home.path / "work"
        self.work.mkdir()
        self.url, self.metrics = (f"http://127.0.0.1:{ports[name]}" for name in ("inference", "metrics"))
        self._command = [sys.executable, "-m", "modelserver.tools.container", *arguments]

    @contextlib.contextmanager
    def running(self):
        """Runs until the signal that a runtime sends to process 1."""
        process = self.home.start(self._command, self.work)
        try:
            wait_until(lambda: STARTED in self.home.output() or process.poll() is not None, "it starts")
            assert STARTED in self.home.output(), self.home.output()
            wait_until(lambda: self.get("/v2/health/ready").status_code == 200, "models are loaded")
            yield self
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()

    def get(self, path, **arguments):
        return httpx.get(f"{self.url}{path}", timeout=PATIENCE, trust_env=False, **arguments)

    def post(self, path, **arguments):
        return httpx.post(f"{self.url}{path}", timeout=PATIENCE, trust_env=False, **arguments)

    def health(self):
        command = [sys.executable, "-m", "modelserver.tools.container.healthcheck"]
        return run_to_end(command, self.work, self.home.environment)


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    """The Deployment's command with the ConfigMap's file, in a folder of the test's, with good tokens."""
    base = tmp_path_factory.mktemp("pod")
    for name in ("home/model-store", "etc/config", "etc/tokens", "cache"):
        (base / name).mkdir(parents=True)
    archived(base / "home" / "model-store", "rows", _HANDLER)
    for scope, token in _TOKENS.items():
        (base / "etc" / "tokens" / scope).write_text(token + "\n", encoding="utf-8")
    ports = {name: free_port() for name in ("inference", "management", "metrics", "grpc")}
    moved = {
        "0.0.0.0:8080": f"127.0.0.1:{ports['inference']}",
        ":8081": f":{ports['management']}",
        "0.0.0.0:8082": f"127.0.0.1:{ports['metrics']}",
        "=0.0.0.0": "=127.0.0.1",
        "/home/model-server": str(base / "home"),
        "/etc/modelserver": str(base / "etc"),
    }
    text = (ROOT / "deploy" / "kubernetes" / "config.properties").read_text("utf-8")
    for ours, moved_to in moved.items():
        text = text.replace(ours, moved_to)
    text += f"grpc_inference_port={ports['grpc']}\ngrpc_management_port={free_port()}\n"
    (base / "etc" / "config" / "config.properties").write_text(text, encoding="utf-8")
    deployment = yaml.safe_load((ROOT / "deploy/kubernetes/deployment.yaml").read_text("utf-8"))
    (spec,) = deployment["spec"]["template"]["spec"]["containers"]
    arguments = [word.replace("/etc/modelserver", str(base / "etc")) for word in spec["args"]]
    folders = {"XDG_CACHE_HOME": str(base / "cache")}
    assert {entry["name"] for entry in spec["env"]} == set(folders)
    with Container(Home(base, folders), ports, arguments).running() as started:
        yield started


def test_a_pod_is_probed_and_serves(pod):
    """The requests are those of the kubelet and of Prometheus, without a token; predictions need one of the
    secret. The image finds itself healthy, at another port.
    """
    agent = {"User-Agent": "kube-probe/1.31"}
    answers = [pod.get(f"/v2/health/{name}", headers=agent) for name in ("live", "ready")]

    assert [answer.status_code for answer in answers] == [200, 200]
    exposition = httpx.get(f"{pod.metrics}/metrics", trust_env=False).text
    assert 'modelserver_queue_requests{model_name="rows",model_version="1.0"} 0' in exposition
    assert "modelserver_batches_in_flight{" in exposition

    assert pod.post("/predictions/rows").status_code == 400
    assert pod.post("/predictions/rows", content=b"a", headers=_PREDICT).text == "{'body': bytearray(b'a')}"

    done = pod.health()

    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")


def test_nothing_is_written_beside_the_volumes(pod):
    """Neither into the working directory, as logs are only printed, nor beside the archives: both may be
    read only. Probes that succeed are not in what is printed.
    """
    store = pod.home.path / "home" / "model-store"

    pod.get("/v2/health/live")
    pod.post("/predictions/rows", content=b"a", headers=_PREDICT)

    assert list(pod.work.iterdir()) == []
    assert {path.name for path in store.iterdir()} == {"rows.mar", "rows.py"}
    wait_until(lambda: "/predictions/rows" in pod.home.output(), "the request is in what is printed")
    printed = [line for line in pod.home.output().splitlines() if "/v2/health" in line]
    # Those that failed while the model loaded are printed.
    assert [line for line in printed if " 503 " not in line] == []


@pytest.fixture(scope="module")
def replaced(tmp_path_factory):
    """The arguments of the runtime that takes the place of KServe's, and a folder as its users have it."""
    base = tmp_path_factory.mktemp("kserve")
    models = base / "models"
    for name in ("config", "model-store"):
        (models / name).mkdir(parents=True)
    archived(models / "model-store", "rows", _HANDLER)
    snapshot = (
        '{"name":"startup.cfg","modelCount":1,"models":{"digits":{"1.0":{"defaultVersion":true,'
        '"marName":"rows.mar","minWorkers":1,"maxWorkers":5,"batchSize":5,"maxBatchDelay":200,'
        '"responseTimeout":60}}}}'
    )
    (models / "config" / "config.properties").write_text(
        "inference_address=http://0.0.0.0:8085\nmanagement_address=http://0.0.0.0:8085\n"
        "metrics_address=http://0.0.0.0:8082\nenable_envvars_config=true\n"
        f"model_store=/mnt/models/model-store\nmodel_snapshot={snapshot}\n",
        encoding="utf-8",
    )
    runtime = yaml.safe_load((ROOT / "deploy/kserve/servingruntime-torchserve.yaml").read_text("utf-8"))
    (spec,) = runtime["spec"]["containers"]
    ports = {name: free_port() for name in ("inference", "management", "metrics")}
    environment = {f"TS_{name.upper()}_ADDRESS": f"http://127.0.0.1:{port}" for name, port in ports.items()}
    environment |= {"TS_ENABLE_GRPC_API": "false", "LOG_LOCATION": str(base / "log")}
    environment |= {
        entry["name"]: entry["value"].replace("{{.Labels.serviceEnvelope}}", "kserve")
        for entry in spec["env"]
        if entry["name"] == "TS_SERVICE_ENVELOPE"
    }
    arguments = [word.replace("/mnt/models", str(models)) for word in spec["args"]]
    with Container(Home(base, environment), ports, arguments).running() as started:
        yield started


def test_a_layout_of_kserves_runtime_is_served(replaced):
    """Under the snapshot's name, in its batches; the handler gets what the envelope gives it. Management has
    an address of its own, which the file does not change.
    """
    answer = replaced.post("/v1/models/digits:predict", json={"instances": [[1, 2], {"data": 3}]}).json()

    assert answer["predictions"] == ["[1, 2]", "{'data': 3}"]
    assert (answer["message"], len(answer["batchId"])) == ("", 36)
    described = replaced.get("/v1/models/digits").json()
    assert (described["name"], described["ready"]) == ("digits", True)
    assert replaced.get("/v2/models/digits/ready").status_code == 200

    assert replaced.health().stdout == "ready\n"

    assert replaced.get("/models").status_code == 404


@pytest.mark.slow
def test_a_model_under_its_services_name(tmp_path):
    """A lone archive and no configuration: V1, V2 and the probe of gRPC, under the URL that KServe shows."""
    models = tmp_path / "models"
    models.mkdir()
    archived(models, "rows", _HANDLER)
    ports = {name: free_port() for name in ("inference", "management", "metrics")}
    environment = {f"TS_{name.upper()}_ADDRESS": f"http://127.0.0.1:{port}" for name, port in ports.items()}
    grpc_port = free_port()
    environment |= {"TS_GRPC_INFERENCE_ADDRESS": "127.0.0.1", "TS_GRPC_MANAGEMENT_PORT": str(free_port())}
    environment |= {"TS_DEFAULT_WORKERS_PER_MODEL": "1"}
    arguments = [f"--model-dir={models}", "--model-name=digits", f"--grpc-port={grpc_port}"]
    tensor = {"name": "x", "shape": [1], "datatype": "INT64", "data": [7]}

    with Container(Home(tmp_path, environment), ports, arguments).running() as started:
        first = started.post("/v1/models/digits:predict", json={"instances": [{"a": 1}]})
        second = started.post("/v2/models/digits/infer", json={"inputs": [tensor]})
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as to:
            third = to.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=PATIENCE)

    assert first.json() == {"predictions": ["{'a': 1}"]}
    # Rows of numbers are numpy's, which says so from 2 on.
    assert second.json()["outputs"][0]["data"] in (["{'data': 7}"], ["{'data': np.int64(7)}"])
    assert third == b"\x08\x01"  # status: SERVING
