"""Settings of config.properties, each by what it does to a running server (reference 3.3)."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from tests.e2e.serving import Home, Server, serving

from modelserver.tools.archiver import ArchiveConfig, build_archive


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, model_store):
    """One server with many settings that do not get in each other's way."""
    models = {
        "rows": {
            "1.0": {
                "batchSize": 5,
                "maxBatchDelay": 30,
                "minWorkers": 2,
                "maxWorkers": 3,
                "responseTimeout": 77,
            }
        }
    }
    settings = {
        "load_models": "rows.mar, named=echo.mar",
        "models": json.dumps(models),
        "default_workers_per_model": 1,
        "initial_worker_port": 12000,
        "job_queue_size": 7,
        "default_response_timeout": 33,
        "default_startup_timeout": 44,
        "max_request_size": 1000,
        "max_response_size": 2000,
        "decode_input_request": "false",
        "default_service_handler": "echo.py:handle",
        "blacklist_env_vars": "E2E_SECRET.*|E2E_OTHER",
        "limit_max_image_pixels": "false",
        "batch_policy": "greedy",
        "isolate_failures": "false",
        "split_instances": "false",
        "metric_time_interval": 1,
        "enable_envvars_config": "false",
    }
    environment = {"E2E_SECRET_KEY": "1", "E2E_OTHER": "1", "E2E_OTHER_NOT": "1", "TS_JOB_QUEUE_SIZE": "9"}
    home = Home(tmp_path_factory.mktemp("tuned"), environment)
    with serving(Server(home, model_store, (), settings)) as server:
        server.registered("tell.mar", initial_workers=None).registered("obey.mar", batch_size=4)
        yield server


def test_load_models(tuned):
    """``load_models`` registers at start, under a name of one's own where one is given;
    spaces do not count.
    """
    names = [model["modelName"] for model in tuned.management.get("/models").json()["models"]]

    assert {"rows", "named"} <= set(names)
    assert tuned.describe("named")["loadedAtStartup"] is True
    assert tuned.describe("tell")["loadedAtStartup"] is False


def test_models_sets_defaults_of_a_version(tuned):
    """``models`` sets a version's defaults for batches, timeouts and workers at start."""
    described = tuned.describe("rows")

    assert (described["batchSize"], described["maxBatchDelay"]) == (5, 30)
    assert (described["minWorkers"], described["maxWorkers"]) == (2, 3)
    assert described["responseTimeout"] == 77
    assert described["batching"]["batchSize"]["source"] == "models= in config.properties"


def test_default_workers_per_model_applies(tuned):
    """``default_workers_per_model`` applies at start and to registrations without a number of workers."""
    assert len(tuned.describe("named")["workers"]) == 1
    assert len(tuned.describe("tell")["workers"]) == 1


def test_initial_worker_port_is_the_first_id(tuned):
    """``initial_worker_port`` is the id of the first worker; other ids follow it."""
    ids = [
        int(worker["id"])
        for name in ("rows", "named", "tell", "obey")
        for worker in tuned.describe(name)["workers"]
    ]

    assert sorted(ids) == list(range(12000, 12000 + len(ids)))


def test_job_queue_size_bounds_each_queue(tuned):
    """``job_queue_size`` bounds the queue of each version."""
    assert tuned.describe("tell")["jobQueueStatus"] == {"remainingCapacity": 7, "pendingRequests": 0}


def test_default_timeouts_apply(tuned):
    """The default timeouts apply to models that set none."""
    described = tuned.describe("tell")

    assert (described["responseTimeout"], described["startupTimeout"]) == (33, 44)


def test_body_above_max_request_size_gets_413(tuned):
    """A body of exactly ``max_request_size`` is served, one byte more is 413, on every port."""
    assert tuned.predict("named", b"x" * 1000).status_code == 200
    assert tuned.predict("named", b"x" * 1001).status_code == 413
    refused = tuned.management.post(
        "/models", content=b"x" * 1001, headers={"content-type": "application/json"}
    )
    assert (refused.status_code, refused.json()["type"]) == (413, "RequestEntityTooLargeException")


def test_response_above_max_response_size_fails(tuned):
    """A response of exactly ``max_response_size`` is sent, one byte more is an error."""

    def big(size):
        return tuned.predict("obey", {"do": "big", "bytes": size})

    assert len(big(2000).content) == 2000
    assert big(2001).status_code == 500
    assert "max_response_size allows 2000" in big(2001).json()["message"]


def test_decode_input_request(tuned):
    """With ``decode_input_request=false`` handlers get bytes, whatever the content type."""
    output = tuned.predict("tell", {"a": 1}).json()

    assert output["types"] == {"body": "bytearray"}
    assert output["environment"]["TS_DECODE_INPUT_REQUEST"] == "false"


def test_decoding_that_a_handler_turns_off_itself(start_server, tmp_path):
    """A handler that sets the variable for it while it is imported gets bytes from its first request on."""
    code, store = tmp_path / "undecoded.py", tmp_path / "own-store"
    store.mkdir()
    code.write_text(
        "import os\n\nos.environ['TS_DECODE_INPUT_REQUEST'] = 'false'\n\n\n"
        "def handle(data, context):\n    return [type(row['body']).__name__ for row in data or []]\n"
    )
    build_archive(ArchiveConfig("undecoded", str(code), "1.0", export_path=store))
    server = start_server(model_store=store).registered("undecoded.mar")

    assert server.predict("undecoded", {"a": 1}).text == "bytearray"


def test_blacklist_env_vars_hides_variables(tuned):
    """Variables whose whole name matches ``blacklist_env_vars`` are hidden from workers (F68)."""
    environment = tuned.predict("tell").json()["environment"]

    assert environment["E2E_OTHER_NOT"] == "1"
    assert not {"E2E_SECRET_KEY", "E2E_OTHER"} & set(environment)


def test_limit_max_image_pixels(tuned):
    """``limit_max_image_pixels`` reaches handlers."""
    assert tuned.predict("tell").json()["properties"]["limit_max_image_pixels"] is False


def test_batch_policy_applies_to_models_without_one(tuned):
    """``batch_policy`` applies to models without one, even if they have a delay."""
    described = tuned.describe("rows")

    assert described["batching"]["policy"]["value"] == "greedy"
    assert described["batching"]["policy"]["source"].startswith("config.properties")


def test_split_instances_false_passes_bodies_whole(tuned):
    """With ``split_instances=false`` a custom handler gets a V1 body whole, as in TorchServe."""
    answer = tuned.inference.post("/v1/models/tell:predict", json={"instances": [1, 2]})

    assert answer.json()["values"] == {"body": '{"instances":[1,2]}'}


def test_environment_needs_permission(tuned):
    """Without ``enable_envvars_config`` the variables ``TS_*`` are ignored."""
    assert tuned.describe("tell")["jobQueueStatus"]["remainingCapacity"] == 7


@pytest.fixture(scope="module")
def other(tmp_path_factory, model_store):
    """A second server, whose settings are the opposite where there is one."""
    base = tmp_path_factory.mktemp("other")
    settings = {
        "inference_address": f"unix:{base}/inference.sock",
        "enable_metrics_api": "false",
        "enable_model_api": "false",
        "load_models": "all",
        "default_workers_per_model": 1,
        "isolate_failures": "false",
        "enable_envvars_config": "true",
        "job_queue_size": 3,
        "max_request_size": "$$E2E_LIMIT$$",
        "max_request_instances": 3,
        "max_request_tensors": 2,
    }
    store = base / "store"
    store.mkdir()
    for name in ("rows.mar", "tell.mar"):
        (store / name).write_bytes((model_store / name).read_bytes())
    (store / "notes.txt").write_text("no model")
    (store / ".hidden.mar").write_text("no model")
    environment = {"E2E_LIMIT": "500", "TS_JOB_QUEUE_SIZE": "11", "TS_DEFAULT_RESPONSE_TIMEOUT": "5"}
    with serving(Server(Home(base / "home", environment), store, (), settings)) as server:
        server.wait_ready("rows")
        server.wait_ready("tell")
        yield server


def test_unix_socket_is_served(other):
    """``inference_address`` may be a Unix socket, which no other user may use (F68)."""
    path = other.settings["inference_address"].removeprefix("unix:")

    assert other.inference.get("/ping").json() == {"status": "Healthy"}
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert other.predict("rows", b"5").status_code == 200


def test_load_all(other):
    """``load_models=all`` loads the archives of the store, and nothing else in it."""
    names = [model["modelName"] for model in other.management.get("/models").json()["models"]]

    assert names == ["rows", "tell"]


def test_metrics_address_is_not_bound_without_the_api(other):
    """With ``enable_metrics_api=false`` no socket listens at the metrics address."""
    with pytest.raises(httpx.ConnectError):
        other.metrics.get("/metrics")


def test_models_are_not_registered_without_the_api(other):
    """With ``enable_model_api=false`` models are neither registered nor removed; scaling and
    describing work.
    """
    message = "Requested method is not allowed, please refer to API document."
    for answer in (other.register("rows.mar"), other.management.delete("/models/rows")):
        assert answer.status_code == 405
        assert answer.json() == {
            "code": 405, "type": "MethodNotAllowedException", "message": message, "error": message
        }  # fmt: skip
    assert other.management.put("/models/rows?min_worker=1&synchronous=true").status_code == 200
    assert other.describe("rows")["modelName"] == "rows"


def test_environment_wins(other):
    """With ``enable_envvars_config`` the variables ``TS_*`` override the file."""
    described = other.describe("rows")

    assert described["jobQueueStatus"]["remainingCapacity"] == 11
    assert described["responseTimeout"] == 5


def test_limits_of_a_request(other):
    """``max_request_instances`` and ``max_request_tensors`` bound V1 and V2; errors name them."""
    tensor = {"name": "x", "shape": [4], "datatype": "INT8", "data": [1, 2, 3, 4]}
    for path, body in (
        ("/v1/models/rows:predict", {"instances": [1, 2, 3, 4]}),
        ("/v2/models/rows/infer", {"inputs": [tensor]}),
    ):
        answer = other.inference.post(path, json=body)
        assert answer.status_code == 413
        assert "The request has 4 instances, max_request_instances=3 are allowed." in answer.text
    body = {"inputs": [{"name": name, "shape": [1], "datatype": "INT8", "data": [1]} for name in "abc"]}
    answer = other.inference.post("/v2/models/rows/infer", json=body)
    assert answer.status_code == 400
    assert "inputs: there are 3, max_request_tensors=2 are allowed" in answer.text
    assert other.inference.post("/v1/models/rows:predict", json={"instances": [1, 2, 3]}).status_code == 200


def test_variable_in_a_value_is_replaced(other):
    """``$$NAME$$`` in a value is replaced by the variable's value."""
    assert other.predict("rows", b"x" * 501).status_code == 413


def test_default_service_handler_serves_archives_without_one(start_server, tmp_path):
    """``default_service_handler`` serves archives whose manifest names no handler; without it they are
    refused.
    """
    folder = tmp_path / "store" / "bare"
    (folder / "MAR-INF").mkdir(parents=True)
    manifest = {"model": {"modelName": "bare", "modelVersion": "1.0"}, "runtime": "python"}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (folder / "own.py").write_text("def run(data, context):\n    return ['ran'] * len(data or [])\n")
    server = start_server(model_store=tmp_path / "store", default_service_handler="own.py:run").registered(
        "bare"
    )

    assert server.predict("bare").text == "ran"


@pytest.fixture
def archive_url(model_store):
    """The model store by HTTP, on the loopback."""
    handler = partial(QuietHandler, directory=str(model_store))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    received_headers: ClassVar[dict[str, str]] = {}

    def do_GET(self):
        self.received_headers.update(self.headers)
        super().do_GET()

    def log_message(self, *_):
        pass


def test_archive_is_fetched_over_http(start_server, archive_url, tmp_path):
    """An archive is downloaded from an allowed address into the store, served, and removed with its model;
    the other server receives the client's trace headers.
    """
    store = tmp_path / "store"
    store.mkdir()
    server = start_server(allowed_urls=f"{archive_url}/.*", model_store=store)
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "baggage": "user=7"}
    answer = server.management.post(
        "/models", params={"url": f"{archive_url}/echo.mar", "initial_workers": 1}, headers=trace
    )
    assert answer.status_code == 200, answer.text
    assert trace.items() <= QuietHandler.received_headers.items()
    assert server.predict("echo", b"x").status_code == 200
    assert (store / "echo.mar").is_file()

    missing = server.register(f"{archive_url}/nothing.mar")
    assert (missing.status_code, missing.json()["type"]) == (400, "DownloadArchiveException")
    server.unregister("echo")
    assert list(store.iterdir()) == []
