"""``service_envelope``: what clients send and get with each (reference 14.6)."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.e2e.grpc_client import channel, grpc_server, oip, stub
from tests.e2e.serving import MODEL_CODE, archived, serving

TENSOR = {"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}
BATCHES = "batchSize: 4\nmaxBatchDelay: 300\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """The envelope ``kserve``, unless a model's configuration has another. All answer what they saw."""
    folder = tmp_path_factory.mktemp("envelopes")
    with serving(grpc_server(folder, model_store, service_envelope="kserve")) as started:
        for name in ("none", "body", "json", "kservev2"):
            config = f"serviceEnvelope: {name}\n{BATCHES}"
            archived(model_store, f"saw_{name}", MODEL_CODE / "saw.py", config=config)
            started.registered(f"saw_{name}.mar", split_instances="false" if name == "none" else None)
        yield started.registered("saw.mar", model_name="saw_kserve", batch_size=4, max_batch_delay=300)


def saw(value):
    return {"saw": repr(value)}


def test_handler_gets_what_its_envelope_says(server):
    """``none`` is none; ``body`` unwraps, and what is no V1 body is refused on its routes; ``json`` decodes
    base64 and ``kserve`` does not, whose explanations have a key of their own.
    """
    body = {"instances": [{"b64": "aGk="}]}

    assert server.predict("saw_none", body).json() == saw({"body": body})
    assert server.inference.post("/v1/models/saw_none:predict", json={"x": 1}).json() == saw(
        {"body": {"x": 1}}
    )

    assert server.predict("saw_body", {"instances": [1]}).json() == saw({"instances": [1]})
    assert server.inference.post("/v1/models/saw_body:predict", json={"x": 1}).status_code == 400

    for path in ("/explanations/saw_kserve", "/v1/models/saw_kserve:explain"):
        answer = server.inference.post(path, json={"instances": [1]}).json()
        assert answer["explanations"] == [saw(1)]

    instances = [{"b64": "aGk="}]

    assert server.predict("saw_json", {"instances": instances}).json() == {"predictions": [saw(b"hi")]}
    assert server.v1("saw_json", instances).json()["predictions"] == [saw(b"hi")]
    assert server.predict("saw_kserve", {"instances": instances}).json() == {
        "predictions": [saw({"b64": "aGk="})]
    }


def test_envelope_kservev2_answers_tensors_by_name(server):
    """With the request's id, or one of the server's; on V2 routes and over gRPC the answers are V2."""
    answer = server.predict("saw_kservev2", {"id": "abc", "inputs": [TENSOR]}).json()
    other = server.predict("saw_kservev2", {"inputs": [TENSOR]})
    v2 = server.inference.post("/v2/models/saw_kservev2/infer", json={"id": "7", "inputs": [TENSOR]}).json()
    tensor = {**TENSOR, "contents": {"fp32_contents": TENSOR["data"]}}
    request = oip(
        "ModelInferRequest",
        model_name="saw_kservev2",
        id="g",
        inputs=[{key: value for key, value in tensor.items() if key != "data"}],
    )
    with channel(server, "inference") as to:
        response = stub(to, "inference.GRPCInferenceService").ModelInfer(request)

    shaped = saw({**TENSOR, "data": [[1, 2], [3, 4]]})
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("abc", "saw_kservev2", "1.0")
    assert answer["outputs"] == [{"name": "a", "datatype": "BYTES", "data": [shaped], "shape": [1]}]
    assert other.json()["id"] == other.headers["x-request-id"]
    assert (v2["id"], v2["model_name"], v2["outputs"]) == ("7", "saw_kservev2", answer["outputs"])
    assert (response.id, response.outputs[0].name) == ("g", "a")
    assert b"FP32" in response.outputs[0].contents.bytes_contents[0]


def test_envelope_kservev2_takes_what_torchserves_samples_send(server, model_store):
    """A shape of -1, and text as data; a handler that answers once for two inputs, as the sample of its
    documentation does, gives one output, named after the first. Values must fill their shape.
    """
    source = "def handle(data, context):\n    return data and [[len(data)]]\n"
    archived(model_store, "once", source, config="serviceEnvelope: kservev2\n")
    server.registered("once.mar")
    text = {"name": "context", "shape": -1, "datatype": "BYTES", "data": "Bloomberg is a city"}
    rows = {"name": "n", "shape": [-1, 2], "datatype": "INT64", "data": [1, 2, 3, 4]}

    seen = server.predict("saw_kservev2", {"inputs": [text, rows]}).json()["outputs"]
    (once,) = server.predict("once", {"inputs": [text, rows]}).json()["outputs"]
    refused = server.predict("saw_kservev2", {"inputs": [{**rows, "shape": [-1, 3]}]})

    assert [(output["name"], output["data"]) for output in seen] == [
        ("context", [saw(text)]),
        ("n", [saw({**rows, "data": [[1, 2], [3, 4]]})]),
    ]
    assert once == {"name": "context", "datatype": "INT64", "data": [2], "shape": [1]}
    assert refused.status_code == 400
    assert refused.json()["message"] == "inputs[0]: 4 values do not fill the shape [-1, 3]"


@pytest.mark.parametrize("model", ["saw_kserve", "saw_json", "saw_kservev2"])
def test_requests_of_a_batch_get_their_own_answers(server, model):
    """A malformed request among them gets its own 400; a description passes through the envelope."""

    def body(number):
        if number == 2:
            return {"nothing": 1}
        tensor = {"name": "n", "shape": [1], "datatype": "INT64", "data": [number]}
        return {"instances": [number], "inputs": [tensor]}

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: server.predict(model, body(number)), range(4)))
    described = server.management.get(f"/models/{model}", params={"customized": "true"}).json()

    assert [answer.status_code for answer in answers] == [200, 200, 400, 200]
    assert answers[2].json()["type"] == "BadRequestException"
    for number in (0, 1, 3):
        if model == "saw_kservev2":
            assert answers[number].json()["outputs"][0]["data"] == [saw(body(number)["inputs"][0])]
        else:
            assert answers[number].json() == {"predictions": [saw(number)]}
    assert described[0]["customizedMetadata"] == saw({})
    strict = server.inference.post(f"/v1/models/{model}:predict", json={"x": 1})
    assert (strict.status_code, "no instances in the request" in strict.json()["error"]) == (400, True)
