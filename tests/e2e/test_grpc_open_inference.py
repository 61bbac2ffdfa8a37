"""The Open Inference Protocol over gRPC, with Triton's own client and by hand (kserve reference 6, 7, 8)."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import shutil

import numpy
import pytest
from tests.e2e.grpc_client import PATIENCE, channel, ending, grpc_server, oip, stub
from tests.e2e.serving import ROOT, serving

from modelserver.tools.archiver import ArchiveConfig, build_archive

triton = pytest.importorskip("tritonclient.grpc")
np_to_triton_dtype = pytest.importorskip("tritonclient.utils").np_to_triton_dtype

MODEL_CODE = ROOT / "tests" / "e2e" / "model_code"
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
    store = folder / "store"
    store.mkdir()
    for name in ("obey", "echo", "sums"):
        shutil.copy(model_store / f"{name}.mar", store)
    config = folder / "model-config.yaml"
    code = str(MODEL_CODE / "mirror.py")
    # A stream has more requests at a time than the queues of the others take.
    config.write_text("jobQueueSize: 100\n")
    build_archive(ArchiveConfig("mirror", code, "1.0", export_path=store, config_file=config))
    config.write_text(SIGNATURE)
    build_archive(ArchiveConfig("typed", code, "3", export_path=store, config_file=config))
    config.write_text("sequenceBatching: true\nsequenceMaxIdleMSec: 60000\n")
    code = str(MODEL_CODE / "sums.py")
    build_archive(ArchiveConfig("summing", code, "1.0", export_path=store, config_file=config))
    with serving(grpc_server(folder, store, job_queue_size=2)) as started:
        for name in ("mirror", "typed", "obey", "summing"):
            started.registered(f"{name}.mar")
        started.registered("mirror.mar", model_name="quartet", batch_size=4, max_batch_delay=2000)
        yield started


@pytest.fixture(scope="module")
def client(server):
    """Triton's own client."""
    with contextlib.closing(
        triton.InferenceServerClient(f"127.0.0.1:{server.settings['grpc_inference_port']}")
    ) as made:
        yield made


@pytest.fixture(scope="module")
def service(server):
    """The service, spoken to by hand."""
    with channel(server, "inference") as to:
        yield stub(to, "inference.GRPCInferenceService")


def tensor(name, values):
    """An input of Triton's client."""
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
    """The answer to a request."""
    return service.ModelInfer(oip("ModelInferRequest", model_name=model, **fields), timeout=timeout)


# Triton's client


def test_health_and_metadata_describe_server_and_models(client):
    """Metadata describes the server and the models, with the inputs and outputs of the signature."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mirror")
    assert client.is_model_ready("typed", "3")
    server = client.get_server_metadata(as_json=True)
    assert server["name"] == "modelserver"
    assert "model_repository" in server["extensions"]
    metadata = client.get_model_metadata("typed", as_json=True)
    assert metadata["versions"] == ["3"]
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "2"]}]
    assert metadata["outputs"] == metadata["inputs"]


def test_raw_tensors_come_back_raw(client):
    """They keep their type and shape; an element of BYTES is like the body of a prediction."""
    tensors = [numpy.array([[0, 1, 1], [1, 0, 1]], dtype) for dtype in DTYPES]
    for sent in (*tensors, numpy.array([b"one", b"\xff\x00"], object)):
        result = client.infer("mirror", [tensor("x", sent)], request_id="seven")
        response = result.get_response()
        received = result.as_numpy(response.outputs[0].name)
        assert (received.dtype, received.tolist()) == (sent.dtype, sent.tolist())
        assert response.id == "seven"


def test_handler_sets_parameters_of_the_response(client):
    """Parameters that a handler sets are in the response, each with its own type."""
    reply = {"text": "ü", "whole": -3, "truth": True}
    answer = client.infer("mirror", [tensor("x", [1.0])], parameters=reply).get_response()
    got = {
        name: getattr(each, each.WhichOneof("parameter_choice")) for name, each in answer.parameters.items()
    }

    assert got == reply


def test_requested_outputs_are_returned_in_order(client):
    """Several inputs are several outputs here. If a request names outputs, the response has these in this
    order.
    """
    inputs = [tensor("a", [[1, 2]]), tensor("b", [[0.5]])]

    answer = client.infer("mirror", inputs, outputs=[triton.InferRequestedOutput("b")])

    assert [output.name for output in answer.get_response().outputs] == ["b"]
    assert answer.as_numpy("b").tolist() == [[0.5]]


def test_stream(client):
    """A stream answers in the order of its requests; a failure is one of the answers, and it goes on."""
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(10):
        model = "nobody" if number == 4 else "mirror"
        client.async_stream_infer(
            model, [tensor("x", numpy.full((1, 2), number, "i8"))], request_id=str(number)
        )
    outcome = [answers.get(timeout=PATIENCE) for _ in range(10)]
    client.stop_stream()

    (failure,) = (error.message() for _, error in outcome if error)
    assert failure.startswith("Model with name nobody does not exist. There are: ")
    assert [result.get_response().id for result, error in outcome if not error] == list("012356789")


def test_repository_lists_loads_and_unloads(server, client):
    """Models of the store are listed, loaded and unloaded by name."""
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


def test_repository_as_kserve_asks(service):
    """KServe's clients put the name into field 1, and read the reply."""
    query = oip("RepositoryModelLoadRequest", repository_name="echo")
    answer = service.RepositoryModelLoad(query)
    assert (answer.model_name, answer.isLoaded) == ("echo", True)
    gone = service.RepositoryModelUnload(oip("RepositoryModelUnloadRequest", repository_name="echo"))
    assert (gone.model_name, gone.isUnloaded) == ("echo", True)


# By hand


def test_typed_contents(service):
    """Typed contents have a typed answer, with ids of the server's where the client gives none."""
    answer = infer(service, inputs=[floats((1, 2), (3, 4))])

    (output,) = answer.outputs
    assert (output.datatype, list(output.shape)) == ("FP32", [2, 2])
    assert list(output.contents.fp32_contents) == [1, 2, 3, 4]
    assert not answer.raw_output_contents
    assert answer.model_name == "mirror"
    assert answer.model_version == "1.0"
    assert len(answer.id) == 36


@pytest.mark.parametrize(
    ("model", "fields", "code", "text"),
    [
        ("mirror", {"inputs": []}, "INVALID_ARGUMENT", "inputs is empty: at least one input is needed"),
        (
            "mirror",
            {"inputs": [floats((1,))], "outputs": [{"name": "nothing"}]},
            "INVALID_ARGUMENT",
            "Unexpected inference output 'nothing' for model 'mirror'",
        ),
        (
            "typed",
            {"inputs": [floats((1, 2, 3))]},
            "INVALID_ARGUMENT",
            "input 'x': shape is [1, 3], the model takes [-1, 2]",
        ),
        (
            "mirror",
            {
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [10_001, 0]}],
                "raw_input_contents": [b""],
            },
            "RESOURCE_EXHAUSTED",
            "The request has 10001 instances, max_request_instances=10000 are allowed.",
        ),
        (
            "mirror",
            {
                "inputs": [{"name": "x", "datatype": "INT8", "shape": [7_000_000]}],
                "raw_input_contents": [bytes(7_000_000)],
            },
            "RESOURCE_EXHAUSTED",
            "",
        ),
    ],
    ids=["no inputs", "unknown output", "signature", "rows", "bytes"],
)
def test_request_that_cannot_be_served_gets_its_code(service, model, fields, code, text):
    """A malformed request is INVALID_ARGUMENT, one that is too large RESOURCE_EXHAUSTED (F9)."""
    status, details = ending(lambda: infer(service, model, **fields))

    assert status == code
    assert details.startswith(text)


def test_unknown_models_and_versions_are_not_found(service):
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
    """A row for ``obey``."""
    return {"name": "x", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [value]}}


def orders(do, **fields):
    """Inputs that tell ``obey`` what to do."""
    return [text(json.dumps({"do": do, **fields}).encode())]


def test_failing_handler_is_internal(service):
    """A handler's exception is INTERNAL; codes that a handler sets are sent."""
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


def test_model_without_workers_is_not_ready(server, service):
    """A model without workers is known but not ready; predictions are UNAVAILABLE."""
    server.management.post("/models", params={"url": "echo.mar", "model_name": "idle", "initial_workers": 0})

    assert not service.ModelReady(oip("ModelReadyRequest", name="idle")).ready
    assert ending(lambda: infer(service, "idle", inputs=[text(b"x")]))[0] == "UNAVAILABLE"
    server.unregister("idle")


def test_torchserve_name(server):
    """The protocol is there under the name that TorchServe gives its service, too."""
    with channel(server, "inference") as to:
        service = stub(to, "org.pytorch.serve.grpc.openinference.GRPCInferenceService")

        assert service.ServerLive(oip("ServerLiveRequest")).live
        assert service.ServerMetadata(oip("ServerMetadataRequest")).name == "modelserver"
        answer = infer(service, inputs=[floats((1, 2))])
        assert list(answer.outputs[0].contents.fp32_contents) == [1, 2]
