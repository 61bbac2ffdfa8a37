import contextlib
import json
import struct

import numpy
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.engine.tensors.odd_requests import odd_bodies

from modelserver.engine.tensors.datatypes import DATATYPES, pack
from modelserver.engine.tensors.rest import (
    InferRequest,
    RequestedOutput,
    decode_request,
    encode_request,
    encode_response,
)
from modelserver.engine.tensors.rows import count_rows, cut, decode_form, is_plain, separate
from modelserver.engine.tensors.tensor import OutputTensor, Tensor, TensorSpec
from modelserver.engine.tensors.weight import TooHeavy
from modelserver.errors import BadRequest


def body(*inputs, **fields):
    return json.dumps({"inputs": list(inputs), **fields}).encode()


def an_input(**changes):
    """One input of two numbers, changed; None takes a field away."""
    fields = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.5, 2.5]} | changes
    return {key: value for key, value in fields.items() if value is not None}


def binary(text, *tensors):
    """A body with binary data, and its header."""
    return b"".join([text, *tensors]), str(len(text))


def of_bytes(size, shape):
    """A body with so many bytes behind it, which are one input, and its header."""
    sized = an_input(datatype="BYTES", shape=shape, data=None, parameters={"binary_data_size": size})
    return binary(body(sized), bytes(size))


def spoilt(one):
    """A body in which each ~ of its input is a byte that is no UTF-8."""
    return body(one).replace(b"~", b"\xff")


def tensor(name, values, datatype="FP32"):
    return OutputTensor(name, datatype, (len(values),), [pack(datatype, [value]) for value in values])


def test_json_is_read():
    request = decode_request(body(an_input(), id="7", parameters={"a": 1}, model_name="m"), None)
    (x,) = request.inputs

    assert (x.name, x.datatype, x.shape, x.text) == ("x", "FP32", (2,), False)
    assert bytes(x.data) == struct.pack("<2f", 1.5, 2.5)
    assert (request.id, request.parameters, request.outputs) == ("7", {"a": 1}, None)

    (words,) = decode_request(body(an_input(datatype="BYTES", data=["ä", ""])), None).inputs

    assert (bytes(words.data), words.text) == (b"\x02\0\0\0\xc3\xa4\0\0\0\0", True)


def test_binary_and_json_can_be_mixed():
    first = an_input(name="a", data=None, parameters={"binary_data_size": 8, "own": "p"})
    third = an_input(name="c", shape=[1], datatype="BYTES", data=None, parameters={"binary_data_size": 5})
    content, length = binary(body(first, an_input(name="b"), third), b"12345678", b"\x01\0\0\0z")
    a, b, c = decode_request(content, length).inputs

    assert (bytes(a.data), a.parameters) == (b"12345678", {"own": "p"})
    assert bytes(b.data) == struct.pack("<2f", 1.5, 2.5)
    assert (bytes(c.data), c.text) == (b"\x01\0\0\0z", False)


def test_empty_tensor_is_read():
    empty = an_input(shape=[0, 3], data=None, parameters={"binary_data_size": 0})
    content, length = binary(body(empty))

    assert decode_request(content, length).inputs[0].shape == (0, 3)
    assert decode_request(body(an_input(shape=[0], data=[])), None).inputs[0].shape == (0,)


def test_empty_tensor_of_kserve_is_read():
    """Its client says null for the data, beside a size of 0, and sends no header."""
    content = b'{"inputs": [{"name": "x", "shape": [0], "datatype": "FP32", "data": null, %b}]}'
    request = decode_request(content % b'"parameters": {"binary_data_size": 0}', None)

    assert (request.inputs[0].shape, bytes(request.inputs[0].data)) == ((0,), b"")
    with pytest.raises(BadRequest, match="'x': 'data' is missing"):
        decode_request(content % b'"parameters": {}', None)


@pytest.mark.parametrize(
    ("spec", "content", "shape"),
    [
        (TensorSpec("x", "BYTES", (-1, 1)), b"any", (1, 1)),
        (TensorSpec("x", "FP32", (-1, 2)), bytes(24), (3, 2)),
        (TensorSpec("x", "FP32", (-1, -1)), bytes(12), (1, 3)),
        (TensorSpec("x", "FP32", (1, 3)), bytes(12), (1, 3)),
        (TensorSpec("x", "INT8", (-1, 0)), b"", (0, 0)),
    ],
)
def test_raw_requests_are_read(spec, content, shape):
    """With a header of 0 the body is the one input, and all outputs are binary."""
    request = decode_request(content, "0", [spec])
    (x,) = request.inputs

    assert (x.name, x.datatype, x.shape, request.binary) == ("x", spec.datatype, shape, True)
    assert bytes(x.data) == (pack("BYTES", [content]) if spec.datatype == "BYTES" else content)


@pytest.mark.parametrize(
    ("specs", "what"),
    [
        ([], "the model has 0 inputs"),
        ([TensorSpec("x", "FP32", (-1,))] * 2, "the model has 2 inputs"),
        ([TensorSpec("x", "FP32", (-1, -1, -1))], "'x': shape .* has several variable sizes"),
        ([TensorSpec("x", "FP32", (-1, 2))], "'x': its shape needs 8 bytes, its data has 9"),
    ],
)
def test_raw_requests_that_cannot_be_meant(specs, what):
    """The shape must follow from the signature (F9)."""
    with pytest.raises(BadRequest, match=what):
        decode_request(bytes(9), "0", specs)


def test_requests_are_written_as_json():
    sized = an_input(data=None, parameters={"binary_data_size": 8, "own": 1})
    words = an_input(name="w", datatype="BYTES", shape=[1], data=None, parameters={"binary_data_size": 5})
    content, length = binary(
        body(sized, words, id="7", outputs=[]), struct.pack("<2f", 1.5, 2), b"\x01\0\0\0\xff"
    )
    encoded = json.loads(encode_request(content, length))

    assert encoded == {
        "inputs": [
            {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.5, 2.0], "parameters": {"own": 1}},
            {"name": "w", "shape": [1], "datatype": "BYTES", "data": ["/w=="]},
        ],
        "id": "7",
        "outputs": [],
    }
    assert encode_request(b"anything", None) == b"anything"


def test_requested_outputs_are_read():
    wishes = [{"name": "p", "parameters": {"binary_data": False, "k": 3}}, {"name": "q"}]
    request = decode_request(body(an_input(), outputs=wishes, parameters={"binary_data_output": True}), None)

    assert request.outputs == [RequestedOutput("p", False, {"k": 3}), RequestedOutput("q", True, {})]
    assert request.parameters is None
    assert [request.wants_binary(name) for name in ("p", "q", "r")] == [False, True, True]
    assert decode_request(body(an_input(), outputs=[]), None).outputs is None


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "not an inference request"),
        (b"[]", "not an inference request"),
        (b'{"id": "7"}', "inputs"),
        (b"[" * 100_000, "not an inference request"),
        (body(), "inputs is empty"),
        (body(an_input(name=None)), "name"),
        (body(an_input(name=3)), "name"),
        (body(an_input(shape=None)), "shape"),
        (body(an_input(shape=[2.5])), "shape"),
        (body(an_input(shape=[-2])), r"'x': shape \[-2\] has a negative size"),
        (body(an_input(shape=[1 << 62, 1 << 62])), "more elements"),
        (body(an_input(shape=[1 << 62] * 10_000)), "10000 sizes"),
        (body(an_input(shape=[3])), "'x': its shape needs 12 bytes, its data has 8"),
        (body(an_input(shape=[1])), "its shape needs 4 bytes"),
        (body(an_input(datatype="FLOAT")), "'x': unknown datatype 'FLOAT', supported are BOOL"),
        (body(an_input(datatype=None)), "datatype"),
        (body(an_input(data=None)), "'x': 'data' is missing"),
        (body(an_input(data="12")), "'x': its data is not a list"),
        (body(an_input(datatype="INT8", data=[1, 300])), "'x': a value is out of the range of INT8"),
        (body(an_input(datatype="BYTES", data=["a", "b", "c"])), "'x': its shape has 2 elements, its data 3"),
        (body(an_input(), an_input()), "input 'x' is given twice"),
        (body(an_input(parameters={"a": [1]})), "input 'x': parameter a"),
        (body(an_input(), parameters={"a": None}), "the request: parameter a"),
        (body(an_input(), parameters={"a": 1 << 64}), "the request: parameter a has more than 64 bits"),
        (body(an_input(shape=[1 << 40, 0], data=[])), "'x': shape .* is too large for a tensor without"),
        (body(an_input(), parameters={"binary_data_output": 1}), "binary_data_output"),
        (body(an_input(), outputs=[{"name": "p"}, {"name": "p"}]), "output 'p' is asked for twice"),
        (body(an_input(), outputs=[{"name": "p", "parameters": {"binary_data": "yes"}}]), "binary_data"),
        (body(an_input(datatype="BYTES", shape=[1], data=["\ud800"])), "not an inference request"),
        (spoilt(an_input(datatype="BYTES", shape=[1], data=["~"])), "input 'x': .*(?i:utf-8)"),
        (spoilt(an_input(datatype="BYTES", shape=[1], data=[["~"]])), "input 'x': .*(?i:utf-8)"),
        (spoilt(an_input(name="~")), "not an inference request: .*(?i:utf-8)"),
        (body(an_input(shape=[0] + 31 * [1], data=[])), "'x': shape has 32 sizes, 31 are allowed"),
    ],
)
def test_bad_requests_are_refused(content, what):
    """Each error names the invalid field (F9)."""
    with pytest.raises(BadRequest, match=what):
        decode_request(content, None)


@pytest.mark.parametrize(
    ("content", "header"),
    [
        (body(an_input(shape=[6000], data=[1.0] * 6000)), None),
        of_bytes(24_000, shape=[6000]),
    ],
    ids=["json", "binary"],
)
def test_what_is_heavy_is_not_read_where_it_must_be_light(content, header):
    with pytest.raises(TooHeavy):
        decode_request(content, header, light=True)
    assert decode_request(content, header).inputs[0].shape == (6000,)


def test_elements_beyond_the_shape_are_not_all_counted():
    content, header = of_bytes(4_000_000, shape=[1])
    with pytest.raises(BadRequest, match="'x': its shape has 1 elements, its data 1001 or more"):
        decode_request(content, header, light=True)


SIZED = {"data": None, "parameters": {"binary_data_size": 8}}


@pytest.mark.parametrize(
    ("content", "header", "what"),
    [
        (body(an_input()), "many", "'many', a number of bytes"),
        (body(an_input()), "-1", "a number of bytes"),
        (body(an_input()), "٣", "a number of bytes"),
        (body(an_input()), "9" * 30, "a number of bytes"),
        (body(an_input()), "9999", "only"),
        (*binary(body(an_input(**SIZED)), b"1234567"), "binary_data_size is 8, only 7 bytes are left"),
        (*binary(body(an_input(**SIZED)), b"123456789"), "1 bytes follow the data"),
        (*binary(body(an_input()), b"12345678"), "8 bytes follow"),
        (*binary(body(an_input(parameters={"binary_data_size": 8})), b"12345678"), "both"),
        (*binary(body(an_input(data=None, parameters={"binary_data_size": -8}))), "-8"),
        (*binary(body(an_input(data=None, parameters={"binary_data_size": True}))), "True"),
        (*binary(body(an_input(**SIZED, shape=[3])), b"12345678"), "needs 12 bytes"),
    ],
)
def test_bad_binary_data_is_refused(content, header, what):
    """Lengths that do not fit are refused, whichever of them is wrong (F9)."""
    with pytest.raises(BadRequest, match=what):
        decode_request(content, header)


@given(st.binary(max_size=200), st.none() | st.text(max_size=4))
def test_any_bytes_are_read_or_refused(content, header):
    with pytest.raises(BadRequest):
        decode_request(content, header, [])


@given(st.sampled_from(sorted(DATATYPES)), st.integers(0, 5), st.lists(st.integers(0, 3), max_size=2))
def test_tensors_are_split_into_rows(datatype, count, trailing):
    shape = (count, *trailing)
    width = DATATYPES[datatype].width
    content = numpy.arange(int(numpy.prod(shape)) * width, dtype=numpy.uint8)
    rows = Tensor("x", datatype, shape, memoryview(content.tobytes())).rows()

    assert len(rows) == count
    width = len(content) // max(count, 1)
    assert [bytes(row) for row in rows] == [content[n * width :][:width].tobytes() for n in range(count)]


@given(st.lists(st.lists(st.binary(max_size=5), min_size=2, max_size=2), max_size=5))
def test_bytes_are_split_into_rows(values):
    flat = [element for row in values for element in row]
    rows = Tensor("x", "BYTES", (len(values), 2), memoryview(pack("BYTES", flat))).rows()

    assert [bytes(row) for row in rows] == [pack("BYTES", row) for row in values]


def test_rows_without_elements_are_empty():
    assert [bytes(row) for row in Tensor("x", "BYTES", (3, 0), memoryview(b"")).rows()] == [b""] * 3


def answer(request, *outputs):
    content, length = encode_response("m", "2", request, "7", outputs)
    text = content if length is None else content[:length]
    return json.loads(text), content[len(text) :]


def test_json_response_is_written():
    fields, rest = answer(InferRequest([]), tensor("p", [1.5]), tensor("q", [b"a"], "BYTES"))

    assert list(fields) == ["id", "model_name", "model_version", "outputs"]
    assert fields == {
        "id": "7",
        "model_name": "m",
        "model_version": "2",
        "outputs": [
            {"name": "p", "shape": [1], "datatype": "FP32", "data": [1.5]},
            {"name": "q", "shape": [1], "datatype": "BYTES", "data": ["a"]},
        ],
    }
    assert rest == b""


def test_binary_response_is_written():
    request = InferRequest([], outputs=[RequestedOutput("q", False, {})], binary=True)
    fields, rest = answer(
        request, tensor("p", [1, 2], "INT16"), tensor("q", [3]), tensor("r", [b"z"], "BYTES")
    )

    sizes = [output.get("parameters") for output in fields["outputs"]]
    assert sizes == [{"binary_data_size": 4}, None, {"binary_data_size": 5}]
    assert rest == b"\x01\0\x02\0\x01\0\0\0z"


def test_version_is_left_out():
    assert b"model_version" not in encode_response("m", "", InferRequest([]), "7", [])[0]


def test_what_json_has_no_form_for():
    """Infinities and what is no number become null (F4); bytes that are no text are refused."""
    fields, _ = answer(InferRequest([]), tensor("p", [float("nan"), float("-inf"), 1.0]))

    assert fields["outputs"][0]["data"] == [None, None, 1.0]
    with pytest.raises(
        BadRequest, match="output 'p' has bytes that are not text: request it with binary_data"
    ):
        answer(InferRequest([]), tensor("p", [b"\xff"], "BYTES"))


# Anything that may be sent as a request: read, or refused in words


def read(body, header):
    with contextlib.suppress(BadRequest):
        return decode_request(body, header)
    return None


@given(odd_bodies())
@settings(max_examples=100)
def test_bodies_are_read_or_refused(odd):
    """Nothing but BadRequest is raised (F9, F70); what is read has data for its shapes, and can be cut."""
    request = read(*odd)
    event("refused" if request is None else "read")
    if request is None:
        return
    extra, whole, rows = cut(request)
    form = decode_form(extra)
    pieces = [separate(form, memoryview(row)) for row in rows]

    assert len(rows) == (1 if whole else count_rows(request.inputs))
    assert sum(map(len, rows)) == sum(len(tensor.data) for tensor in request.inputs)
    assert all(len(each) == len(request.inputs) for each in pieces)
    assert not (is_plain(request) and whole)


@given(odd_bodies())
@settings(max_examples=60)
def test_bodies_become_json_or_are_refused(odd):
    """Those who read no binary data get the same request in JSON, or nothing (F9)."""
    body, header = odd
    request = read(body, header)
    if header is None or request is None:
        return
    inputs = json.loads(encode_request(body, header))["inputs"]

    assert [(each["name"], each["datatype"], tuple(each["shape"])) for each in inputs] == [
        (each.name, each.datatype, each.shape) for each in request.inputs
    ]
    assert all("binary_data_size" not in each.get("parameters", {}) for each in inputs)
