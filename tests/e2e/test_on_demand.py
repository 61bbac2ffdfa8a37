"""Models that are loaded for their first request, and parked when they are idle: docs/many-models.md."""

import io
import os
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from PIL import Image
from tests import tiny_models
from tests.e2e.chunks import ChunkReader
from tests.e2e.grpc_client import channel, grpc_settings, oip, stub
from tests.e2e.serving import MODEL_CODE, ROOT, Home, Server, archived, serving, wait_until
from tests.e2e.test_health_of_models import GATED
from tests.e2e.test_openai import PRETENDED
from tests.e2e.test_serve import write_onnx

MISSING = "No module named"


def state(server, name):
    return str(server.describe(name)["parking"]["state"])


def act(server, name, action):
    return server.management.post(f"/models/{name}", params={"action": action})


def test_first_requests_of_all_protocols_load_the_model(server):
    """They share a worker, each gets its answer; nothing is parsed before the handler has loaded."""
    server.registered("witness.mar", model_name="cold", load="on-demand", batch_size=4)
    described = server.describe("cold")
    assert (described["minWorkers"], described["maxWorkers"], described["workers"]) == (0, 1, [])
    assert state(server, "cold") == "parked"
    assert server.inference.get("/v2/models/cold/ready").status_code == 200
    assert server.management.get("/v1/models/cold").json()["ready"] is False

    def ask(number):
        if number % 3 == 0:
            return server.predict("cold", f"{number}".encode()).text
        if number % 3 == 1:
            return str(server.v1("cold", [f"{number}"]).json()["predictions"][0])
        tensor = {"name": "t", "datatype": "BYTES", "shape": [1], "data": [f"{number}"]}
        outputs = server.inference.post("/v2/models/cold/infer", json={"inputs": [tensor]}).json()["outputs"]
        return str(outputs[0]["data"][0])

    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(ask, range(9)))

    assert [answer.split("|")[1] for answer in answers] == [str(number) for number in range(9)]
    assert len(server.describe("cold")["workers"]) == 1
    assert server.metric("modelserver_loads_total", model_name="cold", result="loaded") == 1
    assert server.metric("modelserver_cold_requests_total", model_name="cold") >= 1


def test_first_request_of_an_application_has_any_path(server):
    """Whether the part behind its name is a version is known when the model has loaded. Other models are not
    loaded for versions that do not exist.
    """
    for archive, name in (("shop", "shop"), ("witness", "cold")):
        registered = server.register(f"{archive}.mar", model_name=name, load="on-demand").json()["status"]
        assert registered.endswith("registered with 0 initial workers. The first request loads the model.")
    answers = [server.inference.get(f"/predictions/{name}/items/5") for name in ("shop", "shop", "cold")]

    assert [answer.status_code for answer in answers] == [200, 200, 404]
    assert answers[0].json() == answers[1].json()
    assert "Model version: items does not exist for model: cold" in answers[2].text
    assert (state(server, "shop"), state(server, "cold")) == ("loaded", "parked")


def test_model_is_parked_and_loaded_by_request(server):
    """By TorchServe's path and by KServe's repository, which lists it as ready."""
    server.registered("witness.mar", model_name="asleep", load="on-demand")
    assert act(server, "asleep", "load").status_code == 200
    assert state(server, "asleep") == "loaded"
    assert act(server, "asleep", "park").status_code == 200
    assert state(server, "asleep") == "parked"
    assert server.management.post("/v2/repository/models/asleep/load").status_code == 200
    assert state(server, "asleep") == "loaded"
    assert server.management.post("/v2/repository/models/asleep/unload").status_code == 200
    index = server.management.post("/v2/repository/index").json()

    assert [each for each in index if each["name"] == "asleep"] == [
        {"name": "asleep", "version": "1.0", "state": "READY", "reason": "parked"}
    ]
    assert "asleep 1.0" in server.management.get("/parking").json()["models"]["parked"]
    assert act(server, "asleep", "sleep").status_code == 400
    assert server.management.post("/models/asleep").status_code == 405
    server.registered("witness.mar", model_name="awake")
    refused = act(server, "awake", "park")
    assert refused.status_code == 409
    assert "register it with load=on-demand" in refused.json()["message"]


def test_failed_load_is_the_answer(server):
    """With its reason, and not tried again for each request; the description says when, the index why."""
    server.registered("missing_module.mar", model_name="fails", load="on-demand")
    answers = [server.predict("fails") for _ in range(3)]

    assert {answer.status_code for answer in answers} == {503}
    assert [answer.json()["message"] for answer in answers if MISSING not in answer.text] == []
    assert server.describe("fails")["parking"]["failedLoads"] == 1
    assert server.describe("fails")["parking"]["nextTry"] > 0
    index = server.management.post("/v2/repository/index").json()
    (entry,) = [each for each in index if each["name"] == "fails"]
    assert entry["state"] == "UNAVAILABLE"
    assert MISSING in entry["reason"]


def test_many_models_share_a_budget(start_server):
    """Twelve models, memory for a few: all are answered, and no more are loaded than fit."""
    server = start_server(load="on-demand", max_models_memory=3 * 80 << 20, idle_timeout=0)
    names = [f"m{number}" for number in range(12)]
    for name in names:
        server.registered("witness.mar", model_name=name, initial_workers=None)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda name: server.predict(name, b"x", timeout=100).text, names[:6]))
    parking = server.management.get("/parking").json()

    assert [answer.split("|")[0] for answer in answers] == names[:6]
    assert parking["used"] <= parking["budget"]
    assert len(parking["models"]["parked"]) >= 6
    assert server.management.put("/parking?max_models_memory=1000000000").json()["budget"] == 10**9
    for machine, device in (("", ""), (0, ""), (-1, ""), (1 << 2000, ""), (5, "much"), (5, 0)):
        query = f"max_models_memory={machine}&max_device_memory={device}"
        assert server.management.put(f"/parking?{query}").status_code == 400
    assert server.management.get("/parking").json()["budget"] == 10**9
    # One of the store, which was not registered before.
    assert server.management.post("/v2/repository/models/echo/load").status_code == 200
    assert state(server, "echo") == "loaded"


def test_first_requests_over_grpc_load_the_model(start_server):
    """By the Open Inference Protocol: those that come together share a worker; a parked model is ready."""
    server = start_server(load="on-demand", **grpc_settings())
    server.registered("witness.mar", model_name="cold", batch_size=4, initial_workers=None)
    with channel(server, "inference") as to:
        service = stub(to, "inference.GRPCInferenceService")
        assert service.ModelReady(oip("ModelReadyRequest", name="cold")).ready
        assert state(server, "cold") == "parked"

        def ask(number):
            contents = {"bytes_contents": [f"{number}".encode()]}
            tensor = {"name": "t", "datatype": "BYTES", "shape": [1], "contents": contents}
            return service.ModelInfer.future(oip("ModelInferRequest", model_name="cold", inputs=[tensor]))

        calls = [ask(number) for number in range(5)]
        answers = [call.result().outputs[0].contents.bytes_contents[0].decode() for call in calls]
        assert act(server, "cold", "park").status_code == 200
        again = ask(5).result()

    assert [answer.split("|")[:2] for answer in answers] == [["cold", f"{number}"] for number in range(5)]
    assert again.outputs[0].contents.bytes_contents[0].startswith(b"cold|5|")
    assert server.describe("cold")["parking"]["loads"] == 2


def test_child_processes_count_and_end_with_their_worker(server):
    """As those of engines, which have the weights: in what the model has, and in what its next load needs."""
    server.registered("engine.mar", load="on-demand")
    child = int(server.predict("engine", b"x").text)
    wait_until(lambda: server.describe("engine")["parking"].get("memory"), "its memory has been measured")
    parking = server.describe("engine")["parking"]
    assert act(server, "engine", "park").status_code == 200
    wait_until(lambda: not psutil.pid_exists(child), "the child has ended")

    assert parking["memory"] > 100 << 20
    assert parking["need"] == parking["memory"] == server.describe("engine")["parking"]["need"]


def test_first_requests_wait_within_their_bounds(tmp_path):
    """Deadline and bytes count; large bodies that wait take nothing from those of loaded models."""
    gate, store = tmp_path / "gate", tmp_path / "store"
    archived(store, "cold", GATED.format(gate=str(gate)))
    archived(store, "warm", MODEL_CODE / "witness.py")
    settings = {"load": "on-demand", "job_queue_bytes": 62_000_000}
    home = Home(tmp_path / "home", {"MODELSERVER_CACHE": str(tmp_path / "cache")})
    with serving(Server(home, store, (), settings)) as server, ThreadPoolExecutor(12) as pool:
        for name in ("warm", "cold"):
            server.registered(f"{name}.mar", initial_workers=None)
        server.predict("warm", b"x")
        late = server.predict("cold", b"x", headers={"x-request-timeout-ms": "500"}, timeout=100)
        assert (late.status_code, late.json()["message"]) == (
            504,
            "The deadline of the request passed before model cold was loaded.",
        )
        large = [pool.submit(server.predict, "cold", bytes(6_000_000), timeout=100) for _ in range(12)]
        wait_until(lambda: sum(each.done() for each in large) == 2, "two of them are refused")
        # Its JSON is read by a helper.
        assert server.v1("warm", ["x" * 1000] * 2000).status_code == 200
        gate.touch()
        answers = sorted(each.result().status_code for each in large)

    assert answers == [200] * 10 + [503] * 2


def test_request_that_waits_for_memory_is_answered_when_the_server_stops(start_server):
    """By a model that was never loaded: nobody can make room for it, and its client learns so."""
    settings = {"load": "on-demand", "max_models_memory": 66 << 20, "drain_timeout": 1}
    server = start_server(**settings)
    server.registered("witness.mar", model_name="pinned", pin="true", initial_workers=None)
    server.registered("witness.mar", model_name="waits", initial_workers=None)
    server.predict("pinned", b"x")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.predict, "waits", b"x", timeout=100)
        wait_until(lambda: state(server, "waits") == "waiting", "it waits for memory")
        server.terminate()
        answer = waiting.result()

    assert answer.status_code == 503, answer.text


def test_model_is_not_parked_while_a_client_streams(server, tmp_path):
    """Though it is idle by its timeout, and a client wants it parked: all parts arrive."""
    server.registered("parts.mar", model_name="streams", load="on-demand", idle_timeout=1)
    order = {"parts": ["one", "two"], "last": "end", "gates": str(tmp_path)}
    with ChunkReader(server.port, "/predictions/streams", order) as client:
        (tmp_path / "0").touch()
        client.head()
        assert client.chunk() == b"one"
        refused = act(server, "streams", "park")
        assert state(server, "streams") == "loaded"
        (tmp_path / "1").touch()
        assert client.chunks() == [b"two", b"end"]

    assert refused.status_code == 409
    assert "it has requests" in refused.json()["message"]
    wait_until(lambda: act(server, "streams", "park").status_code == 200, "it may be parked")
    assert state(server, "streams") == "parked"


@pytest.mark.slow  # it waits until the old version may be parked
def test_replacement_waits_for_memory(tmp_path):
    """Without a place in time it fails, and the old version goes on serving."""
    store = tmp_path / "store"
    for number in (1, 2):
        archived(store, f"m{number}", MODEL_CODE / "witness.py", f"{number}.0")
    settings = {"load": "on-demand", "max_models_memory": 66 << 20, "default_startup_timeout": 3}
    home = Home(tmp_path / "home", {"MODELSERVER_CACHE": str(tmp_path / "cache")})
    with serving(Server(home, store, (), settings)) as server:
        server.registered("m1.mar", model_name="m", pin="true", initial_workers=None)
        assert server.predict("m", b"x").text.startswith("m|x|")
        # The other version counts as much as is supposed of any model.
        wait_until(lambda: server.describe("m")["parking"].get("memory"), "its memory has been measured")
        new = {"url": "m2.mar", "synchronous": "true"}
        refused = server.management.put("/models/m", params=new)
        assert refused.status_code == 503, refused.text
        assert "of max_models_memory=69206016" in refused.text
        assert server.predict("m", b"y").text.startswith("m|y|")
        assert server.management.get("/parking").json()["used"] <= 66 << 20
        assert server.management.put("/models/m", params={"pin": "false"}).status_code == 200
        wait_until(lambda: server.management.put("/models/m", params=new).status_code == 200, "it is new")

        assert server.describe("m")["modelVersion"] == "2.0"
        assert server.predict("m", b"z").text.startswith("m|z|")


@pytest.mark.slow  # it waits for the second in which nothing is asked
def test_idle_model_is_parked(server):
    server.registered("witness.mar", model_name="idle", load="on-demand", idle_timeout=1)
    server.predict("idle", b"x")
    wait_until(lambda: state(server, "idle") == "parked", "it is parked")

    assert server.describe("idle")["parking"]["parks"] == {"idle": 1}
    assert server.predict("idle", b"y").text.startswith("idle|y|")


@pytest.mark.slow  # it imports torch in each worker
def test_vllm_is_loaded_by_its_first_request_and_parked(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    (store / "pretended.py").write_text(PRETENDED)
    path = os.pathsep.join(map(str, (ROOT / "app", ROOT / "handlers", ROOT)))
    home = Home(tmp_path / "home", {"PYTHONPATH": path}, for_children=True)
    with serving(Server(home, store, (), {"load": "on-demand"})) as server:
        server.registered("pretended.py", model_name="m", initial_workers=None)
        for _ in range(2):
            assert (state(server, "m"), server.describe("m")["workers"]) == ("parked", [])
            body = {"model": "m", "prompt": "one two"}
            answer = server.inference.post("/v1/completions", json=body, timeout=100).json()
            assert answer["choices"][0]["text"] == "one two "
            assert act(server, "m", "park").status_code == 200


@pytest.mark.slow  # it loads torch's models twice
@pytest.mark.timeout(400)
def test_kinds_of_models_are_loaded_and_parked(tmp_path):
    """Behind two front ends: an archive, a script, files of TorchScript and ONNX, a network of torchvision, a
    hub chat, and sequences, whose model stays while one of them lives. A restart restores all of them parked.
    """
    for package in ("transformers", "torchvision", "onnxruntime"):
        pytest.importorskip(package)
    torch = pytest.importorskip("torch")
    store = tmp_path / "store"
    (store / "chat").mkdir(parents=True)
    tiny_models.llama(store / "chat")
    torch.jit.script(torch.nn.Identity()).save(store / "traced.pt")
    (store / "script.py").write_text("def handle(data, context):\n    return data and ['done'] * len(data)\n")
    write_onnx(store / "graph.onnx")
    tickets = "useJobTicket: true\n"
    config = f"{tickets}sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 8\n"
    archived(store, "witness", MODEL_CODE / "witness.py", config=tickets)
    archived(store, "sums", MODEL_CODE / "sums.py", config=config)
    image = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(image, "PNG")
    messages = [{"role": "user", "content": "fox"}]
    chat = {"model": "chat", "messages": messages, "max_tokens": 2}
    sequence, end = {"ts_request_sequence_id": "s"}, {"ts_request_sequence_end": "true"}
    ask = {
        "witness": lambda: server.predict("witness", b"x"),
        "network": lambda: server.predict("network", image.getvalue()),
        "script": lambda: server.predict("script", b"x"),
        "traced": lambda: server.v1("traced", [1.0]),
        "graph": lambda: server.v1("graph", [[1.0, 2.0]]),
        "chat": lambda: server.inference.post("/v1/chat/completions", json=chat),
        "sums": lambda: server.predict("sums", {"add": 1}, headers={**sequence, **end}),
    }
    home = Home(tmp_path / "home", {"MODELSERVER_CACHE": str(tmp_path / "cache")})
    flags, settings = ("--models", "all", "--load", "on-demand"), {"frontend_processes": 2, "idle_timeout": 0}
    with serving(Server(home, store, flags, settings)) as server:
        network = "torchvision://squeezenet1_1?weights=random&seed=7"
        server.registered(network, model_name="network", initial_workers=None)
        for url in ("script.py", "traced.pt", "graph.onnx"):
            server.registered(url, initial_workers=None)
        for name in ask:
            assert (name, server.describe(name)["workers"]) == (name, [])
        assert server.predict("sums", {"add": 1}, headers=sequence).status_code == 200
        assert act(server, "sums", "park").status_code == 409
        for name, call in ask.items():
            for _ in range(2):
                answer = call()
                assert answer.status_code == 200, answer.text
                assert act(server, name, "park").status_code == 200
                assert (name, server.describe(name)["workers"]) == (name, [])
    with serving(Server(home, store, flags, settings)) as server:
        assert {name: state(server, name) for name in ask} == dict.fromkeys(ask, "parked")
        assert ask["witness"]().status_code == 200
