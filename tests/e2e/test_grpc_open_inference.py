"""The Open Inference Protocol over gRPC, with Triton's own client and by hand (kserve reference 6, 7, 8)."""

import contextlib
import json
import re

import numpy
import pytest
from tests.e2e.grpc_client import PATIENCE, address_of, channel, ending, grpc_server, oip, stub
from tests.e2e.serving import MODEL_CODE, archived, copied, serving

triton = pytest.importorskip("tritonclient.grpc")
np_to_triton_dtype = pytest.importorskip("tritonclient.utils").np_to_triton_dtype

SIGNATURE = """
signature:
  inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
  outputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
"""
DTYPES = ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_store):
    """``mirror`` gives back what it gets, ``typed`` has a signature, ``quartet`` takes four at once."""
    folder = tmp_path_factory.mktemp("open")
    store = copied(folder / "store", model_store, "obey", "echo", "sums")
    # A stream has more requests at a time than the queues of the others take.
    archived(store, "mirror", MODEL_CODE / "mirror.py", config="jobQueueSize: 100\n")
    archived(store, "typed", MODEL_CODE / "mirror.py", "3", SIGNATURE)
    sequences = "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\n"
    archived(store, "summing", MODEL_CODE / "sums.py", config=sequences)
    with serving(grpc_server(folder, store, job_queue_size=2)) as started:
        for name in ("mirror", "typed", "obey", "summing"):
            started.registered(f"{name}.mar")
        started.registered("mirror.mar", model_name="quartet", batch_size=4, max_batch_delay=2000)
        yield started


@pytest.fixture(scope="module")
def client(server):
    with contextlib.closing(triton.InferenceServerClient(address_of(server))) as made:
        yield made


@pytest.fixture(scope="module")
def service(server):
    with channel(server, "inference") as to:
        yield stub(to, "inference.GRPCInferenceService")


def tensor(name, values):
    supplied = numpy.asarray(values)
    datatype = np_to_triton_dtype(supplied.dtype)
    made = triton.InferInput(name, list(supplied.shape), datatype)
    made.set_data_from_numpy(supplied)
    return made


def floats(*rows, name="x", **contents):
    """A tensor of a request; typed unless other contents are given."""
    shape = [len(rows), len(rows[0])] if rows else [1]
    flat = [value for row in rows for value in row]
    return {"name": name, "datatype": "FP32", "shape": shape, "contents": contents or {"fp32_contents": flat}}


def infer(service, model="mirror", timeout=PATIENCE, **fields):
    return service.ModelInfer(oip("ModelInferRequest", model_name=model, **fields), timeout=timeout)


def test_raw_tensors_come_back_raw(client):
    """With type and shape; parameters of a handler have types; a BYTES element is a prediction's body."""
    tensors = [numpy.array([[0, 1, 1], [1, 0, 1]], dtype) for dtype in DTYPES]
    for sent in (*tensors, numpy.array([b"one", b"\xff\x00"], object)):
        result = client.infer("mirror", [tensor("x", sent)], request_id="seven")
        response = result.get_response()
        received = result.as_numpy(response.outputs[0].name)
        assert (received.dtype, received.tolist()) == (sent.dtype, sent.tolist())
        assert response.id == "seven"

    reply = {"text": "ü", "whole": -3, "truth": True}
    answer = client.infer("mirror", [tensor("x", [1.0])], parameters=reply).get_response()
    got = {name: getattr(p, p.WhichOneof("parameter_choice")) for name, p in answer.parameters.items()}

    assert got == reply


def test_repository_lists_loads_and_unloads(server, client, service):
    """By name, which KServe's clients put into field 1."""
    index = {each.name: each.state for each in client.get_model_repository_index().models}
    assert index["mirror"] == "READY"
    assert index["echo"] == "UNAVAILABLE"
    client.load_model("echo")
    assert client.is_model_ready("echo")
    client.unload_model("echo")
    with pytest.raises(triton.InferenceServerException, match="does not exist"):
        client.is_model_ready("echo")
    with pytest.raises(triton.InferenceServerException, match="NOT_FOUND"):
        client.load_model("no_such")
    with pytest.raises(triton.InferenceServerException, match="parameter 'config' is not supported"):
        client.load_model("echo", config="{}")

    query = oip("RepositoryModelLoadRequest", repository_name="echo")
    answer = service.RepositoryModelLoad(query)
    assert (answer.model_name, answer.isLoaded) == ("echo", True)
    gone = service.RepositoryModelUnload(oip("RepositoryModelUnloadRequest", repository_name="echo"))
    assert (gone.model_name, gone.isUnloaded) == ("echo", True)


SHAPE = "input 'x': shape is [1, 3], the model takes [-1, 2]"
ROWS = "The request has 10001 instances, max_request_instances=10000 are allowed."


def empty(datatype, rows, size):
    tensor = {"name": "x", "datatype": datatype, "shape": [rows, size and 1]}
    return {"inputs": [tensor], "raw_input_contents": [bytes(size)]}


@pytest.mark.parametrize(
    ("model", "fields", "code", "text"),
    [
        ("mirror", {"inputs": []}, "INVALID_ARGUMENT", "inputs is empty: at least one input is needed"),
        ("typed", {"inputs": [floats((1, 2, 3))]}, "INVALID_ARGUMENT", SHAPE),
        ("mirror", empty("FP32", 10_001, 0), "RESOURCE_EXHAUSTED", ROWS),
        ("mirror", empty("INT8", 7_000_000, 7_000_000), "RESOURCE_EXHAUSTED", ""),
    ],
    ids=["no inputs", "signature", "rows", "bytes"],
)
def test_request_that_cannot_be_served_gets_its_code(service, model, fields, code, text):
    """A malformed request is INVALID_ARGUMENT, one that is too large RESOURCE_EXHAUSTED (F9)."""
    status, details = ending(lambda: infer(service, model, **fields))

    assert status == code
    assert details.startswith(text)


def test_unknown_models_and_versions_are_refused(service):
    """Unknown models and versions are NOT_FOUND, also in calls for readiness; an empty name too."""
    named = lambda **fields: oip("ModelReadyRequest", **fields)  # noqa: E731
    for call in (
        lambda: infer(service, "no", inputs=[floats((1, 2))]),
        lambda: infer(service, "mirror", model_version="9", inputs=[floats((1, 2))]),
        lambda: service.ModelReady(named(name="no")),
        lambda: service.ModelReady(named(name="mirror", version="9")),
        lambda: service.ModelReady(named(name="")),
        lambda: service.ModelMetadata(oip("ModelMetadataRequest", name="no")),
    ):
        assert ending(call)[0] == "NOT_FOUND"


def text(value):
    return {"name": "x", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [value]}}


def orders(do, **fields):
    return [text(json.dumps({"do": do, **fields}).encode())]


def test_failing_handler_is_internal(service):
    code, outcome = ending(lambda: infer(service, "obey", inputs=orders("raise")))
    assert code == "INTERNAL"
    assert outcome.startswith("ValueError : as it was told (obey.py, line ")
    query = orders("predict_error", text="not here", code=404)
    code, outcome = ending(lambda: infer(service, "obey", inputs=query))
    assert code == "NOT_FOUND"
    assert re.fullmatch(r"not here \[request [0-9a-f-]{36}\]", outcome)
    refused = oip("ModelInferRequest", model_name="obey", inputs=query)
    (part,) = service.ModelStreamInfer(iter([refused]))
    assert re.fullmatch(r"not here \[request [0-9a-f-]{36}\]", part.error_message)


def test_service_has_torchserves_name_too(server):
    """The protocol is there under the name that TorchServe gives its service, too."""
    with channel(server, "inference") as to:
        service = stub(to, "org.pytorch.serve.grpc.openinference.GRPCInferenceService")

        assert service.ServerLive(oip("ServerLiveRequest")).live
        assert service.ServerMetadata(oip("ServerMetadataRequest")).name == "modelserver"
        answer = infer(service, inputs=[floats((1, 2))])
        assert list(answer.outputs[0].contents.fp32_contents) == [1, 2]
