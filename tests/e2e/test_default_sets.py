"""Both sets of defaults, on a server each: modelserver's, and TorchServe's under the name torchserve."""

import json
import re

import grpc
import httpx
import pytest
from tests.e2e.serving import PATIENCE, STARTED, Home, addresses, free_port, run_to_end, wait_until

from modelserver.models.settings.properties import parse
from modelserver.tools.aliases import install

REFUSED = {
    "code": 400,
    "type": "InvalidKeyException",
    "message": "Token Authorization failed. Token either incorrect, expired, or not provided correctly",
}
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}"
V1 = {"instances": [[1], [2]]}


class Detached:
    def __init__(self, home, store, command):
        self.home = home
        self.command = command
        self.store = store
        self.addresses = addresses()
        self.grpc = {f"grpc_{side}_port": free_port() for side in ("inference", "management")}
        self.printed = ""

    def run(self, *arguments):
        if self.command is None:
            return self.home.run(*arguments)
        return run_to_end([self.command, *arguments], self.home.path, self.home.environment)

    def start(self, *flags):
        done = self.run("--start", *flags)
        self.printed = done.stdout
        assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [STARTED]), done.stdout + done.stderr

    def stop(self):
        self.run("--stop", "--foreground")

    def config(self):
        grpc_api = {**self.grpc, "enable_grpc_api": str(self.command is not None).lower()}
        one = {"frontend_processes": 1, "default_workers_per_model": 1}
        return self.home.write_config({**self.addresses, **grpc_api, **one})

    def ask(self, side, method, path, scope=None, **arguments):
        """An answer of one of the addresses; with the token of a scope, as the file has it."""
        headers = {} if scope is None else {"Authorization": f"Bearer {self.keys()[scope]['key']}"}
        url = self.addresses[f"{side}_address"] + path
        return httpx.request(method, url, headers=headers, timeout=PATIENCE, trust_env=False, **arguments)

    def call(self, side, method, token=None):
        """Code and text that a gRPC call with an empty message ends with."""
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc[f'grpc_{side}_port']}") as channel:
            try:
                channel.unary_unary(method)(b"", metadata=metadata, timeout=PATIENCE)
            except grpc.RpcError as error:
                return error.code().name, error.details()
        return "OK", ""

    def keys(self):
        return json.loads((self.home.path / "key_file.json").read_text())

    def snapshots(self):
        return sorted((self.home.path / "logs" / "config").glob("*.cfg"))


@pytest.fixture(scope="module")
def torchserve(tmp_path_factory, model_store):
    """Started as ``torchserve`` with a model at start, and nothing else but its addresses."""
    path = tmp_path_factory.mktemp("torchserve")
    command = next(alias for alias in install(path / "bin") if alias.name == "torchserve")
    server = Detached(Home(path / "home"), model_store, command)
    try:
        server.start("--model-store", model_store, "--models", "echo.mar", "--ts-config", server.config())
        wait_until(
            lambda: server.ask("inference", "POST", "/predictions/echo", "inference").status_code == 200,
            "the model is ready",
        )
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def modelserver(tmp_path_factory, model_store):
    server = Detached(Home(tmp_path_factory.mktemp("modelserver")), model_store, None)
    try:
        server.start("--model-store", model_store, "--models", "echo.mar", "--ts-config", server.config())
        wait_until(lambda: server.ask("inference", "GET", "/readyz").status_code == 200, "the model is ready")
        yield server
    finally:
        server.stop()


def test_tokens_and_switches_follow_the_defaults(torchserve, modelserver):
    """With TorchServe's defaults every inference and management request needs a token, /ping too, and without
    it the status is 400, not 401 (reference 16.2); the model API, the Open Inference Protocol (reference 6.8)
    and workflows (reference 19) are off. With modelserver's nothing of that holds.
    """
    assert "Defaults: TorchServe's (started as torchserve)" in torchserve.printed.splitlines()
    assert "Token authorization is on" in torchserve.printed
    assert "Defaults" not in modelserver.printed

    for side, path in (("inference", "/ping"), ("inference", "/predictions/echo"), ("management", "/models")):
        answer = torchserve.ask(side, "GET", path)
        assert (answer.status_code, answer.json()) == (400, REFUSED)
        assert modelserver.ask(side, "GET", path).status_code == 200
        assert torchserve.ask(side, "GET", path, side).status_code == 200
    for path in ("/livez", "/readyz"):
        assert torchserve.ask("inference", "GET", path).status_code == 200
    assert not (modelserver.home.path / "key_file.json").exists()
    assert modelserver.ask("management", "GET", "/token?type=inference").status_code == 404

    for method, path in (("POST", "/models?url=rows.mar"), ("DELETE", "/models/echo")):
        assert torchserve.ask("management", method, path).status_code == 400
        refused = torchserve.ask("management", method, path, "management")
        assert (refused.status_code, refused.json()["type"]) == (405, "MethodNotAllowedException")
    scaled = torchserve.ask("management", "PUT", "/models/echo?min_worker=1", "management")
    assert scaled.status_code == 202
    assert modelserver.ask("management", "POST", "/models?url=rows.mar").status_code == 200
    assert modelserver.ask("management", "DELETE", "/models/rows").status_code == 200

    refused = torchserve.ask("management", "POST", "/workflows?url=x.war", "management")
    assert (refused.status_code, refused.json()["message"]) == (400, "Registering new workflows is disabled.")
    refusal = torchserve.ask("inference", "POST", "/wfpredict/x", "inference")
    assert (refusal.status_code, refusal.json()["type"]) == (404, "WorkflowNotFoundException")
    missing = modelserver.ask("management", "POST", "/workflows?url=x.war")
    assert (missing.status_code, missing.json()["type"]) == (404, "WorkflowNotFoundException")

    for path in ("/v2", "/v2/health/ready"):
        assert torchserve.ask("inference", "GET", path, "inference").status_code == 404
        assert modelserver.ask("inference", "GET", path).status_code == 200


def test_answers_follow_the_defaults(torchserve, modelserver):
    """TorchServe's: a V1 body reaches the handler whole, a batch waits for its window, and a model that is
    not there is the bare sentence. Ours: instances are rows, batches are adaptive, and each protocol says
    what there is.
    """
    reply = torchserve.ask("inference", "POST", "/v1/models/echo:predict", "inference", json=V1)
    ours = modelserver.ask("inference", "POST", "/v1/models/echo:predict", json=V1)

    assert reply.json() == V1
    assert list(ours.json()) == ["predictions"]

    for side, path, method in (
        ("inference", "/predictions/Echo", "POST"),
        ("inference", "/v1/models/Echo:predict", "POST"),
        ("inference", "/v2/models/Echo/infer", "POST"),
        ("management", "/models/Echo", "GET"),
    ):
        arguments = {"json": V1} if method == "POST" else {}
        ours = modelserver.ask(side, method, path, **arguments).json()

        assert ours["message"] == "Model not found: Echo. There is: echo"
        assert ours.get("error") in (None, "Model with name Echo does not exist. There is: echo")
        if not path.startswith("/v2"):
            reply = torchserve.ask(side, method, path, side, **arguments).json()
            assert reply["message"] == "Model not found: Echo"
    version = modelserver.ask("inference", "POST", "/predictions/echo/9", json=V1).json()
    assert version["message"] == "Model version: 9 does not exist for model: echo. There is: 1.0"

    policies = [
        server.ask("management", "GET", "/models/echo", scope).json()[0]["batching"]["policy"]
        for server, scope in ((torchserve, "management"), (modelserver, None))
    ]

    assert policies == [{"value": "window", "source": "default"}, {"value": "adaptive", "source": "default"}]


def test_grpc_has_the_same_rules(torchserve):
    """Token first, then the switch of the model API; there is no Open Inference service (reference 16)."""
    register = "/org.pytorch.serve.grpc.management.ManagementAPIsService/RegisterModel"
    token = torchserve.keys()["management"]["key"]
    assert torchserve.call("management", register) == ("PERMISSION_DENIED", REFUSED["message"])
    assert torchserve.call("management", register, token) == ("PERMISSION_DENIED", "Model API disabled")
    live = "/org.pytorch.serve.grpc.openinference.GRPCInferenceService/ServerLive"
    for method in (live, "/inference.GRPCInferenceService/ServerLive"):
        code, _ = torchserve.call("inference", method, torchserve.keys()["inference"]["key"])
        assert code == "UNIMPLEMENTED"


def test_metrics_go_to_the_log(torchserve, modelserver):
    """TorchServe's: the endpoint is empty and needs no token, the logs have the lines (reference 15)."""
    scraped = torchserve.ask("metrics", "GET", "/metrics")
    assert (scraped.status_code, scraped.content) == (200, b"")
    assert b"Requests2XX{" in modelserver.ask("metrics", "GET", "/metrics").content

    log = torchserve.home.log("ts_metrics.log")
    assert re.search(
        rf"(?m)^{STAMP} - Requests2XX\.Count:1\.0\|#Level:Host\|#hostname:[^,]+,timestamp:\d+$", log
    )
    of_models = torchserve.home.log("model_metrics.log")
    assert re.search(
        rf"(?m)^{STAMP} - PredictionTime\.ms:[\d.]+\|#ModelName:echo,Level:Model\|#hostname:[^,]+,"
        r"requestID:[^,]*,timestamp:\d+$",
        of_models,
    )


@pytest.mark.slow
def test_snapshots_are_restored_as_torchserve_does(torchserve, model_store):
    """Snapshots are written where TorchServe has them, in its form. A start without a named file uses the
    newest as its configuration and ignores ``--models``; without one of its archives the server does not
    start (reference 17).
    """
    written = torchserve.snapshots()
    assert re.fullmatch(r"\d{17}-startup\.cfg", written[0].name)
    values = parse(written[0].read_bytes())
    state = json.loads(values["model_snapshot"])
    assert values["inference_address"] == torchserve.addresses["inference_address"]
    expected = {"defaultVersion": True, "marName": "echo.mar", "runtimeType": "python"}
    expected |= {"minWorkers": 1, "maxWorkers": 1, "batchSize": 1, "maxBatchDelay": 100}
    expected |= {"responseTimeout": 120, "startupTimeout": 120}
    assert state["models"]["echo"]["1.0"].items() >= expected.items()

    torchserve.stop()
    newest = torchserve.snapshots()[-1]
    assert newest.name.endswith("-shutdown.cfg")
    assert not (torchserve.home.path / "key_file.json").exists()
    torchserve.start("--models", "rows.mar")
    listed = torchserve.ask("management", "GET", "/models", "management").json()["models"]
    assert [model["modelName"] for model in listed] == ["echo"]
    restored = f"Restored from {torchserve.home.path / 'logs' / 'config' / newest.name}: echo 1.0"
    assert restored.replace(str(torchserve.home.path) + "/", "") in torchserve.printed.replace(
        str(torchserve.home.path) + "/", ""
    )

    torchserve.stop()
    broken = torchserve.snapshots()[-1]
    text = broken.read_text().replace("echo.mar", "gone.mar")
    broken.write_text(text.partition("\n")[2])
    refused = torchserve.run("--start")
    assert refused.returncode == 1
    assert refused.stdout.splitlines()[-1] == (
        "Model archive file for model :echo, version :1.0 not found in model store: gone.mar"
    )
    assert torchserve.home.pid() is None


@pytest.mark.slow
def test_snapshots_are_restored_beside_a_named_file(modelserver, model_store):
    """``--models`` are loaded, too; the server prints which models were restored and which were not."""
    modelserver.stop()
    newest = modelserver.snapshots()[-1]
    values = newest.read_text().replace('"echo.mar"', '"gone.mar"')
    newest.write_text(values.partition("\n")[2])
    modelserver.start(
        "--model-store", model_store, "--models", "rows.mar", "--ts-config", modelserver.config()
    )

    listed = modelserver.ask("management", "GET", "/models").json()["models"]
    assert [model["modelName"] for model in listed] == ["echo", "rows"]
    assert (
        f"Restored from logs/config/{newest.name}: echo 1.0 FAILED (Model not found at: gone.mar)"
        in modelserver.printed.splitlines()
    )
