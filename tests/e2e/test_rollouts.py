import collections
import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.e2e.grpc_client import INFERENCE, PATIENCE, channel, grpc_server, oip, predict, stub
from tests.e2e.serving import MODEL_CODE, archived, serving, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server with two front ends and gRPC for all tests here, which have model ``m`` in two versions."""
    folder, store = tmp_path_factory.mktemp("rollouts"), tmp_path_factory.mktemp("store")
    for number in (1, 2):
        made = archived(folder, "m", MODEL_CODE / "variants.py", f"{number}.0")
        made.rename(store / f"m{number}.mar")
    with serving(grpc_server(folder, store, frontend_processes=2, shadow_bodies=20)) as started:
        for number in (1, 2):
            started.registered(f"m{number}.mar", batch_size=8)
        yield started


@pytest.fixture(autouse=True)
def plain_traffic(server):
    """Each test finds the model without weights, and both versions ready."""
    yield
    assert server.management.delete("/models/m/traffic").status_code == 200


def put(server, document, name="m"):
    answer = server.management.put(f"/models/{name}/traffic", json=document)
    assert answer.status_code == 200, answer.text
    return answer.json()


def show(server, what="traffic", name="m"):
    answer = server.management.get(f"/models/{name}/{what}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def outcomes(server):
    copies = show(server, "shadow")["shadows"]["2.0"]["copies"]
    return {name: count for name, count in copies.items() if count}


def text(value):
    return {"inputs": [{"name": "t", "datatype": "BYTES", "shape": [1], "data": [value]}]}


def by_v1(server):
    return str(server.v1("m", ["x"]).json()["predictions"][0])


def by_v2(server, version=""):
    path = f"/v2/models/m{f'/versions/{version}' if version else ''}/infer"
    return str(server.inference.post(path, json=text("x")).json()["model_version"])


def infer(version, name="m"):
    tensor = {"name": "t", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"x"]}}
    return oip("ModelInferRequest", model_name=name, model_version=version, inputs=[tensor])


def by_v2_grpc(server, version="", name="m"):
    with channel(server, "inference") as to:
        service = stub(to, "inference.GRPCInferenceService")
        return str(service.ModelInfer(infer(version, name), timeout=PATIENCE).model_version)


def by_v2_grpc_stream(server, version=""):
    with channel(server, "inference") as to:
        service = stub(to, "inference.GRPCInferenceService")
        (part,) = service.ModelStreamInfer(iter([infer(version)]), timeout=PATIENCE)
        return str(part.infer_response.model_version)


def by_grpc(server, version=""):
    with channel(server, "inference") as to:
        service = stub(to, f"{INFERENCE}InferenceAPIsService")
        return str(
            service.Predictions(predict("m", version, data=b"x"), timeout=PATIENCE).prediction.decode()
        )


def by_grpc_parts(server):
    with channel(server, "inference") as to:
        service = stub(to, f"{INFERENCE}InferenceAPIsService")
        parts = service.StreamPredictions(predict("m", data=b"parts"), timeout=PATIENCE)
        return "".join(part.prediction.decode() for part in parts)


def by_openai(server):
    """At TorchServe's path, where handlers read the endpoint."""
    return server.inference.post("/predictions/m/v1/chat/completions", content=b"x").text


def by_chat(server, order="x"):
    """With the model in the body alone."""
    body = {"model": "m", "messages": [{"role": "user", "content": order}]}
    return server.inference.post("/v1/chat/completions", json=body).text


WAYS = {
    "predictions": (lambda server: server.predict("m", b"x").text, "2.0"),
    "v1": (by_v1, "2.0"),
    "v2": (by_v2, "2.0"),
    "parts": (lambda server: server.predict("m", b"parts").text, "2.02.0"),
    "form": (lambda server: server.inference.post("/invocations?model_name=m", content=b"x").text, "2.0"),
    "large": (lambda server: server.predict("m", bytes(3 << 20)).text, "2.0"),
    "explanations": (lambda server: server.inference.post("/explanations/m", content=b"x").text, "2.0"),
    "openai": (by_openai, "2.0"),
    "chat": (by_chat, "2.0"),
    "grpc": (by_grpc, "2.0"),
    "v2 grpc": (by_v2_grpc, "2.0"),
    "v2 grpc stream": (by_v2_grpc_stream, "2.0"),
    "grpc parts": (by_grpc_parts, "2.02.0"),
}


@pytest.mark.parametrize("way", WAYS)
def test_weights_hold_in_every_protocol(server, way):
    put(server, {"1.0": 0, "2.0": 100})
    ask, expected = WAYS[way]

    assert ask(server) == expected


def test_a_request_that_names_a_version_goes_there(server):
    put(server, {"1.0": 0, "2.0": 100})
    named = [ask(server, "1.0") for ask in (by_v2, by_v2_grpc, by_v2_grpc_stream, by_grpc)]

    assert named == ["1.0"] * 4
    assert server.inference.post("/predictions/m/1.0", content=b"x").text == "1.0"
    assert server.inference.post("/explanations/m/1.0", content=b"x").text == "1.0"


def test_parked_versions_have_their_share(server):
    """The first request of each loads it, over REST and gRPC: a parked version counts as ready."""
    for number in (1, 2):
        server.registered(f"m{number}.mar", model_name="cold", load="on-demand")
    put(server, {"1.0": 50, "2.0": 50}, "cold")
    described = server.management.get("/models/cold/2.0").json()[0]
    assert (described["parking"]["state"], described["traffic"]["effective"]) == ("parked", 50)
    seen = {by_v2_grpc(server, name="cold") for _ in range(12)}
    assert seen == {"1.0", "2.0"}
    for version in ("1.0", "2.0"):
        parked = server.management.post(f"/models/cold/{version}", params={"action": "park"})
        assert parked.status_code == 200, parked.text
    seen = {server.predict("cold", b"x").text for _ in range(12)}

    assert seen == {"1.0", "2.0"}
    assert by_v2_grpc(server, "2.0", "cold") == "2.0"
    loads = [
        server.metric("modelserver_loads_total", model_name="cold", model_version=version, result="loaded")
        for version in ("1.0", "2.0")
    ]
    assert loads == [2, 2]


def test_a_shadow_gets_copies(server):
    """Of requests in every protocol but those with answers in parts; clients see the primary only."""
    put(server, {"shadow": {"2.0": {"percent": 100}}})
    assert server.predict("m", b"same").text == "same"
    assert server.v1("m", ["same", "same"]).json()["predictions"] == ["same", "same"]
    assert server.inference.post("/v2/models/m/infer", json=text("same")).status_code == 200
    assert by_chat(server, "same") == "same"
    assert by_grpc(server) == "1.0"
    assert server.predict("m", b"parts").text == "1.01.0"
    wait_until(lambda: sum(outcomes(server).values()) == 6, "all copies have ended")

    assert outcomes(server) == {"agreed": 4, "differed": 1, "streamed": 1}
    (difference,) = show(server, "shadow")["shadows"]["2.0"]["differences"]
    bodies = difference["bodies"]
    assert "x" in bodies.pop("request")
    assert bodies == {"primary": "1.0", "shadow": "2.0"}
    assert difference["reason"] == "bodies of 3 and 3 bytes differ"
    assert server.metric("modelserver_shadow_copies_total", outcome="agreed") == 4


def ask_until(server, order, happened):
    """Statuses of requests, which are sent until something has happened."""
    statuses = []
    deadline = time.monotonic() + 25
    while not happened():
        assert time.monotonic() < deadline, show(server)
        with ThreadPoolExecutor(8) as clients:
            statuses += clients.map(lambda _: server.predict("m", order).status_code, range(24))
    return statuses


def test_a_good_version_is_promoted(server):
    """Step by step, from its answers to copies and then to clients; the reason is in log and metrics."""
    promote = {"after": 20, "agreement": 0.99, "p99_ratio": 1000, "errors": 0.01, "steps": [50, 100]}
    put(server, {"shadow": {"2.0": {"percent": 100}}, "promote": promote})
    statuses = ask_until(server, b"same", lambda: show(server)["promotion"]["state"] != "watching")
    plan = show(server)

    assert set(statuses) == {200}
    assert (plan["promotion"]["state"], plan["weights"]) == ("promoted", {"1.0": 0, "2.0": 100})
    server.home.wait_for_log("2.0 goes from 50 % to 100 %")
    assert server.metric("modelserver_promotion_steps_total", model_name="m", direction="on") == 3
    assert server.predict("m", b"x").text == "2.0"


def test_a_bad_version_is_taken_back(server):
    """As soon as it has failed too often, and everything goes to the other one again."""
    put(server, {"weights": {"1.0": 50, "2.0": 50}, "promote": {"after": 100, "errors": 0.05}})
    statuses = ask_until(server, b"fail", lambda: show(server)["promotion"]["state"] != "watching")
    plan = show(server)

    assert 503 in statuses
    assert (plan["promotion"]["state"], plan["weights"]) == ("rolled back", {"1.0": 100, "2.0": 0})
    assert plan["promotion"]["reason"].startswith("2.0 goes from 50 % to 0 %: failed: ")
    (described,) = server.management.get("/models/m/2.0").json()
    assert described["traffic"]["promotion"]["reason"] == plan["promotion"]["reason"]
    why = {"direction": "back", "reason": "errors"}
    assert server.metric("modelserver_promotion_steps_total", model_name="m", **why) == 1
    assert {server.predict("m", b"fail").text for _ in range(10)} == {"1.0"}


def test_weights_are_moved_under_load(server):
    """A hundred times, with and without a shadow: each request has one answer, its own."""
    numbers = itertools.count()
    stop = threading.Event()
    wrong = []
    done = collections.Counter()

    def ask(_):
        with httpx.Client(base_url=str(server.inference.base_url), timeout=30) as client:
            while not stop.is_set():
                own = f"own-{next(numbers)}"
                answer = client.post(
                    "/v1/models/m:predict", json={"instances": ["same", own]}, headers={"x-request-id": own}
                )
                output = answer.json().get("predictions", [None, ""])
                mark, _, version = output[1].partition(" of ")
                if output[0] != "same" or (mark, answer.headers["x-request-id"]) != (own, own):
                    wrong.append((own, answer.status_code, answer.text))
                done[version] += 1

    before = server.metric("Requests2XX")
    with ThreadPoolExecutor(8) as clients:
        running = [clients.submit(ask, number) for number in range(8)]
        for number in range(100):
            weight = (number * 37) % 101
            put(
                server,
                {"weights": {"1.0": 100 - weight, "2.0": weight}, "shadow": {"2.0": {"percent": number}}}
                if number % 2
                else {"1.0": 100 - weight, "2.0": weight},
            )
        put(server, {"weights": {"1.0": 50, "2.0": 50}, "shadow": None})
        time.sleep(0.3)
        stop.set()
        for each in running:
            each.result(60)

    assert wrong == []
    assert sum(done.values()) >= 200
    assert set(done) == {"1.0", "2.0"}
    assert server.metric("Requests2XX") - before >= sum(done.values())


def test_a_killed_worker_takes_its_weight_along(server):
    """Its requests fail or are tried again, those after it go to the other version until it is back."""
    put(server, {"1.0": 50, "2.0": 50})
    (worker,) = server.management.get("/models/m/2.0").json()[0]["workers"]
    os.kill(worker["pid"], signal.SIGKILL)
    statuses = [server.predict("m", b"x").status_code for _ in range(40)]

    assert statuses.count(200) >= 39
    wait_until(lambda: show(server)["effective"] == {"1.0": 50, "2.0": 50}, "2.0 is back")
