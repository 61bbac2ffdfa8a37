import gzip
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.serving import MODEL_CODE, ROOT, Home, Server, archived, serving, wait_until, workflow

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "workflow"

FUNCTIONS = """
import os
import time


def text(value):
    return value if isinstance(value, str) else bytes(value).decode()


def start(data, context):
    return data and [text(row.get("body") or b"") for row in data]


def left(data, context):
    return data and [met("left", row) for row in data]


def right(data, context):
    return data and [met("right", row) for row in data]


def met(name, row):
    # Both branches leave a file in the folder of the request, so each knows when the other has begun.
    folder = text(row["body"])
    open(os.path.join(folder, name), "w").close()
    until = time.monotonic() + 30
    while len(os.listdir(folder)) < 2:
        if time.monotonic() > until:
            raise TimeoutError(name)
        time.sleep(0.01)
    return name


def join(data, context):
    return data and [{key: text(row[key]) for key in row} | {"pid": os.getpid()} for row in data]


def told(data, context):
    return data and [
        {name: context.get_request_header(index, name) for name in ("traceparent", "x-own")}
        | {"id": context.get_request_id(index), "pid": os.getpid()}
        for index in range(len(data))
    ]


def waits(data, context):
    if data:
        open(WAITED, "a").write("begun;")
        while not os.path.exists(text(data[0]["body"])):
            time.sleep(0.01)
        return ["waited"]
"""
SPECIFICATIONS = {
    "branches": "dag:\n  start: [left, right]\n  left: [join]\n  right: [join]\n",
    "parked": "models: {load: on-demand, timeout-ms: 60000}\n"
    "dag:\n  start: [left, right]\n  left: [join]\n  right: [join]\n",
    "told": "dag:\n  start: [told]\n",
    "waits": "models: {retry-attempts: 0, timeout-ms: 30000}\ndag:\n  waits: [join]\n",
    "pairs": "models:\n  retry-attempts: 0\n  timeout-ms: 30000\n  batch-size: 2\n  max-batch-delay: 10000\n"
    "  rows: {url: rows.mar}\ndag:\n  rows: []\n",
}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workflows")
    for name in ("kind", "mood"):
        archived(folder, name, EXAMPLE / f"{name}.py")
    workflow(folder, "pets", EXAMPLE)
    parts = tmp_path_factory.mktemp("parts")
    archived(folder, "rows", MODEL_CODE / "rows.py", config="batchPolicy: window\n")
    (parts / "functions.py").write_text(f"WAITED = {str(folder / 'waited.txt')!r}\n{FUNCTIONS}")
    for name, text in SPECIFICATIONS.items():
        (parts / f"{name}.yaml").write_text(text)
        workflow(folder, name, parts, f"{name}.yaml")
    return folder


@pytest.fixture(scope="module")
def server(store, tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("server"))
    with serving(Server(home, store, settings={"frontend_processes": 2})) as running:
        yield running


def enter(server, url, **parameters):
    return server.management.post("/workflows", params={"url": url, **parameters})


def entered(server, name):
    answer = enter(server, f"{name}.war")
    assert answer.status_code == 200, answer.text


def ask(server, name, body="", **headers):
    """Sends a request to a workflow; underscores of header names are dashes."""
    values = {key.replace("_", "-"): value for key, value in headers.items()}
    return server.inference.post(f"/wfpredict/{name}", content=body, headers=values)


def leave(server, name):
    assert server.management.delete(f"/workflows/{name}").status_code == 200


def models(server):
    return [model["modelName"] for model in server.management.get("/models").json()["models"]]


def test_example_of_the_page_is_served(server):
    """A function, two models at once, a function that joins their results; all of it can be removed."""
    entered(server, "pets")
    answer = ask(server, "pets", "What a lovely little dog")

    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {"kind": "dog", "liking": 0.2}
    packed = {"content": gzip.compress(b"a cat"), "headers": {"content-encoding": "gzip"}}
    assert server.inference.post("/wfpredict/pets", **packed).json() == {"kind": "cat", "liking": 0.0}
    assert server.metric("ts_inference_requests_total", model_name="pets__mood", model_version="default") == 2
    assert models(server) == ["pets__clean", "pets__join", "pets__kind", "pets__mood"]
    (described,) = server.management.get("/models/pets__kind").json()
    assert (described["batchSize"], described["maxBatchDelay"], described["maxWorkers"]) == (8, 10, 2)
    leave(server, "pets")
    assert models(server) == []
    assert ask(server, "pets").json()["type"] == "WorkflowNotFoundException"


def test_branches_run_at_once_and_in_workers(server, tmp_path):
    """Two branches that wait for each other end, in processes other than the server's."""
    entered(server, "branches")
    answer = ask(server, "branches", str(tmp_path))

    assert {**answer.json(), "pid": 0} == {"left": "left", "right": "right", "pid": 0}
    assert answer.json()["pid"] in {process.pid for process in server.workers()}
    leave(server, "branches")


def test_nodes_are_loaded_on_demand(server, tmp_path):
    """Requests wait for each node, also after nodes were parked."""
    entered(server, "parked")
    assert len(server.workers()) == 0
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda n: ask(server, "parked", str(tmp_path)), range(3)))
    assert server.management.post("/models/parked__join", params={"action": "park"}).status_code == 200
    answers.append(ask(server, "parked", str(tmp_path)))

    assert [{**answer.json(), "pid": 0} for answer in answers] == [
        {"left": "left", "right": "right", "pid": 0}
    ] * 4
    leave(server, "parked")


def test_a_row_that_fails_fails_alone(server):
    """Another request in the same batch of a node gets its answer."""
    entered(server, "pairs")
    with ThreadPoolExecutor(2) as pool:
        bad, good = pool.map(lambda body: ask(server, "pairs", body, **JSON), ('{"raise": "no"}', "7"))

    assert (good.status_code, good.text) == (200, "14")
    assert (bad.status_code, bad.json()["message"][:20]) == (500, "Error executing rows")
    of_node = {"model_name": "pairs__rows", "model_version": "1.0"}
    assert server.metric("modelserver_batch_size_sum", **of_node) == 2
    assert server.metric("modelserver_batch_size_count", **of_node) == 1
    leave(server, "pairs")


def test_a_model_goes_while_requests_are_on_their_way(server, store, tmp_path):
    """Requests that reach its node get an error that names it; those before are answered."""
    entered(server, "waits")
    (store / "waited.txt").unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(ask, server, "waits", str(tmp_path / "over"))
        wait_until((store / "waited.txt").exists, "the first node runs")
        server.unregister("waits__join")
        (tmp_path / "over").touch()

        answer = pending.result()
        assert (answer.status_code, answer.json()["message"]) == (500, "Error executing join")
    described = server.management.get("/workflows/waits").json()[0]
    assert [node["model"] for node in described["nodes"]] == ["waits__waits", "waits__join"]
    leave(server, "waits")


def test_workflows_come_back_after_a_restart(store, tmp_path):
    """A snapshot keeps them, without their models; one whose archive is gone says so, and can be removed.

    Another version of a node's model comes back beside the workflow's, and the traffic between both.
    A request that is between two of its nodes when the server is told to stop is answered. The archives are
    in a ``workflow_store`` of their own; a file that was fetched into it goes with its workflow.
    """
    settings = {"snapshot_folder": str(tmp_path / "snapshots"), "workflow_store": str(store)}
    settings["allowed_urls"] = "file://.*"
    (tmp_path / "models").mkdir()
    (tmp_path / "far.war").write_bytes((store / "told.war").read_bytes())
    archived(tmp_path / "models", "other", MODEL_CODE / "rows.py", "2.0")
    weights = {"weights": {"1.0": 100, "2.0": 0}}
    waited = store / "waited.txt"
    waited.unlink(missing_ok=True)
    with (
        serving(Server(Home(tmp_path / "one"), tmp_path / "models", settings=settings)) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        entered(server, "told")
        server.registered("other.mar", model_name="told__told")
        assert server.management.put("/models/told__told/traffic", json=weights).status_code == 200
        assert enter(server, "branches.war", workflow_name="gone").status_code == 200
        assert enter(server, f"file://{tmp_path}/far.war", workflow_name="far").status_code == 200
        entered(server, "waits")
        pending = pool.submit(ask, server, "waits", str(tmp_path / "over"))
        wait_until(waited.exists, "the first node runs")
        server.terminate()
        server.home.wait_for_log("Stopping")
        (tmp_path / "over").touch()
        assert server.stop() == 0
        assert pending.result().status_code == 200
    (store / "branches.war").rename(store / "other.war")
    with serving(Server(Home(tmp_path / "two"), tmp_path / "models", settings=settings)) as server:
        assert ask(server, "told", "x").status_code == 200
        assert ask(server, "far", "x").status_code == 200
        leave(server, "far")
        assert not (store / "far.war").exists()
        assert models(server) == ["told__start", "told__told", "waits__join", "waits__waits"]
        traffic = server.management.get("/models/told__told/traffic").json()
        assert (traffic["default"], traffic["weights"]) == ("1.0", weights["weights"])
        answer = ask(server, "gone", "x")
        assert answer.status_code == 503
        assert "could not be restored: Workflow not found" in answer.json()["message"]
        leave(server, "gone")
        left = server.management.get("/workflows").json()["workflows"]
        assert [each["workflowName"] for each in left] == ["told", "waits"]
    (store / "other.war").rename(store / "branches.war")
