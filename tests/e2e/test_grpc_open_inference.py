"""The Open Inference Protocol over gRPC, with Triton's own client and by hand (kserve reference 6, 7, 8)."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import shutil
import struct
from collections import Counter

import numpy
import pytest
from tests.e2e.grpc_client import PATIENCE, channel, ending, grpc_server, oip, stub
from tests.e2e.serving import ROOT, serving, wait_until

from modelserver.engine.tensors.datatypes import pack
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
    # The least that may come in at one time is one message as large as it may be.
    with serving(grpc_server(folder, store, job_queue_size=2, max_incoming_bytes=1)) as started:
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
    given = numpy.asarray(values)
    datatype = np_to_triton_dtype(given.dtype)
    made = triton.InferInput(name, list(given.shape), datatype)
    made.set_data_from_numpy(given)
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


def test_health(client):
    """Server and models say what they are."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mirror")
    assert client.is_model_ready("typed", "3")
    metadata = client.get_server_metadata(as_json=True)
    assert metadata["name"] == "modelserver"
    assert "model_repository" in metadata["extensions"]


def test_metadata(client):
    """A model's inputs and outputs are those of its signature; its properties say how it batches."""
    metadata = client.get_model_metadata("typed", as_json=True)

    assert metadata["versions"] == ["3"]
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "2"]}]
    assert metadata["outputs"] == metadata["inputs"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_datatype(client, dtype):
    """What is sent raw comes back raw, with its type and shape."""
    sent = numpy.array([[0, 1, 1], [1, 0, 1]], dtype)

    answer = client.infer("mirror", [tensor("x", sent)], request_id="seven")

    got = answer.as_numpy(answer.get_response().outputs[0].name)
    assert got.dtype == sent.dtype
    assert got.tolist() == sent.tolist()
    assert answer.get_response().id == "seven"


def test_parameters_of_the_handler(client):
    """What a handler says beside its outputs are parameters of the response, each of its own type."""
    said = {"text": "ü", "whole": -3, "truth": True}
    answer = client.infer("mirror", [tensor("x", [1.0])], parameters=said).get_response()
    got = {
        name: getattr(each, each.WhichOneof("parameter_choice")) for name, each in answer.parameters.items()
    }

    assert got == said


def test_bytes(client):
    """An element of BYTES is what the body of a prediction would be."""
    answer = client.infer("mirror", [tensor("x", numpy.array([b"one", b"\xff\x00"], object))])

    name = answer.get_response().outputs[0].name
    assert answer.as_numpy(name).tolist() == [b"one", b"\xff\x00"]


def test_several_inputs_and_wishes(client):
    """Several inputs are several outputs here; who asks for some gets those, in that order."""
    inputs = [tensor("a", [[1, 2]]), tensor("b", [[0.5]])]

    answer = client.infer("mirror", inputs, outputs=[triton.InferRequestedOutput("b")])

    assert [output.name for output in answer.get_response().outputs] == ["b"]
    assert answer.as_numpy("b").tolist() == [[0.5]]


def test_rows_share_batches(client):
    """The rows of requests that come together travel together, and each request gets its own."""
    answers = queue.Queue()
    for number in range(2):
        client.async_infer(
            "quartet",
            [tensor("x", numpy.full((2, 2), number, "f4"))],
            lambda result, error, number=number: answers.put((number, result, error)),
        )
    batches = set()
    for _ in range(2):
        number, result, error = answers.get(timeout=PATIENCE)
        assert error is None
        response = result.get_response()
        assert result.as_numpy(response.outputs[0].name).tolist() == [[number, number]] * 2
        batches.add(response.parameters["batchId"].string_param)
    assert len(batches) == 1


def test_stream(client):
    """A stream answers in the order of its requests; a failure is one of the answers, and it goes on."""
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(10):
        model = "nobody" if number == 4 else "mirror"
        client.async_stream_infer(
            model, [tensor("x", numpy.full((1, 2), number, "i8"))], request_id=str(number)
        )
    found = [answers.get(timeout=PATIENCE) for _ in range(10)]
    client.stop_stream()

    (failure,) = (error.message() for _, error in found if error)
    assert failure.startswith("Model with name nobody does not exist. There are: ")
    assert [result.get_response().id for result, error in found if not error] == list("012356789")


def test_repository(server, client):
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
    asked = oip("RepositoryModelLoadRequest", repository_name="echo")
    answer = service.RepositoryModelLoad(asked, timeout=PATIENCE)
    assert (answer.model_name, answer.isLoaded) == ("echo", True)
    gone = service.RepositoryModelUnload(
        oip("RepositoryModelUnloadRequest", repository_name="echo"), timeout=PATIENCE
    )
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
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-32768, 32767]),
        ("INT32", "int_contents", [-(1 << 31), (1 << 31) - 1]),
        ("INT64", "int64_contents", [-(1 << 63), (1 << 63) - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("UINT32", "uint_contents", [0, (1 << 32) - 1]),
        ("UINT64", "uint64_contents", [0, (1 << 64) - 1]),
        ("FP32", "fp32_contents", [-0.5, 3.4028234663852886e38]),
        ("FP64", "fp64_contents", [5e-324, 1.7976931348623157e308]),
        ("BYTES", "bytes_contents", [b"\x00\xff", b""]),
    ],
)
def test_typed_contents_of_each_datatype(service, datatype, field, values):
    """Through a worker and back in the same field, with datatype and shape, down to the ends of its range;
    sent raw, with the same bytes.
    """
    head = {"name": "x", "datatype": datatype, "shape": [1, 2]}
    (output,) = infer(service, inputs=[{**head, "contents": {field: values}}]).outputs
    raw = pack(datatype, values)
    again = infer(service, inputs=[head], raw_input_contents=[raw])

    assert (output.datatype, list(output.shape)) == (datatype, [1, 2])
    assert {each.name: list(content) for each, content in output.contents.ListFields()} == {field: values}
    assert (again.outputs[0].datatype, list(again.raw_output_contents)) == (datatype, [raw])


def test_halves_are_raw(service):
    """A request with halves is raw, as is its answer: typed contents have no field for them."""
    raw = struct.pack("<2e", 0.5, 2)
    answer = infer(
        service, inputs=[{"name": "x", "datatype": "FP16", "shape": [1, 2]}], raw_input_contents=[raw]
    )
    assert list(answer.raw_output_contents) == [raw]

    code, text = ending(
        lambda: infer(
            service,
            inputs=[{"name": "x", "datatype": "FP16", "shape": [1], "contents": {"fp32_contents": [1]}}],
        )
    )
    assert (code, text) == ("INVALID_ARGUMENT", "input 'x': FP16 has no typed contents, send it raw")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"inputs": []}, "inputs is empty: at least one input is needed"),
        (
            {"inputs": [floats((1, 2))], "raw_input_contents": [b"x" * 8]},
            "contents field must not be specified when using raw_input_contents for input 'x' for model 'mi",
        ),
        (
            {"inputs": [floats((1, 2))], "raw_input_contents": [b"", b""]},
            "the number of inputs (1) does not match the expected number of raw input contents (2) for mod",
        ),
        ({"inputs": [floats((1,)), floats((1,))]}, "input 'x' is given twice"),
        (
            {"inputs": [floats(int_contents=[1])]},
            "input 'x': FP32 data is in int_contents instead of fp32_contents",
        ),
        ({"inputs": [{**floats((1,)), "shape": [2]}]}, "input 'x': its shape needs 8 bytes, its data has 4"),
        ({"inputs": [{**floats((1,)), "shape": [-1]}]}, "input 'x': shape [-1] has a negative size"),
        (
            {"inputs": [{**floats((1,)), "shape": [1 << 62, 1 << 62]}]},
            f"input 'x': shape [{1 << 62}, {1 << 62}] has more elements than fit in a body",
        ),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}], "raw_input_contents": [b"x" * 9]},
            "input 'x': its shape needs 8 bytes, its data has 9",
        ),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}], "raw_input_contents": [b"x" * 7]},
            "input 'x': its shape needs 8 bytes, its data has 7",
        ),
        (
            {"inputs": [floats((1,))], "outputs": [{"name": "nothing"}]},
            "Unexpected inference output 'nothing' for model 'mirror'",
        ),
        ({"inputs": [{**floats((1,)), "datatype": "FP8"}]}, "input 'x': unknown datatype 'FP8'"),
        (
            {
                "inputs": [
                    {"name": "x", "datatype": "UINT8", "shape": [1], "contents": {"uint_contents": [256]}}
                ]
            },
            "input 'x': a value is out of the range of UINT8",
        ),
        (
            {
                "inputs": [{"name": "x", "datatype": "BYTES", "shape": [1]}],
                "raw_input_contents": [b"\x09\0\0\0a"],
            },
            "input 'x': an element of 9 bytes is announced where 1 are left",
        ),
        ({"inputs": [floats((1,))], "parameters": {"p": {}}}, "the request: parameter p has no value"),
        ({"inputs": [floats((1,))], "outputs": [{"name": "o"}, {"name": "o"}]}, "output 'o' is given twice"),
        (
            {"inputs": [floats((1,))], "parameters": {"timeout": {"int64_param": -1}}},
            "the request: parameter timeout",
        ),
    ],
)
def test_malformed(service, fields, text):
    """Each is INVALID_ARGUMENT and named (F9, F11)."""
    code, found = ending(lambda: infer(service, **fields))

    assert code == "INVALID_ARGUMENT"
    assert found.startswith(text)


@pytest.mark.parametrize("body", [b"\x0a\x01\xff", b"\x2a\x03\x0a\x01\xff", b"\xff\xff\xff"])
def test_wrong_text(service, body):
    """A name of a model or an input that is no UTF-8, and what is no message, are the client's fault (F2)."""
    code, found = ending(lambda: service.ModelInfer(body, timeout=PATIENCE))

    assert code == "INVALID_ARGUMENT"
    assert found.startswith("The message is not of type inference.ModelInferRequest")


def test_too_much(service):
    """More rows than a request may have, and more bytes than a message, are RESOURCE_EXHAUSTED (F9)."""
    rows = {"name": "x", "datatype": "FP32", "shape": [10_001, 0]}
    large = {"name": "x", "datatype": "INT8", "shape": [7_000_000]}

    code, found = ending(lambda: infer(service, inputs=[rows], raw_input_contents=[b""]))
    assert (code, found) == (
        "RESOURCE_EXHAUSTED",
        "The request has 10001 instances, max_request_instances=10000 are allowed.",
    )
    code, _ = ending(lambda: infer(service, inputs=[large], raw_input_contents=[bytes(7_000_000)]))
    assert code == "RESOURCE_EXHAUSTED"


def test_signature(service):
    """A request that the signature does not allow is refused, with the name of the input."""
    code, text = ending(lambda: infer(service, "typed", inputs=[floats((1, 2, 3))]))

    assert code == "INVALID_ARGUMENT"
    assert text == "input 'x': shape is [1, 3], the model takes [-1, 2]"


def test_unknown(service):
    """Unknown models and versions are NOT_FOUND, also where readiness is asked; an empty name too."""
    named = lambda **fields: oip("ModelReadyRequest", **fields)  # noqa: E731
    for call in (
        lambda: infer(service, "no", inputs=[floats((1, 2))]),
        lambda: infer(service, "mirror", model_version="9", inputs=[floats((1, 2))]),
        lambda: service.ModelReady(named(name="no"), timeout=PATIENCE),
        lambda: service.ModelReady(named(name="mirror", version="9"), timeout=PATIENCE),
        lambda: service.ModelReady(named(name=""), timeout=PATIENCE),
        lambda: service.ModelMetadata(oip("ModelMetadataRequest", name="no"), timeout=PATIENCE),
    ):
        assert ending(call)[0] == "NOT_FOUND"


def text(value):
    """A row that ``obey`` is told by."""
    return {"name": "x", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [value]}}


def orders(do, **fields):
    """Inputs that tell ``obey`` what to do."""
    return [text(json.dumps({"do": do, **fields}).encode())]


def test_failures(service):
    """A handler's exception is INTERNAL, its own codes are kept."""
    code, found = ending(lambda: infer(service, "obey", inputs=orders("raise")))
    assert code == "INTERNAL"
    assert found.startswith("ValueError : as it was told (obey.py, line ")
    asked = orders("predict_error", text="not here", code=404)
    code, found = ending(lambda: infer(service, "obey", inputs=asked))
    assert code == "NOT_FOUND"
    assert re.fullmatch(r"not here \[request [0-9a-f-]{36}\]", found)


def test_not_ready(server, service):
    """A model without workers is known and not ready; asked for predictions it is UNAVAILABLE."""
    server.management.post("/models", params={"url": "echo.mar", "model_name": "idle", "initial_workers": 0})

    assert not service.ModelReady(oip("ModelReadyRequest", name="idle"), timeout=PATIENCE).ready
    assert ending(lambda: infer(service, "idle", inputs=[text(b"x")]))[0] == "UNAVAILABLE"
    server.unregister("idle")


def test_full_queue_and_deadline(server, service):
    """A full queue is UNAVAILABLE, so that clients try again; a deadline in the request counts (F30, F33)."""
    calls = []
    for seconds in (0.8, 0, 0, 0):
        asked = oip("ModelInferRequest", model_name="obey", inputs=orders("sleep", seconds=seconds))
        calls.append(service.ModelInfer.future(asked, timeout=PATIENCE))
        if len(calls) < 3:
            wait_until(
                lambda: server.metric("modelserver_batches_in_flight", model_name="obey") == len(calls),
                "the worker has it",
            )
    server.wait_pending("obey", 2)
    assert ending(lambda: infer(service, "obey", inputs=orders("nothing")))[0] == "UNAVAILABLE"
    calls.pop().cancel()
    server.wait_pending("obey", 1)
    late = {"timeout": {"int64_param": 50_000}}
    code, found = ending(lambda: infer(service, "obey", inputs=orders("nothing"), parameters=late))

    assert code == "DEADLINE_EXCEEDED"
    assert found.startswith("The deadline of the request passed after")
    server.wait_pending("obey", 1)
    assert [len(call.result().outputs) for call in calls] == [1, 1, 1]


def test_sequences(service):
    """Triton's sequence parameters name the sequence of a model that has them."""
    seen = []
    for number in (1, 2):
        named = {"sequence_id": {"int64_param": 42}, "sequence_start": {"bool_param": number == 1}}
        answer = infer(service, "summing", inputs=[text(b'{"add": %d}' % number)], parameters=named)
        seen.append(json.loads(answer.outputs[0].contents.bytes_contents[0]))

    assert [each["id"] for each in seen] == ["42", "42"]
    assert [each["seen"] for each in seen] == [[1], [1, 2]]


def test_torchserve_name(server):
    """The protocol is there under the name that TorchServe gives its service, too."""
    with channel(server, "inference") as to:
        service = stub(to, "org.pytorch.serve.grpc.openinference.GRPCInferenceService")

        assert service.ServerLive(oip("ServerLiveRequest"), timeout=PATIENCE).live
        assert service.ServerMetadata(oip("ServerMetadataRequest"), timeout=PATIENCE).name == "modelserver"
        answer = infer(service, inputs=[floats((1, 2))])
        assert list(answer.outputs[0].contents.fp32_contents) == [1, 2]


@pytest.mark.slow
def test_envelope(tmp_path, model_store):
    """A model in TorchServe's envelope gets the protocol's JSON, and its answer becomes tensors."""
    made = grpc_server(tmp_path, model_store, service_envelope="kservev2")
    with serving(made) as server, channel(server, "inference") as to:
        server.registered("saw.mar")
        service = stub(to, "inference.GRPCInferenceService")
        answer = infer(service, "saw", id="abc", inputs=[floats((1, 2), name="a")])

    assert answer.id == "abc"
    assert answer.outputs[0].name == "a"
    assert b"FP32" in answer.outputs[0].contents.bytes_contents[0]


def test_large_messages_are_bounded_together(service):
    """What waits to be read counts toward max_incoming_bytes: one large message always has room, each
    further one is refused, and what was read or refused is counted no more.
    """
    large = oip("ModelInferRequest", model_name="mirror", inputs=[{}] * 2_000_000).SerializeToString()
    assert len(large) == 4_000_008
    calls = [service.ModelInfer.future(large, timeout=PATIENCE) for _ in range(4)]
    endings = Counter(ending(call.result) for call in calls)

    assert {code for code, _ in endings} == {"INVALID_ARGUMENT", "UNAVAILABLE"}
    assert "max_incoming_bytes=" in next(text for code, text in endings if code == "UNAVAILABLE")
    assert ending(lambda: service.ModelInfer(large, timeout=PATIENCE))[0] == "INVALID_ARGUMENT"
