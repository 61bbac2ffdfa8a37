"""Settings of config.properties, each by what it does to a running server (reference 3.3)."""

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from tests.e2e.serving import Home, Server, copied, serving


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, model_store):
    """One server with many settings that do not get in each other's way."""
    row = {"batchSize": 5, "maxBatchDelay": 30, "minWorkers": 2, "maxWorkers": 3, "responseTimeout": 77}
    models = {"rows": {"1.0": row}}
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


def test_settings_of_models_are_in_effect(tuned):
    """Models at start, workers, ports, queues, timeouts; ``TS_*`` needs ``enable_envvars_config``."""
    names = {model["modelName"] for model in tuned.management.get("/models").json()["models"]}
    row, named, tell, obey = (tuned.describe(name) for name in ("rows", "named", "tell", "obey"))
    ids = [int(worker["id"]) for each in (row, named, tell, obey) for worker in each["workers"]]

    assert {"rows", "named"} <= names
    assert (named["loadedAtStartup"], tell["loadedAtStartup"]) == (True, False)
    assert (len(named["workers"]), len(tell["workers"])) == (1, 1)
    assert sorted(ids) == list(range(12000, 12000 + len(ids)))
    assert tell["jobQueueStatus"] == {"remainingCapacity": 7, "pendingRequests": 0}
    assert (tell["responseTimeout"], tell["startupTimeout"]) == (33, 44)
    assert [row[name] for name in ("batchSize", "maxBatchDelay", "minWorkers", "maxWorkers")] == [5, 30, 2, 3]
    assert row["responseTimeout"] == 77
    assert row["batching"]["batchSize"]["source"] == "models= in config.properties"
    assert row["batching"]["policy"]["value"] == "greedy"
    assert row["batching"]["policy"]["source"].startswith("config.properties")


def test_settings_of_requests_are_in_effect(tuned):
    """Sizes to the byte on every port, bodies as bytes and whole, variables hidden from workers (F68)."""
    assert tuned.predict("named", b"x" * 1000).status_code == 200
    assert tuned.predict("named", b"x" * 1001).status_code == 413
    refused = tuned.management.post(
        "/models", content=b"x" * 1001, headers={"content-type": "application/json"}
    )
    assert (refused.status_code, refused.json()["type"]) == (413, "RequestEntityTooLargeException")

    def big(size):
        return tuned.predict("obey", {"do": "big", "bytes": size})

    assert len(big(2000).content) == 2000
    assert big(2001).status_code == 500
    assert "max_response_size allows 2000" in big(2001).json()["message"]

    output = tuned.predict("tell", {"a": 1}).json()
    environment = output["environment"]
    whole = tuned.inference.post("/v1/models/tell:predict", json={"instances": [1, 2]})

    assert output["types"] == {"body": "bytearray"}
    assert (environment["TS_DECODE_INPUT_REQUEST"], environment["E2E_OTHER_NOT"]) == ("false", "1")
    assert not {"E2E_SECRET_KEY", "E2E_OTHER"} & set(environment)
    assert output["properties"]["limit_max_image_pixels"] is False
    assert whole.json()["values"] == {"body": '{"instances":[1,2]}'}


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
    }
    store = copied(base / "store", model_store, "rows", "tell")
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


def test_switches_and_environment_are_in_effect(other):
    """``all`` loads the archives of the store and nothing else in it. Without the APIs models are neither
    registered nor removed, and no socket listens for metrics; the environment overrides the file.
    """
    names = [model["modelName"] for model in other.management.get("/models").json()["models"]]
    assert names == ["rows", "tell"]
    with pytest.raises(httpx.ConnectError):
        other.metrics.get("/metrics")

    message = "Requested method is not allowed, please refer to API document."
    refusal = {"code": 405, "type": "MethodNotAllowedException", "message": message, "error": message}
    for answer in (other.register("rows.mar"), other.management.delete("/models/rows")):
        assert (answer.status_code, answer.json()) == (405, refusal)
    assert other.management.put("/models/rows?min_worker=1&synchronous=true").status_code == 200
    described = other.describe("rows")
    assert described["jobQueueStatus"]["remainingCapacity"] == 11
    assert described["responseTimeout"] == 5
    assert other.predict("rows", b"x" * 501).status_code == 413


@pytest.fixture
def archive_url(model_store):
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
    """From an allowed address into the store, and removed with its model; the trace headers go along."""
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
