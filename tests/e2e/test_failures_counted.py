import pytest
from tests.e2e.grpc_client import INFERENCE, channel, ending, grpc_server, oip, predict, stub
from tests.e2e.serving import archived, serving

# A network that does not fit on its device fails so, with 507 (reference 6.5).
RAISES = """
def handle(data, context):
    if data is None:
        return None
    raise RuntimeError("CUDA error: no kernel image is available")
"""
WORKS = """
def handle(data, context):
    return None if data is None else ["fine"] * len(data)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with REST behind front ends and gRPC, a model whose handler raises and one that works."""
    folder = tmp_path_factory.mktemp("counted")
    store = folder / "store"
    for name, source in (("raises", RAISES), ("works", WORKS)):
        archived(store, name, source)
    with serving(grpc_server(folder / "home", store, frontend_processes=2)) as started:
        yield started.registered("raises.mar").registered("works.mar")


def answers(server, name):
    result = {
        digit: server.metric("modelserver_requests_total", model_name=name, code=f"{digit}xx")
        for digit in "2345"
    }
    return {f"{digit}xx": count for digit, count in result.items() if count}


def rest_statuses(server, name):
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    return [
        server.predict(name, b"x").status_code,
        server.inference.post(f"/predictions/{name}/1.0", content=b"x").status_code,
        server.v1(name, [1]).status_code,
        server.inference.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]}).status_code,
    ]


def test_every_protocol_counts(server):
    """REST and gRPC, failures and answers, of this model and of no other."""
    before = {name: answers(server, name) for name in ("raises", "works")}
    assert rest_statuses(server, "raises") == [507] * 4
    tensor = {"name": "x", "shape": [1], "datatype": "FP32"}
    with channel(server, "inference") as to:
        torchserves = stub(to, f"{INFERENCE}InferenceAPIsService")
        open_inference = stub(to, "inference.GRPCInferenceService")
        ending(lambda: torchserves.Predictions(predict("raises", x=b"x")))
        query = oip("ModelInferRequest", model_name="raises", inputs=[tensor], raw_input_contents=[b"abcd"])
        ending(lambda: open_inference.ModelInfer(query))
        torchserves.Predictions(predict("works", x=b"x"))
    assert server.predict("works", b"x").status_code == 200
    assert server.v1("works", "no list").status_code == 400

    assert before == {"raises": {}, "works": {}}
    assert answers(server, "raises") == {"5xx": 6}
    assert answers(server, "works") == {"2xx": 2, "4xx": 1}
    errors = "modelserver_errors_total"
    assert server.metric(errors, model_name="raises", model_version="1.0", type="RuntimeError") == 6
    assert server.metric(errors, model_name="works") == 0


def test_the_description_has_the_last_error(server):
    """With request, time, message and place; after ten batches in a row the version counts as failing."""
    for number in range(10):
        answer = server.inference.post(
            "/predictions/raises", content=b"x", headers={"x-request-id": f"mine-{number}"}
        )
        assert answer.status_code == 507
    errors = server.describe("raises")["errors"]
    reply = "RuntimeError: CUDA error: no kernel image is available (raises.py, line 5, in handle)"

    assert (errors["failing"], errors["types"]) == (True, {"RuntimeError": errors["count"]})
    assert (errors["last"]["requestId"], errors["last"]["status"]) == ("mine-9", 507)
    assert errors["last"]["message"] == reply
    assert errors["last"]["time"] > server.describe("raises")["workers"][0]["startTime"]
    assert server.metric("modelserver_failing", model_name="raises") == 1
    assert server.metric("modelserver_failing", model_name="works") == 0
    assert server.inference.get("/v2/models/raises/ready").status_code == 200
    assert "errors" not in server.describe("works")
