"""The Open Inference Protocol over REST (kserve reference 5, 7, 8 and 9; design, section 9, "Rows")."""

import base64
import io
import json
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
from PIL import Image
from tests.e2e.serving import MODEL_CODE, Home, Server, archived, copied, serving

from modelserver.engine.tensors.datatypes import DATATYPES

triton = pytest.importorskip("tritonclient.http")
bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

SIGNATURE = """
signature:
  inputs:
    - {name: x, datatype: FP32, shape: [-1, 2]}
    - {name: y, datatype: INT64, shape: [-1]}
  outputs:
    - {name: x, datatype: FP32, shape: [-1, 2]}
    - {name: y, datatype: INT64, shape: [-1, 1]}
"""
NUMPY = {
    name: numpy.dtype({"BOOL": "bool", "FP16": "f2", "FP32": "f4", "FP64": "f8"}.get(name) or name.lower())
    for name in DATATYPES
    if name != "BF16"
} | {"BF16": numpy.dtype(bfloat16)}


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """``mirror`` takes rows one by one, ``gather`` in batches of 4 for up to 0.3 s, ``strict`` in fours at
    once and nothing but tensors; ``typed`` has a signature.
    """
    folder = tmp_path_factory.mktemp("open")
    names = ("mirror", "obey", "sized", "tell", "rows", "syntax")
    store = copied(folder / "store", model_store, *names)
    archived(store, "typed", MODEL_CODE / "mirror.py", "3", SIGNATURE)
    with serving(Server(Home(folder), store)) as started:
        started.registered("mirror.mar")
        started.registered("mirror.mar", model_name="gather", max_batch_size=4, max_latency=300)
        strict = {"split_instances": True, "batch_size": 4, "batch_policy": "greedy"}
        started.registered("mirror.mar", model_name="strict", **strict)
        for name in ("sized", "tell", "rows", "typed"):
            started.registered(f"{name}.mar", batch_size=4, batch_policy="greedy")
        yield started


@pytest.fixture(scope="module")
def client(server):
    made = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield made
    made.close()


def infer(server, model, *inputs, **fields):
    return server.inference.post(f"/v2/models/{model}/infer", json={"inputs": list(inputs), **fields})


def an_input(name, datatype, shape, data, **fields):
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **fields}


def numbers(*values):
    return an_input("x", "FP32", [len(values)], list(values))


def together(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(20) for future in [pool.submit(call) for call in calls]]


@pytest.mark.parametrize("datatype", [*NUMPY, "BYTES"])
def test_tensors_come_back_in_each_form(client, datatype):
    if datatype == "BYTES":
        values = numpy.array([["a"], ["ü"], [""]], dtype=object)
    else:
        values = numpy.array([[0, 1, 2], [3, 1, 0]]).astype(NUMPY[datatype])
    # Triton's client sends halves in binary only.
    for sent in (True,) if datatype in ("FP16", "BF16") else (True, False):
        x = triton.InferInput("x", list(values.shape), datatype)
        x.set_data_from_numpy(values, binary_data=sent)
        for binary in (True, False):
            output = triton.InferRequestedOutput("output_0", binary_data=binary)
            result = client.infer("mirror", [x], outputs=[output], request_id="7")
            reply, array = result.get_response(), result.as_numpy("output_0")
            elements = [
                each.decode() if isinstance(each, bytes) else each for each in array.reshape(-1).tolist()
            ]

            assert (reply["id"], reply["model_name"], reply["model_version"]) == ("7", "mirror", "1.0")
            assert result.get_output("output_0")["datatype"] == datatype
            assert elements == values.reshape(-1).tolist()


def test_response_is_json_unless_binary_is_requested(server):
    """JSON has a request id and no nulls; before binary data a header says where the JSON ends."""
    plain = infer(server, "mirror", numbers(1, 2))
    body = plain.json()
    binary = infer(server, "mirror", numbers(1, 2), parameters={"binary_data_output": True})
    length = int(binary.headers["inference-header-content-length"])
    (output,) = json.loads(binary.content[:length])["outputs"]

    assert plain.headers["content-type"] == "application/json"
    assert body["id"] == plain.headers["x-request-id"]
    assert body["outputs"] == [{"name": "output_0", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}]
    assert None not in body.values()
    assert binary.headers["content-type"] == "application/octet-stream"
    assert output["parameters"] == {"binary_data_size": 8}
    assert binary.content[length:] == struct.pack("<2f", 1, 2)


def test_outputs_have_the_requested_order_and_form(client):
    """Inputs are binary and JSON; outputs have the requested order, and each its requested form."""
    x = triton.InferInput("x", [2, 2], "FP32")
    x.set_data_from_numpy(numpy.array([[1, 2], [3, 4]], "f4"))
    y = triton.InferInput("y", [2], "INT64")
    y.set_data_from_numpy(numpy.array([5, 6]), binary_data=False)
    names = [triton.InferRequestedOutput("y"), triton.InferRequestedOutput("x", binary_data=False)]
    result = client.infer("strict", [x, y], outputs=names)

    assert [output["name"] for output in result.get_response()["outputs"]] == ["y", "x"]
    assert result.as_numpy("x").tolist() == [[1, 2], [3, 4]]
    assert result.as_numpy("y").tolist() == [5, 6]
    assert "data" not in result.get_output("y")
    assert "data" in result.get_output("x")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_bodies_are_read(client, algorithm):
    """The length of the JSON is that before compression; a whole body may be compressed (F6)."""
    x = triton.InferInput("x", [1, 1000], "FP64")
    x.set_data_from_numpy(numpy.ones((1, 1000)))
    result = client.infer("mirror", [x], request_compression_algorithm=algorithm)

    assert result.as_numpy("output_0").sum() == 1000


def test_requests_name_versions_and_may_be_raw(server):
    """With a header length of 0 the body is the one input, and the response is binary."""
    path = "/v2/models/mirror/versions/{}/infer"
    body = {"inputs": [numbers(1)]}

    assert server.inference.post(path.format("1.0"), json=body).json()["outputs"][0]["data"] == [1.0]
    missing = server.inference.post(path.format("9"), json=body)
    assert missing.status_code == 404
    assert "9" in missing.json()["error"]

    answer = server.inference.post(
        "/v2/models/sized/infer", content=png(4, 3), headers={"Inference-Header-Content-Length": "0"}
    )
    length = int(answer.headers["inference-header-content-length"])

    assert json.loads(answer.content[length + 4 :]) == {"width": 4, "height": 3}


def png(width, height):
    content = io.BytesIO()
    Image.new("RGB", (width, height)).save(content, "PNG")
    return content.getvalue()


def test_bytes_elements_become_rows(client, server):
    """Each BYTES element is a row, like the body of a prediction; base64 text is one too."""
    pictures = numpy.array([png(4, 3), png(5, 2)], dtype=object)
    x = triton.InferInput("image", [2], "BYTES")
    x.set_data_from_numpy(pictures)
    binary = [json.loads(each) for each in client.infer("sized", [x]).as_numpy("output_0")]
    text = infer(server, "sized", an_input("image", "BYTES", [1], [base64.b64encode(png(7, 1)).decode()]))

    assert binary == [{"width": 4, "height": 3}, {"width": 5, "height": 2}]
    assert json.loads(text.json()["outputs"][0]["data"][0]) == {"width": 7, "height": 1}
    assert server.predict("sized", png(4, 3)).json() == binary[0]


def test_errors_are_json_with_their_status(server):
    """The body has ``error``, which names what is wrong, and is exactly application/json (F9)."""
    path = "/v2/models/strict/infer"
    cases = [
        (404, "Model with name none does not exist. There are: ", infer(server, "none", numbers(1))),
        (400, "'nothing'", infer(server, "strict", numbers(1), outputs=[{"name": "nothing"}])),
        (400, "timeout", infer(server, "rows", numbers(1), parameters={"timeout": "soon"})),
        (400, "'x'", infer(server, "mirror", an_input("x", "FP32", [3, 2], [1, 2]))),
        (400, "'x'", infer(server, "strict", an_input("x", "BYTES", [1], ["a", "b"]))),
        (400, "not an inference request", server.inference.post(path, content=b"[" * 100_000)),
        (
            400,
            "Inference-Header-Content-Length",
            server.inference.post(path, content=b"{}", headers={"Inference-Header-Content-Length": "x"}),
        ),
        (413, "max_request_instances", infer(server, "strict", an_input("x", "FP32", [100_000, 0], []))),
        (405, "", server.inference.get("/v2/models/mirror/infer")),
        (404, "", server.inference.get("/v2/models/mirror/generate")),
    ]
    for status, message, response in cases:
        assert (response.status_code, message in response.json()["error"]) == (status, True), response.text
        assert response.json()["error"]
        assert response.headers["content-type"] == "application/json"


def test_rows_that_cannot_be_joined_get_500(server):
    """The message names the rows, what they are, and what to do; a request without rows has none to join."""
    response = infer(server, "strict", strings("json:[1]", "json:[1, 2]"))
    empty = infer(server, "tell", an_input("x", "INT32", [0, 3], []))

    assert response.status_code == 500
    assert response.json()["error"] == (
        "The answers of model strict make no tensors: the rows of output 'output_0' cannot be joined: "
        "row 0 is INT64 of shape [1], row 1 is INT64 of shape [2]. Hint: the answers to the rows of a "
        "request need the same outputs, of one shape: the handler fills the shorter ones up, or answers each "
        "row with text or a JSON object"
    )
    assert empty.status_code == 400
    assert empty.json()["error"] == "the inputs have no rows, but model 'tell' returned some"


def test_failing_row_does_not_fail_others(server):
    """The response is a 500 that names the row; other requests of its batch succeed (F18)."""
    mixed, good = together(
        lambda: infer(server, "gather", strings("a", "raise")), lambda: infer(server, "gather", strings("b"))
    )

    assert mixed.status_code == 500
    assert mixed.json()["error"].startswith("row 1: ValueError : as asked (mirror.py, line ")
    assert good.json()["outputs"][0]["data"] == ["b"]


def strings(*values):
    return an_input("x", "BYTES", [len(values)], list(values))


X = an_input("x", "FP32", [1, 2], [1, 2])
Y = an_input("y", "INT64", [1], [1])


def test_model_with_signature_takes_and_describes_what_it_says(server, client):
    """What it does not allow is 400 with the field's name (F9); outputs have the form that it gives them, and
    metadata and OPTIONS show it. Of a model without one nothing is known, and nothing is shown.
    """
    refused = infer(server, "typed", {**X, "datatype": "FP64"}, Y)
    outputs = infer(server, "typed", X, Y).json()["outputs"]
    metadata = client.get_model_metadata("typed")
    document = server.inference.options("/v2/models/typed/infer").json()
    schema = document["paths"]["/v2/models/typed/infer"]["post"]["requestBody"]["content"]["application/json"]
    bare = server.inference.get("/v2/models/mirror").json()

    assert refused.status_code == 400
    assert refused.json()["error"] == "input 'x': datatype is FP64, the model takes FP32"
    assert [(each["name"], each["shape"]) for each in outputs] == [("x", [1, 2]), ("y", [1, 1])]
    assert (metadata["name"], metadata["versions"], metadata["platform"]) == ("typed", ["3"], "pytorch")
    assert metadata["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "y", "datatype": "INT64", "shape": [-1]},
    ]
    assert [output["name"] for output in metadata["outputs"]] == ["x", "y"]
    assert client.get_model_metadata("typed", "3") == metadata
    assert '"enum": ["INT64"]' in json.dumps(schema)
    assert (bare["inputs"], bare["outputs"]) == ([], [])


def test_health_and_metadata_describe_the_server(client, server):
    """Server and models are live, ready or not; models that should have no workers do not count."""
    server.registered("rows.mar", model_name="resting", initial_workers=0)
    get = server.inference.get

    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mirror")
    assert client.is_model_ready("mirror", "1.0")
    assert not client.is_model_ready("resting")
    assert not client.is_model_ready("none")
    assert get("/v2/health/live").json() == {"live": True}
    assert get("/v2/health/ready").json() == {"ready": True}
    assert get("/v2/models/mirror/ready").json() == {"name": "mirror", "ready": True}
    resting = get("/v2/models/resting/ready")
    assert (resting.status_code, resting.json()["error"]) == (503, "Model with name resting is not ready.")
    for path in ("/v2", "/v2/"):
        metadata = get(path)
        assert (metadata.status_code, metadata.json()["name"]) == (200, "modelserver")
        extensions = {"binary_tensor_data", "model_repository", "model_repository_extension"}
        assert extensions <= set(metadata.json()["extensions"])
    assert {"mirror", "typed"} <= set(get("/v2/models").json()["models"])


def states(client):
    return {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}


def test_repository_lists_loads_and_unloads(server, client):
    """A model of the store is listed, loaded, reloaded and unloaded by its file's name."""
    server.registered("rows.mar", model_name="other", initial_workers=0)
    shutil.copy(server.settings["model_store"] / "tell.mar", server.settings["model_store"] / "spare.mar")
    before = states(client)
    client.load_model("spare")
    loaded = server.describe("spare")
    client.load_model("spare")
    anew = server.describe("spare")
    during = states(client)
    ready = server.inference.post("/v2/repository/index", json={"ready": True}).json()
    client.unload_model("spare")

    assert (before["spare"], before["mirror"], before["other"]) == ("UNAVAILABLE", "READY", "UNAVAILABLE")
    assert during["spare"] == "READY"
    assert {entry["state"] for entry in ready} == {"READY"}
    assert loaded["workers"][0]["pid"] != anew["workers"][0]["pid"]
    assert states(client)["spare"] == "UNAVAILABLE"
    assert server.management.get("/models/spare").status_code == 404


def test_broken_or_foreign_models_are_refused(server):
    """What was loaded serves on (F52). Files and configuration come from the store, not from the request."""
    store = server.settings["model_store"]
    shutil.copy(store / "tell.mar", store / "changing.mar")
    first = server.inference.post("/v2/repository/models/changing/load")
    shutil.copy(store / "syntax.mar", store / "changing.mar")
    second = server.inference.post("/v2/repository/models/changing/load", json={})
    missing = server.inference.post("/v2/repository/models/missing/load", json={})

    assert (first.status_code, first.json()) == (200, {"name": "changing", "load": True})
    assert second.status_code == 503
    assert second.json()["error"].startswith("Model with name changing is not ready.")
    assert "SyntaxError" in second.json()["error"]
    assert server.predict("changing", b"1").status_code == 200
    assert missing.status_code == 404
    assert missing.json()["error"].startswith("Model with name missing does not exist. There are: ")
    server.unregister("changing")

    load = "/v2/repository/models/rows/load"
    for body, message in (
        (b"[]", "not a JSON object"),
        (b'{"parameters": {"config": "{}"}}', "'config' is not supported"),
        (b'{"parameters": {"file:1/model.pt": "AA=="}}', "is not supported"),
    ):
        response = server.inference.post(load, content=body)
        assert (response.status_code, message in response.json()["error"]) == (400, True)
    missing = server.inference.post("/v2/repository/models/missing/unload", json={})
    assert missing.status_code == 404
    assert missing.json()["error"].startswith("Model with name missing does not exist. There are: ")


def test_bodies_that_are_not_split(server):
    """``split_instances=false``: the handler gets the JSON and answers for itself; binary data are in it."""
    server.registered("tell.mar", model_name="unsplit", split_instances=False)
    field = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    text = json.dumps({"id": "7", "inputs": [field]}).encode()
    answer = server.inference.post(
        "/v2/models/unsplit/infer",
        content=text + struct.pack("<2f", 1, 2),
        headers={"Inference-Header-Content-Length": str(len(text))},
    )

    assert answer.json()["values"] == {
        "body": {"id": "7", "inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}]}
    }
