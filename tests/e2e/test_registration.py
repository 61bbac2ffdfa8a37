"""The management API through a real server: texts, shapes and rules (reference 5)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.e2e.serving import wait_until

from modelserver.engine.resources import usable_cpus
from modelserver.tools.archiver import ArchiveConfig, build_archive

DESCRIBED = [
    "modelName",
    "modelVersion",
    "modelUrl",
    "runtime",
    "minWorkers",
    "maxWorkers",
    "batchSize",
    "maxBatchDelay",
    "responseTimeout",
    "startupTimeout",
    "maxRetryTimeoutInSec",
    "clientTimeoutInMills",
    "parallelType",
    "parallelLevel",
    "deviceType",
    "continuousBatching",
    "useJobTicket",
    "useVenv",
    "stateful",
    "sequenceMaxIdleMSec",
    "sequenceTimeoutMSec",
    "maxNumSequence",
    "maxSequenceJobQueueSize",
    "loadedAtStartup",
    "workers",
    "jobQueueStatus",
    "batching",
]
WORKER = ["id", "startTime", "status", "memoryUsage", "pid", "gpu", "gpuUsage"]


@pytest.fixture(autouse=True)
def clean(shared_server):
    """Every test leaves no model behind."""
    yield
    for _ in range(2):
        for model in shared_server.management.get("/models").json()["models"]:
            for version in shared_server.management.get(f"/models/{model['modelName']}/all").json():
                shared_server.management.delete(f"/models/{model['modelName']}/{version['modelVersion']}")
    assert shared_server.workers() == []


def told(answer):
    """Status and text of a success, or status, type and message of an error."""
    body = answer.json()
    if "status" in body:
        assert list(body) == ["status"]
        return answer.status_code, body["status"]
    # What has no route may have been meant for V1 or V2, whose clients read this.
    assert body.pop("error", body["message"]) == body["message"]
    assert list(body) == ["code", "type", "message"]
    assert body["code"] == answer.status_code
    return answer.status_code, body["type"], body["message"]


def test_without_workers(shared_server):
    """Without workers a registration says how to get some."""
    answer = shared_server.management.post("/models?url=echo.mar")

    assert told(answer) == (
        200,
        (
            'Model "echo" Version: 1.0 registered with 0 initial workers. '
            "Use scale workers API to add workers for the model."
        ),
    )
    assert answer.text.endswith("\n}\n")
    assert answer.headers["content-type"] == "application/json"


def test_synchronous(shared_server):
    """A synchronous registration answers when its workers have loaded."""
    answer = shared_server.register("echo.mar", initial_workers=2)

    assert told(answer) == (200, 'Model "echo" Version: 1.0 registered with 2 initial workers')
    assert [worker["status"] for worker in shared_server.describe("echo")["workers"]] == ["READY", "READY"]
    assert len(shared_server.workers()) == 2


def test_asynchronous(shared_server):
    """With synchronous=false the answer comes at once; what is sent meanwhile waits and is served."""
    answer = shared_server.register("slow_start.mar", synchronous=False)

    assert told(answer) == (202, "Processing worker updates...")
    assert shared_server.describe("slow_start")["workers"][0]["status"] == "LOADING"
    assert shared_server.predict("slow_start").text == "loaded"


def test_json_body(shared_server):
    """Parameters may come as JSON, written as loosely as TorchServe's clients do; the
    query does not count then.
    """
    answer = shared_server.management.post(
        "/models?url=none.mar",
        json={"url": "echo.mar", "model_name": "other", "initial_workers": "1", "batch_size": 3},
    )

    assert told(answer) == (200, 'Model "other" Version: 1.0 registered with 1 initial workers')
    described = shared_server.describe("other")
    assert (described["batchSize"], described["maxBatchDelay"]) == (3, 100)


def test_absurd_numbers(shared_server):
    """Numbers beyond all measure are served or refused, and keep the server from nothing (F70)."""
    huge = "9" * 30
    get, put, post = (getattr(shared_server.management, verb) for verb in ("get", "put", "post"))

    assert get(f"/models?limit={huge}&next_page_token={huge}").json() == {"models": []}
    for parameter in ("max_batch_delay", "response_timeout", "startup_timeout", "timeout"):
        assert post(f"/models?url=echo.mar&{parameter}={huge}").status_code == 400, parameter
    largest = 2**31 - 1
    registered = post(
        f"/models?url=echo.mar&max_batch_delay={largest}&response_timeout={largest}"
        f"&startup_timeout={largest}&batch_policy=greedy&initial_workers=1"
    )
    assert registered.status_code == 200
    assert shared_server.predict("echo", b"x").content == b"x"
    assert put(f"/models/echo?min_worker={huge}").status_code == 400
    assert post(f"/models?url=echo.mar&model_name=many&initial_workers={huge}").status_code == 400
    assert post(f"/models?url=echo.mar&model_name=wide&batch_size={huge}").status_code == 400


def test_strange_names(shared_server):
    """A name may hold what it likes as long as a path can ask for it; what quotes it stays
    well-formed (F12, F65).
    """
    name = 'we"ird <script> \\ ü'
    shared_server.registered("echo.mar", model_name=name)

    assert shared_server.predict("we%22ird%20%3Cscript%3E%20%5C%20%C3%BC", b"x").content == b"x"
    assert [model["modelName"] for model in shared_server.management.get("/models").json()["models"]] == [
        name
    ]
    assert 'model_name="we\\"ird <script> \\\\ ü"' in shared_server.metrics.get("/metrics").text
    refused = shared_server.register("echo.mar", model_name="a/b")
    assert told(refused)[:2] == (400, "InvalidModelException")


@pytest.mark.parametrize("body", ["", "{", "[]", "5"])
def test_bad_json_body(shared_server, body):
    """A JSON body that is none is refused with 400."""
    answer = shared_server.management.post(
        "/models", content=body, headers={"content-type": "application/json"}
    )

    assert told(answer)[:2] == (400, "BadRequestException")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", (400, "BadRequestException", "Parameter url is required.")),
        ("url=", (404, "ModelNotFoundException", "empty url")),
        ("url=../x.mar", (404, "ModelNotFoundException", "Relative path is not allowed in url: ../x.mar")),
        (
            "url=http://x.example/../x.mar",
            (404, "ModelNotFoundException", "Relative path is not allowed in url: http://x.example/../x.mar"),
        ),
        ("url=none.mar", (404, "ModelNotFoundException", "Model not found at: none.mar")),
        ("url=echo.mar&runtime=ruby", (400, "BadRequestException", "Invalid RuntimeType value: ruby")),
        (
            "url=file:///etc/passwd",
            (404, "ModelNotFoundException", "Given URL file:///etc/passwd does not match any allowed URL(s)"),
        ),
        (
            "url=http://169.254.169.254/x.mar",
            (
                404,
                "ModelNotFoundException",
                "Given URL http://169.254.169.254/x.mar does not match any allowed URL(s)",
            ),
        ),
        (
            "url=http://127.0.0.1:9/x.mar",
            (
                404,
                "ModelNotFoundException",
                "Given URL http://127.0.0.1:9/x.mar does not match any allowed URL(s)",
            ),
        ),
        ("url=/etc/passwd", (404, "ModelNotFoundException", "Model not found at: /etc/passwd")),
    ],
)
def test_refusals(shared_server, query, expected):
    """Registrations that cannot be are refused in TorchServe's words, and leave nothing behind (F62)."""
    status, kind, message = told(shared_server.management.post(f"/models?{query}"))

    assert (status, kind) == expected[:2]
    # Of addresses the server says besides why they are not allowed.
    assert message.startswith(expected[2])
    assert message == expected[2] or "://" in query
    assert shared_server.management.get("/models").json() == {"models": []}


@pytest.mark.parametrize(
    "query",
    [
        "batch_size=-2",
        "response_timeout=0",
        "startup_timeout=0",
        "max_batch_delay=-5",
        "batch_policy=clever",
        "max_batch_size=0",
        "max_latency=0",
        "timeout=0",
        "split_instances=maybe",
        "batch_size=2&max_batch_size=3",
    ],
)
def test_values_out_of_range(shared_server, query):
    """Values that make no sense are refused with 400 and the name of the parameter."""
    status, _, message = told(shared_server.management.post(f"/models?url=echo.mar&{query}"))

    assert status == 400
    assert query.partition("=")[0] in message


def test_numbers_that_are_none(shared_server):
    """A number that is none takes its default, with a warning in the log (design, section 9)."""
    answer = shared_server.management.post("/models?url=echo.mar&batch_size=many&initial_workers=x")

    assert answer.status_code == 200
    assert shared_server.describe("echo")["batchSize"] == 1
    wait_until(lambda: "batch_size='many'" in shared_server.home.log(), "the warning")


def test_a_batch_size_of_zero(shared_server, model_store, tmp_path):
    """It is ignored, at a registration, a change and a replacement alike: answer and log say so, and
    describe shows the batch size that counts and where it is from.
    """
    config = tmp_path / "model-config.yaml"
    config.write_text("batchSize: 4\n")
    echo = str(Path(__file__).parent / "model_code" / "echo.py")
    build_archive(ArchiveConfig("fours", echo, "1.0", export_path=model_store, config_file=config))
    warning = "The parameter batch_size=0 is not a valid batch size and is ignored"

    def batch_size(name):
        described = shared_server.describe(name)
        return described["batchSize"], described["batching"]["batchSize"]

    for url, counts in (("echo.mar", (1, "default")), ("fours.mar", (4, "model-config.yaml"))):
        answer = shared_server.register(url, batch_size=0)
        assert (answer.status_code, answer.json()["warnings"]) == (200, [warning])
        assert batch_size(url.removesuffix(".mar")) == (
            counts[0],
            dict(zip(("value", "source"), counts, strict=True)),
        )
    put = shared_server.management.put
    alone = put("/models/fours?batch_size=0")
    changed = put("/models/fours?batch_size=0&max_batch_delay=5")
    replaced = put("/models/echo?url=fours.mar&batch_size=0&synchronous=true")

    assert (alone.status_code, alone.json()["message"]) == (400, f"There is nothing to change: {warning}.")
    assert (changed.status_code, changed.json()["warnings"]) == (200, [warning])
    assert (replaced.status_code, replaced.json()["warnings"]) == (200, [warning])
    assert [batch_size(name)[0] for name in ("fours", "echo")] == [4, 4]
    wait_until(
        lambda: shared_server.home.log().count(f"[WARN ] MainThread modelserver.api - {warning}") == 5,
        "each is in the log",
    )


@pytest.mark.parametrize(
    ("handler", "instead"),
    [
        (
            "vllm_handler",
            "write a handler for language models (docs/handlers.md: streaming, asyncCommunication)",
        ),
        pytest.param("trt_llm_handler", "write a handler for language models", marks=pytest.mark.slow),
        pytest.param(
            "dali_image_classifier",
            "image_classifier decodes on the GPU with `handler: {decode: nvjpeg}`",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["vllm", "trt_llm", "dali"],
)
def test_a_handler_that_only_torchserve_has(shared_server, model_store, handler, instead):
    """The registration, or the scaling of one without workers, says what there is and what to use instead."""
    build_archive(ArchiveConfig(f"only_{handler}", handler, "1.0", export_path=model_store))
    refused = told(shared_server.register(f"only_{handler}.mar"))
    assert told(shared_server.register(f"only_{handler}.mar", initial_workers=0))[0] == 200
    unscaled = told(shared_server.management.put(f"/models/only_{handler}?min_worker=1&synchronous=true"))

    for status, kind, message in (refused, unscaled):
        assert (status, kind) == (500, "InternalServerException")
        assert f"'{handler}' is neither in the archive nor a built-in handler (base_handler, " in message
        assert f"Instead of TorchServe's: {instead}" in message


def test_twice(shared_server):
    """The same name and version twice is a conflict, and the first one goes on (F53)."""
    shared_server.registered("echo.mar")

    assert told(shared_server.register("echo.mar")) == (
        409,
        "ConflictStatusException",
        "Model version 1.0 is already registered for model echo",
    )
    assert shared_server.predict("echo", b"x").content == b"x"


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("missing_module.mar", "No module named 'surely_not_installed'"),
        ("no_weights.mar", "No such file or directory: 'weights.bin'"),
        ("syntax.mar", "SyntaxError"),
    ],
)
def test_load_failure(shared_server, url, cause):
    """A handler that cannot load fails the registration, with the cause, and is rolled back (F40)."""
    name = url.removesuffix(".mar")
    status, kind, message = told(shared_server.register(url))

    assert (status, kind) == (500, "InternalServerException")
    assert message.startswith(f"Failed to start workers for model {name} version: 1.0")
    assert cause in message
    assert shared_server.management.get(f"/models/{name}").status_code == 404
    assert shared_server.workers() == []


def test_last_output_in_the_report(shared_server):
    """What a handler printed before it failed is in the registration's answer."""
    _, _, message = told(shared_server.register("no_weights.mar"))

    assert "about to open the weights" in message
    assert "no_weights.py" in message


def test_asynchronous_load_failure(shared_server):
    """An asynchronous registration that fails for good leaves the model listed as FAILED,
    with the cause (F40).
    """
    assert shared_server.register("missing_module.mar", synchronous=False).status_code == 202
    worker = wait_until(
        lambda: next(
            (w for w in shared_server.describe("missing_module")["workers"] if w["status"] == "FAILED"), None
        ),
        "the worker is given up",
    )

    assert "surely_not_installed" in worker["failure"]
    assert shared_server.predict("missing_module").status_code == 503
    assert shared_server.inference.get("/ping").status_code == 500
    assert shared_server.inference.get("/ping").json() == {"status": "Unhealthy"}


def test_wrong_handler(shared_server):
    """A handler that is not in the archive is reported by name; without workers it is accepted."""
    assert "nowhere" in told(shared_server.register("echo.mar", handler="nowhere.py"))[2]
    assert told(shared_server.register("echo.mar", handler="nowhere.py", initial_workers=0))[0] == 200


def test_describe(shared_server):
    """A description has TorchServe's fields in TorchServe's order, and the batch settings
    with their sources.
    """
    shared_server.registered(
        "echo.mar", batch_size=4, max_batch_delay=20, response_timeout=7, startup_timeout=9
    )
    text = shared_server.management.get("/models/echo").text
    described = shared_server.describe("echo")
    worker = described["workers"][0]

    assert text.startswith('[\n  {\n    "modelName": "echo",\n')
    assert list(described) == DESCRIBED
    assert {name: described[name] for name in DESCRIBED[:12]} == {
        "modelName": "echo",
        "modelVersion": "1.0",
        "modelUrl": "echo.mar",
        "runtime": "python",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 4,
        "maxBatchDelay": 20,
        "responseTimeout": 7,
        "startupTimeout": 9,
        "maxRetryTimeoutInSec": 300,
        "clientTimeoutInMills": 0,
    }
    assert list(worker) == WORKER
    assert worker["pid"] == shared_server.workers()[0].pid
    assert worker["memoryUsage"] > 1_000_000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", worker["startTime"])
    assert int(worker["id"]) >= 9000
    assert described["jobQueueStatus"] == {"remainingCapacity": 100, "pendingRequests": 0}
    assert described["batching"]["policy"] == {"value": "window", "source": "register parameter"}
    assert described["batching"]["batchSize"] == {"value": 4, "source": "register parameter"}
    assert described["batching"]["jobQueueSize"] == {"value": 100, "source": "default"}


def test_versions(shared_server):
    """The first version stays the default until it is told otherwise; the default cannot
    be removed before others.
    """
    management = shared_server.management
    shared_server.registered("echo.mar").registered("echo-v2.mar")

    assert shared_server.describe("echo")["modelVersion"] == "1.0"
    assert management.get("/models/echo/2.0").json()[0]["modelUrl"] == "echo-v2.mar"
    assert {model["modelVersion"] for model in management.get("/models/echo/all").json()} == {"1.0", "2.0"}

    assert told(management.delete("/models/echo")) == (
        403,
        "InvalidModelVersionException",
        "Cannot remove default version for model echo",
    )
    assert told(management.put("/models/echo/2.0/set-default")) == (
        200,
        'Default version successfully updated for model "echo" to "2.0"',
    )
    assert shared_server.describe("echo")["modelVersion"] == "2.0"
    assert told(management.delete("/models/echo/1.0")) == (200, 'Model "echo" unregistered')
    assert told(management.delete("/models/echo")) == (200, 'Model "echo" unregistered')
    assert management.get("/models/echo").status_code == 404


NO_MODEL = "Model not found: none. There is: echo"
NO_VERSION = "Model version: 9 does not exist for model: echo. There is: 1.0"


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/models/none", (404, "ModelNotFoundException", NO_MODEL)),
        ("GET", "/models/none/all", (404, "ModelNotFoundException", NO_MODEL)),
        (
            "GET",
            "/models/echo/9",
            (404, "ModelVersionNotFoundException", NO_VERSION),
        ),
        ("DELETE", "/models/none", (404, "ModelNotFoundException", NO_MODEL)),
        (
            "DELETE",
            "/models/echo/9",
            (404, "ModelVersionNotFoundException", NO_VERSION),
        ),
        ("PUT", "/models/none", (404, "ModelNotFoundException", NO_MODEL)),
        (
            "PUT",
            "/models/echo/9",
            (404, "ModelVersionNotFoundException", NO_VERSION),
        ),
        (
            "PUT",
            "/models/none/1.0/set-default",
            (404, "ModelNotFoundException", NO_MODEL),
        ),
        (
            "PUT",
            "/models/echo/9/set-default",
            (404, "ModelVersionNotFoundException", "Model version 9 does not exist for model echo"),
        ),
        (
            "PUT",
            "/models/none?min_worker=3&max_worker=2",
            (400, "BadRequestException", "max_worker cannot be less than min_worker."),
        ),
        (
            "PUT",
            "/models/echo?max_worker=-1",
            (400, "BadRequestException", "max_worker cannot be less than min_worker."),
        ),
        (
            "PATCH",
            "/models/echo",
            (
                405,
                "MethodNotAllowedException",
                "Requested method is not allowed, please refer to API document.",
            ),
        ),
        (
            "GET",
            "/nothing",
            (
                404,
                "ResourceNotFoundException",
                "Requested resource is not found, please refer to API document.",
            ),
        ),
    ],
)
def test_errors(shared_server, method, path, expected):
    """Unknown names, versions, methods and impossible scalings are told in TorchServe's
    words (reference 5), and which names and versions there are.
    """
    shared_server.registered("echo.mar", initial_workers=0)

    assert told(shared_server.management.request(method, path)) == expected


def test_list(shared_server):
    """Models are listed by name in pages; a page that ends exactly at the end still names a next one."""
    for name in ("c", "a", "b"):
        shared_server.registered("echo.mar", model_name=name, initial_workers=0)
    get = shared_server.management.get

    def names(answer):
        return [model["modelName"] for model in answer.json()["models"]]

    assert get("/models").json() == {
        "models": [{"modelName": name, "modelUrl": "echo.mar"} for name in ("a", "b", "c")]
    }
    first = get("/models?limit=2")
    assert list(first.json()) == ["nextPageToken", "models"]
    assert (first.json()["nextPageToken"], names(first)) == ("2", ["a", "b"])
    second = get("/models?limit=2&next_page_token=2")
    assert ("nextPageToken" in second.json(), names(second)) == (False, ["c"])
    exact = get("/models?limit=3")
    assert (exact.json()["nextPageToken"], names(exact)) == ("3", ["a", "b", "c"])
    assert get("/models?next_page_token=3").json() == {"models": []}
    assert get("/models?next_page_token=99&limit=-1").json() == {"models": []}
    assert names(get("/models?limit=1000&next_page_token=-5")) == ["a", "b", "c"]


def test_scale(shared_server):
    """Workers are added and taken away, synchronously or not; ids are never used twice."""
    shared_server.registered("echo.mar")
    put = shared_server.management.put
    first = shared_server.describe("echo")["workers"][0]

    assert told(put("/models/echo?min_worker=2&synchronous=true")) == (
        200,
        "Workers scaled to 2 for model: echo",
    )
    ids = [worker["id"] for worker in shared_server.describe("echo")["workers"]]
    assert ids[0] == first["id"]
    assert len(shared_server.workers()) == 2

    answer = put("/models/echo/1.0?min_worker=1&synchronous=true")
    assert told(answer) == (200, "Workers scaled to 1 for model: echo, version: 1.0")
    assert [worker["id"] for worker in shared_server.describe("echo")["workers"]] == [first["id"]]
    wait_until(lambda: len(shared_server.workers()) == 1, "the newest worker ends")

    assert told(put("/models/echo?min_worker=2")) == (202, "Processing worker updates...")
    shared_server.wait_ready("echo", 2)
    assert not set(ids[1:]) & {worker["id"] for worker in shared_server.describe("echo")["workers"]}
    assert shared_server.describe("echo")["maxWorkers"] == 2


def test_scale_between_the_bounds(shared_server):
    """Between min_worker and max_worker nothing happens."""
    shared_server.registered("echo.mar", initial_workers=2)
    pids = {process.pid for process in shared_server.workers()}

    assert (
        shared_server.management.put("/models/echo?min_worker=1&max_worker=3&synchronous=true").status_code
        == 200
    )
    assert {process.pid for process in shared_server.workers()} == pids


def test_scale_to_nothing(shared_server):
    """Scaled to 0, a model stays known and its requests are refused; scaled up again they are served."""
    shared_server.registered("echo.mar")
    put = shared_server.management.put

    assert told(put("/models/echo?min_worker=0&synchronous=true")) == (
        200,
        "Workers scaled to 0 for model: echo",
    )
    assert shared_server.describe("echo")["workers"] == []
    assert shared_server.predict("echo", b"x").status_code == 503
    assert shared_server.inference.get("/ping").status_code == 200
    wait_until(lambda: not shared_server.workers(), "the worker ends")
    assert put("/models/echo?min_worker=1&synchronous=true").status_code == 200
    assert shared_server.predict("echo", b"x").content == b"x"


def test_scale_of_a_handler_that_cannot_load(shared_server):
    """A failed synchronous scaling says why and leaves the model registered."""
    shared_server.registered("missing_module.mar", initial_workers=0)
    status, kind, message = told(
        shared_server.management.put("/models/missing_module?min_worker=1&synchronous=true")
    )

    assert (status, kind) == (500, "InternalServerException")
    assert message.startswith("Failed to start workers for model missing_module version: null")
    assert "surely_not_installed" in message
    assert shared_server.describe("missing_module")["workers"][0]["status"] == "FAILED"


def test_unregister_removes_files(shared_server):
    """An unregistered model leaves neither workers nor unpacked files."""
    shared_server.registered("tell.mar")
    directory = shared_server.predict("tell").json()["directory"]
    shared_server.unregister("tell")

    assert shared_server.workers() == []
    assert not Path(directory).exists()
    shared_server.registered("tell.mar")


def test_kserve_readiness(shared_server):
    """The management port answers KServe's readiness question (reference 5.9)."""
    shared_server.registered("echo.mar")

    assert shared_server.management.get("/v1/models/echo").json() == {"name": "echo", "ready": True}
    assert shared_server.management.get("/v1/models/none").status_code == 404


def test_folder_and_descriptions(shared_server):
    """OPTIONS on a model gives the description of its management."""
    shared_server.registered("echo.mar", initial_workers=0)

    assert "paths" in shared_server.management.request("OPTIONS", "/models/echo").json()
    assert shared_server.management.request("OPTIONS", "/models/none").status_code == 404
    assert "/models" in shared_server.management.get("/openapi.json").json()["paths"]


def test_web_pages_register_nothing(start_server):
    """A page of another site in a browser on this machine is refused; the server's own page is not (F65)."""
    server = start_server()
    foreign = server.management.post(
        "/models", params={"url": "echo.mar"}, headers={"Origin": "http://evil.example"}
    )
    own = f"http://{server.management.base_url.netloc.decode()}"

    assert foreign.status_code == 403
    assert foreign.json()["type"] == "ForeignOriginException"
    assert server.management.get("/models").json()["models"] == []
    assert server.management.get("/models", headers={"Origin": "http://evil.example"}).status_code == 200
    answer = server.management.post("/models", params={"url": "echo.mar"}, headers={"Origin": own})
    assert answer.status_code == 200


def test_foreign_names_read_nothing(start_server):
    """A page whose name was made to lead here reads neither models nor metrics; probes and names that a
    setting allows are answered, and so are predictions under any name.
    """
    server = start_server(management_hosts="models.lan, other.lan")
    server.registered("echo.mar")
    evil, allowed = {"Host": "evil.example:8081"}, {"Host": "models.lan:8081"}
    for path in ("/models", "/models/echo", "/workflows", "/logging", "/v1/models/echo"):
        answer = server.management.get(path, headers=evil)
        assert (answer.status_code, answer.json()["type"]) == (403, "ForeignHostException")
        assert "management_hosts can allow a name" in answer.json()["message"]
        assert server.management.get(path, headers=allowed).status_code == 200
    assert server.inference.post("/v2/repository/index", headers=evil).status_code == 403
    assert server.metrics.get("/metrics", headers=evil).status_code == 403
    assert server.inference.get("/ping", headers=evil).status_code == 200
    assert server.management.get("/livez", headers=evil).status_code == 200
    assert server.inference.post("/predictions/echo", content=b"x", headers=evil).status_code == 200


def test_threads_of_a_models_own(shared_server, model_store, tmp_path):
    """A parameter or a key of the archive says how many threads a worker has; else the cores are shared."""
    handler = tmp_path / "threads.py"
    handler.write_text(
        "import os, torch\n"
        "def handle(data, context):\n"
        "    told = [int(os.environ['OMP_NUM_THREADS']), torch.get_num_threads()]\n"
        "    return data and [told for _ in data]\n"
    )
    config = tmp_path / "model-config.yaml"
    config.write_text("workerThreads: 1\n")
    build_archive(ArchiveConfig("threads", str(handler), "1.0", export_path=model_store, config_file=config))

    shared_server.registered("threads.mar")
    assert shared_server.predict("threads").json() == [1, 1]
    assert shared_server.describe("threads")["workerThreads"] == 1
    shared_server.unregister("threads")
    shared_server.registered("threads.mar", worker_threads=0)
    assert shared_server.predict("threads").json()[0] == usable_cpus()
    assert "workerThreads" not in shared_server.describe("threads")
    refused = shared_server.register("threads.mar", model_name="many", worker_threads=4096)
    assert (refused.status_code, "at most 1024" in refused.text) == (400, True)
