"""The management API through a real server: texts, shapes and rules (reference 5)."""

import re
from pathlib import Path

import pytest
from tests.e2e.serving import archived, wait_until

_DESCRIBED = """
    modelName modelVersion modelUrl runtime minWorkers maxWorkers batchSize maxBatchDelay responseTimeout
    startupTimeout maxRetryTimeoutInSec clientTimeoutInMills parallelType parallelLevel deviceType
    continuousBatching useJobTicket useVenv stateful sequenceMaxIdleMSec sequenceTimeoutMSec
    maxNumSequence maxSequenceJobQueueSize loadedAtStartup workers jobQueueStatus batching
"""
DESCRIBED = _DESCRIBED.split()
WORKER = ["id", "startTime", "status", "memoryUsage", "pid", "gpu", "gpuUsage"]


@pytest.fixture(autouse=True)
def clean(shared_server):
    yield
    for _ in range(2):
        for model in shared_server.management.get("/models").json()["models"]:
            for version in shared_server.management.get(f"/models/{model['modelName']}/all").json():
                shared_server.management.delete(f"/models/{model['modelName']}/{version['modelVersion']}")
    assert shared_server.workers() == []


def outcome(response):
    """Status and text of a success, or status, type and message of an error."""
    body = response.json()
    if "status" in body:
        assert list(body) == ["status"]
        return response.status_code, body["status"]
    # A request without a route may be one of V1 or V2, whose clients read this field.
    assert body.pop("error", body["message"]) == body["message"]
    assert list(body) == ["code", "type", "message"]
    assert body["code"] == response.status_code
    return response.status_code, body["type"], body["message"]


def test_registration_says_how_it_went(shared_server):
    """Without workers it says how to get some, a synchronous one returns when its workers have loaded, an
    asynchronous one at once: what is sent meanwhile waits and is served. A name is taken once (F53).
    """
    without = shared_server.register("echo.mar", model_name="none", initial_workers=None)
    loaded = shared_server.register("echo.mar", initial_workers=2)
    statuses = [worker["status"] for worker in shared_server.describe("echo")["workers"]]
    again = shared_server.register("echo.mar")
    loading = shared_server.register("slow_start.mar", synchronous=False)
    status = shared_server.describe("slow_start")["workers"][0]["status"]

    text = 'Model "none" Version: 1.0 registered with 0 initial workers. '
    assert outcome(without) == (200, f"{text}Use scale workers API to add workers for the model.")
    assert without.text.endswith("\n}\n")
    assert without.headers["content-type"] == "application/json"
    assert outcome(loaded) == (200, 'Model "echo" Version: 1.0 registered with 2 initial workers')
    assert statuses == ["READY", "READY"]
    conflict = "Model version 1.0 is already registered for model echo"
    assert outcome(again) == (409, "ConflictStatusException", conflict)
    assert (outcome(loading), status) == ((202, "Processing worker updates..."), "LOADING")
    assert shared_server.predict("slow_start").text == "loaded"


def test_json_body_replaces_the_query(shared_server):
    """Parameters may come as JSON, written as loosely as TorchServe's clients do."""
    response = shared_server.management.post(
        "/models?url=none.mar",
        json={"url": "echo.mar", "model_name": "other", "initial_workers": "1", "batch_size": 3},
    )

    assert outcome(response) == (200, 'Model "other" Version: 1.0 registered with 1 initial workers')
    described = shared_server.describe("other")
    assert (described["batchSize"], described["maxBatchDelay"]) == (3, 100)


def test_absurd_numbers_are_served_or_refused(shared_server):
    """Numbers beyond all measure keep the server from nothing (F70)."""
    huge, largest = "9" * 30, 2**31 - 1
    get, put, post = (getattr(shared_server.management, verb) for verb in ("get", "put", "post"))

    assert get(f"/models?limit={huge}&next_page_token={huge}").json() == {"models": []}
    for parameter in ("max_batch_delay", "response_timeout", "startup_timeout", "timeout", "batch_size"):
        assert post(f"/models?url=echo.mar&{parameter}={huge}").status_code == 400, parameter
    assert post(f"/models?url=echo.mar&initial_workers={huge}").status_code == 400
    shared_server.registered(
        "echo.mar",
        batch_policy="greedy",
        **dict.fromkeys(("max_batch_delay", "response_timeout", "startup_timeout"), largest),
    )
    assert shared_server.predict("echo", b"x").content == b"x"
    assert put(f"/models/echo?min_worker={huge}").status_code == 400


def test_strange_names_are_served(shared_server):
    """Any name that a path can have; what quotes it stays well-formed (F12, F65)."""
    name = 'we"ird <script> \\ ü'
    shared_server.registered("echo.mar", model_name=name)
    names = [model["modelName"] for model in shared_server.management.get("/models").json()["models"]]

    assert shared_server.predict("we%22ird%20%3Cscript%3E%20%5C%20%C3%BC", b"x").content == b"x"
    assert names == [name]
    assert 'model_name="we\\"ird <script> \\\\ ü"' in shared_server.metrics.get("/metrics").text


BAD, NO_MODEL, NO_VERSION = "BadRequestException", "ModelNotFoundException", "ModelVersionNotFoundException"
BOUNDS = "max_worker cannot be less than min_worker."
NOT_ALLOWED = "does not match any allowed URL(s)"
LIST = "please refer to API document."
ABSENT = "does not exist for model"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "message"),
    [
        ("POST", "/models", 400, BAD, "Parameter url is required."),
        ("POST", "/models?url=", 404, NO_MODEL, "empty url"),
        ("POST", "/models?url=../x.mar", 404, NO_MODEL, "Relative path is not allowed in url: ../x.mar"),
        ("POST", "/models?url=none.mar", 404, NO_MODEL, "Model not found at: none.mar"),
        ("POST", "/models?url=/etc/passwd", 404, NO_MODEL, "Model not found at: /etc/passwd"),
        ("POST", "/models?url=file:///etc/passwd", 404, NO_MODEL, NOT_ALLOWED),
        ("POST", "/models?url=http://169.254.169.254/x.mar", 404, NO_MODEL, NOT_ALLOWED),
        ("POST", "/models?url=http://127.0.0.1:9/x.mar", 404, NO_MODEL, NOT_ALLOWED),
        ("POST", "/models?url=echo.mar&runtime=ruby", 400, BAD, "Invalid RuntimeType value: ruby"),
        ("POST", "/models?url=echo.mar&batch_size=-2", 400, None, "batch_size"),
        ("POST", "/models?url=echo.mar&model_name=a/b", 400, "InvalidModelException", ""),
        ("GET", "/models/none", 404, NO_MODEL, "Model not found: none. There is: echo"),
        ("DELETE", "/models/echo/9", 404, NO_VERSION, f"Model version: 9 {ABSENT}: echo. There is: 1.0"),
        ("PUT", "/models/echo/9/set-default", 404, NO_VERSION, f"Model version 9 {ABSENT} echo"),
        ("PUT", "/models/none?min_worker=3&max_worker=2", 400, BAD, BOUNDS),
        ("PUT", "/models/echo?max_worker=-1", 400, BAD, BOUNDS),
        ("PATCH", "/models/echo", 405, "MethodNotAllowedException", f"method is not allowed, {LIST}"),
        ("GET", "/nothing", 404, "ResourceNotFoundException", f"resource is not found, {LIST}"),
    ],
)
def test_requests_that_cannot_be_are_refused(shared_server, method, path, status, kind, message):
    """The refusal is in TorchServe's words (reference 5), and leaves nothing behind (F62)."""
    shared_server.registered("echo.mar", initial_workers=0)
    refused = outcome(shared_server.management.request(method, path))

    assert refused[0] == status
    assert kind in (None, refused[1])
    assert message in refused[2]
    assert [m["modelName"] for m in shared_server.management.get("/models").json()["models"]] == ["echo"]


def test_unusable_numbers_are_ignored_with_a_warning(shared_server, model_store, tmp_path):
    """A batch size of zero counts neither in a registration nor in a change or a replacement: response and
    log say so, and describe shows the batch size that counts and where it is from. What is no number at all
    takes its default (design, section 9).
    """
    config = tmp_path / "model-config.yaml"
    config.write_text("batchSize: 4\n")
    source = (Path(__file__).parent / "model_code" / "echo.py").read_text()
    archived(model_store, "fours", source, config_file=config)
    warning = "The parameter batch_size=0 is not a valid batch size and is ignored"
    put = shared_server.management.put
    registered = shared_server.register("fours.mar", batch_size=0)
    described = shared_server.describe("fours")["batching"]["batchSize"]
    alone = put("/models/fours?batch_size=0")
    changed = put("/models/fours?batch_size=0&max_batch_delay=5")
    shared_server.registered("echo.mar", batch_size="many", initial_workers="x")
    number = shared_server.describe("echo")["batchSize"]
    replaced = put("/models/echo?url=fours.mar&batch_size=0&synchronous=true")

    assert [(each.status_code, each.json()["warnings"]) for each in (registered, changed, replaced)] == [
        (200, [warning])
    ] * 3
    assert (alone.status_code, alone.json()["message"]) == (400, f"There is nothing to change: {warning}.")
    assert described == {"value": 4, "source": "model-config.yaml"}
    assert (number, shared_server.describe("echo")["batchSize"]) == (1, 4)
    wait_until(
        lambda: shared_server.home.log().count(f"[WARN ] MainThread modelserver.api - {warning}") == 4,
        "each is in the log",
    )
    shared_server.home.wait_for_log("batch_size='many'")


def test_description_has_torchserves_fields(shared_server):
    shared_server.registered(
        "echo.mar", batch_size=4, max_batch_delay=20, response_timeout=7, startup_timeout=9
    )
    text = shared_server.management.get("/models/echo").text
    described = shared_server.describe("echo")
    worker = described["workers"][0]

    assert text.startswith('[\n  {\n    "modelName": "echo",\n')
    assert list(described) == DESCRIBED
    values = ["echo", "1.0", "echo.mar", "python", 1, 1, 4, 20, 7, 9, 300, 0]
    assert [described[name] for name in DESCRIBED[:12]] == values
    assert list(worker) == WORKER
    assert worker["pid"] == shared_server.workers()[0].pid
    assert worker["memoryUsage"] > 1_000_000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", worker["startTime"])
    assert int(worker["id"]) >= 9000
    assert described["jobQueueStatus"] == {"remainingCapacity": 100, "pendingRequests": 0}
    assert described["batching"]["policy"] == {"value": "window", "source": "register parameter"}
    assert described["batching"]["jobQueueSize"] == {"value": 100, "source": "default"}


def test_workers_are_scaled(shared_server):
    """Workers are added and taken away, synchronously or not; between the bounds nothing happens, ids are
    never used twice, and without workers requests are refused.
    """
    shared_server.registered("tell.mar")
    put = shared_server.management.put
    first = shared_server.describe("tell")["workers"][0]["id"]
    directory = shared_server.predict("tell").json()["directory"]

    def ids():
        return [worker["id"] for worker in shared_server.describe("tell")["workers"]]

    scaled = put("/models/tell?min_worker=2&synchronous=true")
    assert outcome(scaled) == (200, "Workers scaled to 2 for model: tell")
    before = ids()
    assert put("/models/tell?min_worker=1&max_worker=3&synchronous=true").status_code == 200
    assert (before[0], len(before), ids()) == (first, 2, before)
    scaled = put("/models/tell/1.0?min_worker=1&synchronous=true")
    assert outcome(scaled) == (200, "Workers scaled to 1 for model: tell, version: 1.0")
    assert ids() == [first]
    scaled = put("/models/tell?min_worker=0&synchronous=true")
    assert outcome(scaled) == (200, "Workers scaled to 0 for model: tell")
    assert shared_server.predict("tell").status_code == 503
    assert shared_server.inference.get("/ping").status_code == 200
    wait_until(lambda: not shared_server.workers(), "the workers end")
    assert outcome(put("/models/tell?min_worker=2")) == (202, "Processing worker updates...")
    shared_server.wait_ready("tell", 2)
    assert not set(before) & set(ids())
    assert shared_server.predict("tell").status_code == 200
    shared_server.unregister("tell")
    assert not Path(directory).exists()


def test_web_pages_of_others_are_refused(start_server):
    """A page of another site registers nothing, and one whose name was made to lead here reads neither models
    nor metrics (F65). The server's own page, probes, predictions and names that a setting allows pass.
    """
    server = start_server(management_hosts="models.lan, other.lan")
    management, evil, allowed = server.management, {"Host": "evil.example:81"}, {"Host": "models.lan:81"}
    url, foreign = {"url": "echo.mar"}, {"Origin": "http://evil.example"}
    refused = management.post("/models", params=url, headers=foreign)
    own = {"Origin": f"http://{management.base_url.netloc.decode()}"}

    assert (refused.status_code, refused.json()["type"]) == (403, "ForeignOriginException")
    assert management.get("/models", headers=foreign).json()["models"] == []
    assert management.post("/models", params=url, headers=own).status_code == 200
    for path in ("/models", "/models/echo", "/workflows", "/logging", "/v1/models/echo"):
        response = management.get(path, headers=evil)
        assert (response.status_code, response.json()["type"]) == (403, "ForeignHostException")
        assert "management_hosts can allow a name" in response.json()["message"]
        assert management.get(path, headers=allowed).status_code in {200, 503}
    assert server.inference.post("/v2/repository/index", headers=evil).status_code == 403
    assert server.metrics.get("/metrics", headers=evil).status_code == 403
    assert server.inference.get("/ping", headers=evil).status_code == 200
    assert management.get("/livez", headers=evil).status_code == 200
    assert server.predict("echo", b"x", headers=evil).status_code == 503
