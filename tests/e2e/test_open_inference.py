"""The Open Inference Protocol over REST (kserve reference 5, 7, 8 and 9; design, section 9, "Rows")."""

from __future__ import annotations

import base64
import gzip
import io
import json
import shutil
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.e2e.serving import Home, Server, serving

from modelserver.engine.tensors.datatypes import DATATYPES
from modelserver.tools.archiver import ArchiveConfig, build_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

triton = pytest.importorskip("tritonclient.http")
triton_utils = pytest.importorskip("tritonclient.utils")
bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

MODEL_CODE = Path(__file__).parent / "model_code"
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
def server(tmp_path_factory: pytest.TempPathFactory, model_store: Path) -> Iterator[Server]:
    """``mirror`` takes rows one by one, ``gather`` in batches of 4 for up to 0.3 s, ``strict`` in fours at
    once and nothing but tensors; ``typed`` has a signature.
    """
    folder = tmp_path_factory.mktemp("open")
    store = folder / "store"
    store.mkdir()
    for name in ("mirror", "obey", "sized", "tell", "rows", "syntax"):
        shutil.copy(model_store / f"{name}.mar", store)
    config = folder / "model-config.yaml"
    config.write_text(SIGNATURE)
    build_archive(
        ArchiveConfig("typed", str(MODEL_CODE / "mirror.py"), "3", export_path=store, config_file=config)
    )
    with serving(Server(Home(folder), store)) as started:
        started.registered("mirror.mar")
        started.registered("mirror.mar", model_name="gather", max_batch_size=4, max_latency=300)
        strict = {"split_instances": True, "batch_size": 4, "batch_policy": "greedy"}
        started.registered("mirror.mar", model_name="strict", **strict)
        for name in ("sized", "tell", "rows", "typed"):
            started.registered(f"{name}.mar", batch_size=4, batch_policy="greedy")
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    """Triton's own client."""
    made = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield made
    made.close()


def infer(server: Server, model: str, *inputs: dict[str, Any], **fields: Any) -> httpx.Response:
    """A request in JSON."""
    return server.inference.post(f"/v2/models/{model}/infer", json={"inputs": list(inputs), **fields})


def an_input(name: str, datatype: str, shape: list[int], data: list[Any], **fields: Any) -> dict[str, Any]:
    """One input in JSON."""
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **fields}


def numbers(*values: float) -> dict[str, Any]:
    """One input with a number a row."""
    return an_input("x", "FP32", [len(values)], list(values))


def together(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls made at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(20) for future in [pool.submit(call) for call in calls]]


# Inference


# Triton's client sends these in binary only.
HALVES = ("FP16", "BF16")


@pytest.mark.parametrize(
    ("datatype", "sent"),
    [
        (datatype, sent)
        for datatype in (*NUMPY, "BYTES")
        for sent in (True, False)
        if sent or datatype not in HALVES
    ],
)
@pytest.mark.parametrize("wanted", [True, False], ids=["binary", "json"])
def test_every_datatype(client: Any, datatype: str, sent: bool, wanted: bool) -> None:
    """Triton's client gets back what it sent, in each form and both ways."""
    if datatype == "BYTES":
        values = numpy.array([["a"], ["ü"], [""]], dtype=object)
    else:
        values = numpy.array([[0, 1, 2], [3, 1, 0]]).astype(NUMPY[datatype])
    given_input = triton.InferInput("x", list(values.shape), datatype)
    given_input.set_data_from_numpy(values, binary_data=sent)
    output = triton.InferRequestedOutput("output_0", binary_data=wanted)
    result = client.infer("mirror", [given_input], outputs=[output], request_id="7")
    expected = numpy.array([b"a", "ü".encode(), b""], dtype=object) if datatype == "BYTES" else values
    answer = result.get_response()

    assert answer["id"] == "7"
    assert answer["model_name"] == "mirror"
    assert answer["model_version"] == "1.0"
    assert result.get_output("output_0")["datatype"] == datatype
    got = result.as_numpy("output_0")
    if got.dtype == object or got.dtype.kind == "U":
        got = numpy.array([x.encode() if isinstance(x, str) else x for x in got.reshape(-1)], dtype=object)
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("datatype", HALVES)
def test_halves_in_json(server: Server, datatype: str) -> None:
    """Half-precision numbers may be JSON, which the protocol leaves open."""
    answer = infer(server, "mirror", an_input("x", datatype, [2, 1], [1.5, -2]))

    assert answer.json()["outputs"][0]["data"] == [1.5, -2.0]


def test_several_inputs(client: Any) -> None:
    """Binary and JSON inputs mixed; each output in the form that is asked for it, in the order asked for."""
    x = triton.InferInput("x", [2, 2], "FP32")
    x.set_data_from_numpy(numpy.array([[1, 2], [3, 4]], "f4"))
    y = triton.InferInput("y", [2], "INT64")
    y.set_data_from_numpy(numpy.array([5, 6]), binary_data=False)
    wanted = [triton.InferRequestedOutput("y"), triton.InferRequestedOutput("x", binary_data=False)]
    result = client.infer("strict", [x, y], outputs=wanted)

    assert [output["name"] for output in result.get_response()["outputs"]] == ["y", "x"]
    assert result.as_numpy("x").tolist() == [[1, 2], [3, 4]]
    assert result.as_numpy("y").tolist() == [5, 6]
    assert "data" not in result.get_output("y")
    assert "data" in result.get_output("x")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_bodies(client: Any, algorithm: str) -> None:
    """The length of the JSON is that before compression; a whole body may be compressed (F6)."""
    x = triton.InferInput("x", [1, 1000], "FP64")
    x.set_data_from_numpy(numpy.ones((1, 1000)))
    result = client.infer("mirror", [x], request_compression_algorithm=algorithm)

    assert result.as_numpy("output_0").sum() == 1000


def test_answers_in_json(server: Server) -> None:
    """The type is exactly application/json; an id is made where none is given; nothing is null."""
    answer = infer(server, "mirror", numbers(1, 2))
    body = answer.json()

    assert answer.headers["content-type"] == "application/json"
    assert body["id"] == answer.headers["x-request-id"]
    assert body["outputs"] == [{"name": "output_0", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}]
    assert None not in body.values()


def test_answers_in_binary(server: Server) -> None:
    """The type is application/octet-stream, and a header says where the JSON ends."""
    answer = infer(server, "mirror", numbers(1, 2), parameters={"binary_data_output": True})
    length = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.content[:length])["outputs"]

    assert answer.headers["content-type"] == "application/octet-stream"
    assert output["parameters"] == {"binary_data_size": 8}
    assert answer.content[length:] == struct.pack("<2f", 1, 2)


def test_one_version(server: Server) -> None:
    """A version may be named; one that is not there is told so."""
    path = "/v2/models/mirror/versions/{}/infer"
    body = {"inputs": [numbers(1)]}

    assert server.inference.post(path.format("1.0"), json=body).json()["outputs"][0]["data"] == [1.0]
    missing = server.inference.post(path.format("9"), json=body)
    assert missing.status_code == 404
    assert "9" in missing.json()["error"]


def test_raw_bodies(server: Server) -> None:
    """With a header length of 0 the body is the one input, and the answer is binary."""
    answer = server.inference.post(
        "/v2/models/sized/infer", content=png(4, 3), headers={"Inference-Header-Content-Length": "0"}
    )
    length = int(answer.headers["inference-header-content-length"])

    assert json.loads(answer.content[length + 4 :]) == {"width": 4, "height": 3}


@pytest.mark.parametrize("content_type", [None, "application/json; charset=utf-8", "text/plain"])
def test_the_content_type_does_not_matter(server: Server, content_type: str | None) -> None:
    """Triton's client sends none."""
    headers = {} if content_type is None else {"content-type": content_type}
    body = json.dumps({"inputs": [numbers(4)]}).encode()
    answer = server.inference.post("/v2/models/strict/infer", content=body, headers=headers)

    assert answer.json()["outputs"][0]["data"] == [4.0]


@given(
    st.sampled_from(sorted({*NUMPY} - {"BOOL", "BF16"})),
    st.lists(st.integers(0, 3), max_size=3).flatmap(
        lambda shape: st.tuples(st.just(shape), st.binary(min_size=8 * 27, max_size=8 * 27))
    ),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tensor_comes_back(server: Server, datatype: str, drawn: tuple[list[int], bytes]) -> None:
    """Whatever its shape (no rows and no dimensions too) and whatever its bytes, by way of an echo."""
    shape, content = drawn
    size = int(numpy.prod(shape)) * DATATYPES[datatype].width
    field = {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [field], "parameters": {"binary_data_output": True}}).encode()
    answer = server.inference.post(
        "/v2/models/strict/infer",
        content=text + content[:size],
        headers={"Inference-Header-Content-Length": str(len(text))},
    )
    length = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.content[:length])["outputs"]

    assert output["shape"] == (shape or [1])
    assert output["datatype"] == datatype
    assert answer.content[length:] == content[:size]


# What handlers get and give


def png(width: int, height: int) -> bytes:
    """A picture."""
    content = io.BytesIO()
    Image.new("RGB", (width, height)).save(content, "PNG")
    return content.getvalue()


def test_pictures(client: Any, server: Server) -> None:
    """Each BYTES element is a row, as the body of a prediction would be; base64 text is one too."""
    pictures = numpy.array([png(4, 3), png(5, 2)], dtype=object)
    x = triton.InferInput("image", [2], "BYTES")
    x.set_data_from_numpy(pictures)
    binary = [json.loads(each) for each in client.infer("sized", [x]).as_numpy("output_0")]
    text = infer(server, "sized", an_input("image", "BYTES", [1], [base64.b64encode(png(7, 1)).decode()]))

    assert binary == [{"width": 4, "height": 3}, {"width": 5, "height": 2}]
    assert json.loads(text.json()["outputs"][0]["data"][0]) == {"width": 7, "height": 1}
    assert server.predict("sized", png(4, 3)).json() == binary[0]


def test_parameters_reach_the_handler(server: Server) -> None:
    """As those of a V1 body do; those of the protocol itself do not."""
    answer = infer(
        server,
        "tell",
        an_input("x", "BYTES", [1], ["a"], parameters={"language": "en"}),
        parameters={"k": 3, "timeout": 5_000_000, "binary_data_output": False},
        outputs=[{"name": "output_0", "parameters": {"digits": 2}}],
    )
    told = json.loads(answer.json()["outputs"][0]["data"][0])

    assert told["values"] == {"data": "a"}
    assert told["parameters"] == {
        "parameters": {"k": 3},
        "inputs": {"x": {"language": "en"}},
        "outputs": {"output_0": {"digits": 2}},
    }


def test_parameters_of_the_handler(server: Server) -> None:
    """What a handler says beside its outputs are parameters of the response; ``batchId`` is the server's."""
    said = {"text": "ü", "whole": -3, "half": 0.5, "truth": True}
    alone = infer(server, "mirror", numbers(1, 2), parameters=said).json()
    batched = infer(server, "gather", numbers(1), parameters={**said, "batchId": "mine"}).json()
    silent = infer(server, "mirror", numbers(1)).json()

    assert alone["parameters"] == said
    assert batched["parameters"].pop("batchId") != "mine"
    assert batched["parameters"] == said
    assert "parameters" not in silent


def test_the_same_rows_by_every_protocol(server: Server) -> None:
    """V1, V2 and /predictions lead to the same answers."""
    files = [png(4, 3), png(5, 2)]
    texts = [base64.b64encode(file).decode() for file in files]
    by_v2 = infer(server, "sized", an_input("image", "BYTES", [2], texts)).json()["outputs"][0]["data"]
    by_v1 = server.v1("sized", [{"data": text} for text in texts]).json()["predictions"]
    alone = [server.predict("sized", file).json() for file in files]

    assert alone == [{"width": 4, "height": 3}, {"width": 5, "height": 2}]
    assert by_v1 == alone
    assert [json.loads(each) for each in by_v2] == alone


def test_only_what_may_share_a_batch_does(server: Server) -> None:
    """Other datatypes, row shapes, parameters or outputs are other batches; ids, forms and timeouts are not
    (F22).
    """
    same = [
        lambda: infer(server, "gather", numbers(1), id="a"),
        lambda: infer(server, "gather", numbers(2), parameters={"binary_data_output": True}),
        lambda: infer(server, "gather", numbers(3), parameters={"timeout": 9_000_000}),
    ]
    other = [
        lambda: infer(server, "gather", an_input("x", "FP64", [1], [1])),
        lambda: infer(server, "gather", an_input("x", "FP32", [1, 1], [1])),
        lambda: infer(server, "gather", an_input("z", "FP32", [1], [1])),
        lambda: infer(server, "gather", numbers(1), parameters={"k": 1}),
        lambda: infer(server, "gather", numbers(1), outputs=[{"name": "output_0"}]),
        lambda: server.predict("gather", b"1"),
    ]
    answers = together(*same, *other)
    ids = [answer.headers["x-batch-id"] for answer in answers]

    assert {answer.status_code for answer in answers} == {200}
    assert len(set(ids[: len(same)])) == 1
    assert len(set(ids)) == 1 + len(other)
    assert [answer.headers["x-rows"] for answer in answers] == ["3"] * 3 + ["1"] * len(other)
    assert answers[0].json()["parameters"] == {"batchId": ids[0]}


def test_more_rows_than_a_batch(server: Server) -> None:
    """A request is cut into batches and its answer joined (F25)."""
    values = [float(n) for n in range(11)]
    answer = infer(server, "strict", numbers(*values))

    assert answer.json()["outputs"][0]["data"] == values
    assert int(answer.headers["x-rows"]) <= 4


def test_what_cannot_be_cut_travels_whole(server: Server) -> None:
    """A scalar, no rows, or inputs that differ in their first dimension are one row as they are."""
    scalar = infer(server, "strict", an_input("x", "INT32", [], [7])).json()["outputs"][0]
    none = infer(server, "strict", an_input("x", "INT32", [0, 3], [])).json()["outputs"][0]
    two = infer(
        server, "strict", an_input("x", "INT32", [1], [7]), an_input("y", "INT32", [2, 1], [8, 9])
    ).json()["outputs"]

    assert (scalar["shape"], scalar["data"]) == ([1], [7])
    assert (none["shape"], none["data"]) == ([0, 3], [])
    assert [(each["shape"], each["data"]) for each in two] == [([1], [7]), ([2, 1], [8, 9])]


def test_no_rows_have_no_answers(server: Server) -> None:
    """What a handler makes of nothing is told to the client as a mistake of its own."""
    refused = infer(server, "tell", an_input("x", "INT32", [0, 3], []))

    assert (refused.status_code, refused.json()["error"]) == (
        400,
        "the inputs have no rows, but model 'tell' returned some",
    )


def test_other_bodies_reach_other_handlers(server: Server) -> None:
    """What is no V2 request is refused for every model, unless it takes bodies as they are."""
    path = "/v2/models/{}/infer"
    server.registered("tell.mar", model_name="whole", split_instances="false")
    whole = server.inference.post(path.format("whole"), json={"prompt": "p"})

    assert whole.json()["values"] == {"body": {"prompt": "p"}}
    for name in ("tell", "strict"):
        refused = server.inference.post(path.format(name), json={"prompt": "p"})
        assert refused.status_code == 400
        assert "inputs" in refused.json()["error"]


# Errors


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"shape": [3, 2]}, "'x'"),
        ({"shape": [-1, 2]}, "'x'"),
        ({"shape": [1 << 62, 1 << 62]}, "'x'"),
        ({"shape": [1 << 40, 0], "data": []}, "'x'"),
        ({"datatype": "FLOAT"}, "'x'"),
        ({"datatype": "BYTES", "shape": [1], "data": ["a", "b"]}, "'x'"),
        ({"data": [1, "2"]}, "'x'"),
        ({"data": None}, "'x'"),
        ({"shape": "two"}, "shape"),
        ({"name": None}, "name"),
        ({"parameters": {"binary_data_size": 8}}, "'x'"),
    ],
)
@pytest.mark.parametrize("model", ["strict", "mirror"])
def test_malformed_requests(server: Server, model: str, change: dict[str, Any], what: str) -> None:
    """Each is 400 with the name of the field, and the connection's peers are not hurt (F9)."""
    answer = infer(server, model, {**an_input("x", "FP32", [1, 2], [1, 2]), **change})

    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert what in answer.json()["error"]


@pytest.mark.parametrize(
    ("header", "size", "tail", "what"),
    [
        ("x", 8, b"12345678", "Inference-Header-Content-Length"),
        ("99999", 8, b"12345678", "Inference-Header-Content-Length"),
        (None, 8, b"12345678", "binary_data_size"),
        ("+0", 9, b"12345678", "'x'"),
        ("+0", 8, b"123456789", "1 bytes"),
        ("+0", "8", b"12345678", "'x'"),
    ],
)
def test_malformed_binary_requests(
    server: Server, header: str | None, size: object, tail: bytes, what: str
) -> None:
    """Lengths that do not fit are 400, whichever is wrong (F9)."""
    field = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [field]}).encode()
    length = str(len(text)) if header in ("+0", None) else header
    headers = {} if header is None else {"Inference-Header-Content-Length": length}
    body = text if header is None else text + tail
    answer = server.inference.post("/v2/models/strict/infer", content=body, headers=headers)

    assert answer.status_code == 400
    assert what in answer.json()["error"]


TEXT = b'{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}'
ONE = json.dumps({"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}).encode()
DEEP = json.dumps({"name": "x", "datatype": "FP32", "shape": [0] + 63 * [1], "data": []}).encode()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (
            b'{"inputs": [%b]}' % TEXT.replace(b'"a"', b'"\xff"'),
            "input 'x': its data is not valid JSON: 'utf-8'",
        ),
        (
            b'{"inputs": [%b]}' % TEXT.replace(b'"a"', b'["\xff"]'),
            "input 'x': its data is not valid JSON: 'utf-8'",
        ),
        (b'{"inputs": [%b]}' % TEXT.replace(b'"x"', b'"\xff"'), "'utf-8' codec"),
        (b'{"inputs": [%b, %b]}' % (ONE, ONE), "input 'x' is given twice"),
        (
            b'{"inputs": [%b], "outputs": [{"name": "p"}, {"name": "p"}]}' % ONE,
            "output 'p' is asked for twice",
        ),
        (b'{"inputs": [%b]}' % DEEP, "input 'x': shape has 64 sizes, 31 are allowed"),
        (b'{"inputs": [%b], "parameters": {"p": {}}}' % ONE, "the request: parameter p"),
        (b'{"inputs": [%b], "id": 7}' % ONE, "$.id"),
        (b'{"inputs": {}}', "$.inputs"),
    ],
)
@pytest.mark.parametrize("model", ["strict", "mirror"])
def test_malformed_bodies(server: Server, model: str, body: bytes, what: str) -> None:
    """Wrong text, names that are there twice, and shapes that no array has are 400 and named (F2, F9)."""
    answer = server.inference.post(f"/v2/models/{model}/infer", content=body)

    assert answer.status_code == 400
    assert what in answer.json()["error"]


def test_bytes_that_are_no_text(client: Any) -> None:
    """They have no form in JSON: who asks for that is told to ask for binary."""
    x = triton.InferInput("x", [1], "BYTES")
    x.set_data_from_numpy(numpy.array([b"\xff"], dtype=object))
    output = triton.InferRequestedOutput("output_0", binary_data=False)
    with pytest.raises(triton_utils.InferenceServerException, match="request it with binary_data") as caught:
        client.infer("mirror", [x], outputs=[output])

    assert caught.value.status() == "400"


def test_errors(server: Server) -> None:
    """Status and text of each; the body has ``error``, and is exactly application/json."""
    unknown = infer(server, "none", numbers(1))
    output = infer(server, "strict", numbers(1), outputs=[{"name": "nothing"}])
    method = server.inference.get("/v2/models/mirror/infer")
    late = infer(server, "rows", an_input("x", "FP32", [1], [1]), parameters={"timeout": "soon"})
    brackets = server.inference.post("/v2/models/strict/infer", content=b"[" * 100_000)
    many = infer(server, "strict", an_input("x", "FP32", [100_000, 0], []))

    assert unknown.status_code == 404
    assert unknown.json()["error"].startswith("Model with name none does not exist. There are: ")
    assert output.status_code == 400
    assert "Unexpected inference output 'nothing'" in output.json()["error"]
    assert (method.status_code, method.headers["allow"]) == (405, "POST")
    assert late.status_code == 400
    assert "timeout" in late.json()["error"]
    assert brackets.status_code == 400
    assert many.status_code == 413
    for answer in (unknown, output, method, late, brackets, many):
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]


def test_a_failing_row(server: Server) -> None:
    """A handler's fault is 500 and says which row; the others of its batch are answered (F18)."""
    mixed, good = together(
        lambda: infer(server, "gather", strings("a", "raise")), lambda: infer(server, "gather", strings("b"))
    )

    assert mixed.status_code == 500
    assert mixed.json()["error"].startswith("row 1: ValueError : as asked (mirror.py, line ")
    assert good.json()["outputs"][0]["data"] == ["b"]


def strings(*values: str) -> dict[str, Any]:
    """One input with a text a row."""
    return an_input("x", "BYTES", [len(values)], list(values))


@pytest.mark.parametrize(
    ("said", "datatype", "shape", "data"),
    [
        (["1", "2"], "INT64", [2], [1, 2]),
        (["1", "2.5"], "FP64", [2], [1.0, 2.5]),
        (["1", "18446744073709551615"], "UINT64", [2], [1, (1 << 64) - 1]),
        (["18446744073709551615", "-2.5"], "FP64", [2], [float(1 << 64), -2.5]),
        (["true", "false"], "BOOL", [2], [True, False]),
        (["[[1, 2]]", "[[3, 4]]"], "INT64", [2, 1, 2], [1, 2, 3, 4]),
        (['"a"', '"b"'], "BYTES", [2], ["a", "b"]),
        (['{"a": 1}', "[1, null]"], "BYTES", [2], ['{"a":1}', "[1,null]"]),
    ],
)
def test_answers_without_a_datatype(
    server: Server, said: list[str], datatype: str, shape: list[int], data: list[Any]
) -> None:
    """Numbers are read as numpy reads them; what is no rectangle of numbers is JSON."""
    (output,) = infer(server, "strict", strings(*(f"json:{each}" for each in said))).json()["outputs"]

    assert output == {"name": "output_0", "datatype": datatype, "shape": shape, "data": data}


def test_rows_that_cannot_be_joined(server: Server) -> None:
    """Answers of different forms are 500, which names the rows, what they are, and what to do."""
    answer = infer(server, "strict", strings("json:[1]", "json:[1, 2]"))

    assert answer.status_code == 500
    assert answer.json()["error"] == (
        "The answers of model strict make no tensors: the rows of output 'output_0' cannot be joined: "
        "row 0 is INT64 of shape [1], row 1 is INT64 of shape [2]. Hint: the answers to the rows of a "
        "request need the same outputs, of one shape: the handler fills the shorter ones up, or answers each "
        "row with text or a JSON object"
    )


def test_a_deadline_in_microseconds(server: Server, client: Any) -> None:
    """The client's own timeout is 504 when it passes, while the handler is busy too (F34)."""
    server.registered("obey.mar")
    x = triton.InferInput("x", [1], "BYTES")
    x.set_data_from_numpy(numpy.array([b'{"do": "sleep", "seconds": 1}'], dtype=object))
    with pytest.raises(triton_utils.InferenceServerException, match="deadline") as caught:
        client.infer("obey", [x], timeout=20_000)

    assert caught.value.status() == "504"


# A signature


def test_metadata_of_a_signature(client: Any) -> None:
    """Triton's client reads inputs and outputs, versions and platform."""
    told = client.get_model_metadata("typed")

    assert told["name"] == "typed"
    assert told["versions"] == ["3"]
    assert told["platform"] == "pytorch"
    assert told["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "y", "datatype": "INT64", "shape": [-1]},
    ]
    assert [output["name"] for output in told["outputs"]] == ["x", "y"]
    assert client.get_model_metadata("typed", "3") == told


X = an_input("x", "FP32", [1, 2], [1, 2])
Y = an_input("y", "INT64", [1], [1])


@pytest.mark.parametrize(
    ("inputs", "fields", "what"),
    [
        ([X], {}, "input 'y' is missing"),
        ([X, Y, {**Y, "name": "z"}], {}, "input 'z' is unknown, the model has 'x', 'y'"),
        ([{**X, "datatype": "FP64"}, Y], {}, "input 'x': datatype is FP64, the model takes FP32"),
        ([{**X, "shape": [1, 1, 2]}, Y], {}, "input 'x': shape is [1, 1, 2], the model takes [-1, 2]"),
        ([{**X, "shape": [2, 1]}, {**Y, "shape": [1]}], {}, "the model takes [-1, 2]"),
        ([X, Y], {"outputs": [{"name": "q"}]}, "Unexpected inference output 'q' for model 'typed'"),
    ],
)
def test_a_signature_is_kept(
    server: Server, inputs: list[dict[str, Any]], fields: dict[str, Any], what: str
) -> None:
    """What it does not allow is 400 with the field's name (F9)."""
    answer = infer(server, "typed", *inputs, **fields)

    assert answer.status_code == 400
    assert what in answer.json()["error"]


def test_outputs_have_the_signatures_form(server: Server) -> None:
    """One value a row may be declared as a row of one."""
    outputs = infer(server, "typed", X, Y).json()["outputs"]

    assert [(each["name"], each["shape"]) for each in outputs] == [("x", [1, 2]), ("y", [1, 1])]


def test_a_model_is_described_by_its_signature(server: Server) -> None:
    """OPTIONS tells the names and types of its tensors."""
    document = server.inference.options("/v2/models/typed/infer").json()
    schema = document["paths"]["/v2/models/typed/infer"]["post"]["requestBody"]["content"]["application/json"]

    assert '"enum": ["INT64"]' in json.dumps(schema)


def test_metadata_without_a_signature(server: Server) -> None:
    """Nothing is known of a handler's own tensors, and nothing is said."""
    told = server.inference.get("/v2/models/mirror").json()

    assert (told["inputs"], told["outputs"]) == ([], [])


# The server


def test_health(client: Any, server: Server) -> None:
    """Live, ready, and each model; a model without workers that it should have none of does not count."""
    server.registered("rows.mar", model_name="resting", initial_workers=0)

    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mirror")
    assert client.is_model_ready("mirror", "1.0")
    assert not client.is_model_ready("resting")
    assert not client.is_model_ready("none")
    assert server.inference.get("/v2/health/live").json() == {"live": True}
    assert server.inference.get("/v2/health/ready").json() == {"ready": True}
    resting = server.inference.get("/v2/models/resting/ready")
    assert resting.status_code == 503
    assert resting.json()["error"] == "Model with name resting is not ready."
    assert server.inference.get("/v2/models/mirror/ready").json() == {"name": "mirror", "ready": True}


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_server_metadata(server: Server, path: str) -> None:
    """With and without a slash, without a redirect."""
    answer = server.inference.get(path)

    assert answer.status_code == 200
    assert answer.json()["name"] == "modelserver"
    assert {"binary_tensor_data", "model_repository", "model_repository_extension"} <= set(
        answer.json()["extensions"]
    )


@pytest.mark.parametrize("path", ["/v2/models/mirror/generate", "/v2/models/mirror/stat", "/v2/nothing"])
def test_what_is_not_there(server: Server, path: str) -> None:
    """Other routes are 404, in JSON."""
    answer = server.inference.get(path)

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]


def test_the_list_of_models(server: Server) -> None:
    """By name."""
    assert {"mirror", "typed"} <= set(server.inference.get("/v2/models").json()["models"])


# The repository


def states(client: Any) -> dict[str, str]:
    """The state of each model that the index names."""
    return {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}


def test_the_repository(server: Server, client: Any) -> None:
    """A model of the store is listed, loaded, loaded anew and unloaded by its file's name."""
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


def test_a_broken_model_does_not_replace_a_good_one(server: Server) -> None:
    """Loading anew fails in words, and what was loaded goes on serving (F52)."""
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


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"[]", "not a JSON object"),
        (b'{"parameters": {"config": "{}"}}', "'config' is not supported"),
        (b'{"parameters": {"file:1/model.pt": "AA=="}}', "is not supported"),
    ],
)
def test_what_load_does_not_do(server: Server, body: bytes, what: str) -> None:
    """A model's files and configuration come from the store, not from the request."""
    answer = server.inference.post("/v2/repository/models/rows/load", content=body)

    assert answer.status_code == 400
    assert what in answer.json()["error"]


def test_unload_what_is_not_there(server: Server) -> None:
    """It is 404."""
    answer = server.inference.post("/v2/repository/models/missing/unload", json={})

    assert answer.status_code == 404
    assert answer.json()["error"].startswith("Model with name missing does not exist. There are: ")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_bombs(server: Server, algorithm: str) -> None:
    """What inflates to more than a body may have is 413 (F6)."""
    bomb = bytes(10_000_000)
    packed = gzip.compress(bomb) if algorithm == "gzip" else zlib.compress(bomb)
    answer = server.inference.post(
        "/v2/models/strict/infer", content=packed, headers={"content-encoding": algorithm}
    )

    assert answer.status_code == 413
    assert answer.json()["error"]


# Other ways to the handler


def test_bodies_that_are_not_split(server: Server) -> None:
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


def test_sequences(server: Server, client: Any, tmp_path: Path) -> None:
    """Triton's parameters of a sequence are what the headers of one are (reference 8.9)."""
    config = tmp_path / "model-config.yaml"
    config.write_text("sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 4\n")
    store = server.settings["model_store"]
    handler = str(MODEL_CODE / "saw_sequence.py")
    build_archive(ArchiveConfig("steps", handler, "1.0", export_path=store, config_file=config))
    server.registered("steps.mar", batch_size=2)
    steps = []
    for number in range(3):
        x = triton.InferInput("x", [1], "INT32")
        x.set_data_from_numpy(numpy.array([number], "i4"))
        result = client.infer(
            "steps", [x], sequence_id=7, sequence_start=not number, sequence_end=number == 2
        )
        steps.append(json.loads(result.as_numpy("output_0")[0]))

    assert [step["sequence"] for step in steps] == ["7"] * 3
    assert [step["start"] for step in steps] == ["true", None, None]
    assert [step["parameters"] for step in steps] == [{}] * 3


@pytest.mark.slow
def test_an_envelope(start_server: Callable[..., Server]) -> None:
    """``kservev2`` takes V2 bodies apart itself; its answers are V2 (design, section 9)."""
    server = start_server(service_envelope="kservev2").registered("saw.mar")
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    x = triton.InferInput("x", [1], "INT32")
    x.set_data_from_numpy(numpy.array([5], "i4"))
    answer = client.infer("saw", [x], request_id="7").get_response()
    client.close()

    assert (answer["id"], answer["model_name"]) == ("7", "saw")
    assert answer["outputs"][0]["name"] == "x"
    assert "'data': [5]" in str(answer["outputs"][0]["data"])


def test_front_ends(start_server: Callable[..., Server]) -> None:
    """With processes of their own for the connections everything is as without."""
    server = start_server(frontend_processes=2).registered("mirror.mar")
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    x = triton.InferInput("x", [3, 50_000], "FP64")
    values = numpy.arange(150_000.0).reshape(3, 50_000)
    x.set_data_from_numpy(values)
    result = client.infer("mirror", [x])
    client.load_model("tell")
    ready = client.is_model_ready("tell")
    client.unload_model("tell")
    client.close()

    assert numpy.array_equal(result.as_numpy("output_0"), values)
    assert ready
    missing = server.inference.get("/v2/models/none").json()["error"]
    assert missing == "Model with name none does not exist. There is: mirror"
