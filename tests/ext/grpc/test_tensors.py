"""Requests and responses of ModelInfer: their tensors, and the rows that models get."""

import json
import struct

import msgspec
import pytest

from modelserver.engine.tensors.tensor import OutputTensor
from modelserver.engine.tensors.weight import LIGHT_BYTES, TooHeavy
from modelserver.engine.wire.messages import BODY, TENSORS, SequenceHeaders
from modelserver.errors import BadRequest, InternalError
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.tensors import (
    outputs_of_json,
    read_bytes,
    read_message,
    response,
)
from modelserver.models.options.signature import Signature
from modelserver.surface.inference.v2 import InputRules, ResponseParts


def asking(**fields):
    made = message("inference.ModelInferRequest")(**fields)
    return message("inference.ModelInferRequest").FromString(made.SerializeToString())


def read(request):
    return read_message(request, InputRules("m", Signature())).request


def answering(request, identity="id", **parameters):
    return ResponseParts("m", "1", request, TENSORS, False, [], identity, parameters)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32"])
def test_raw_request_gets_raw_answer(datatype):
    raw = bytes(range(8))
    count = 8 // (4 if datatype == "FP32" else 2)
    tensor = {"name": "x", "datatype": datatype, "shape": [count]}

    request = read(asking(inputs=[tensor], raw_input_contents=[raw]))
    answer = response(
        answering(request, "id", batchId="b"), [OutputTensor("x", datatype, (count,), [raw[:4], raw[4:]])]
    )

    assert list(answer.raw_output_contents) == [raw]
    assert answer.parameters["batchId"].string_param == "b"
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "id")


def test_one_raw_output_makes_all_raw():
    """An output without a typed form makes all of them raw, though the request was typed."""
    request = read(
        asking(inputs=[{"name": "x", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [1]}}])
    )
    outputs = [OutputTensor("a", "FP32", (1,), [b"aaaa"]), OutputTensor("b", "BF16", (1,), [b"bb"])]

    assert list(response(answering(request), outputs).raw_output_contents) == [b"aaaa", b"bb"]


def test_parameters_are_read_by_kind():
    value = {
        "b": {"bool_param": True},
        "i": {"int64_param": -1},
        "s": {"string_param": "t"},
        "d": {"double_param": 0.5},
        "u": {"uint64_param": 1 << 63},
    }
    tensor = {"name": "x", "datatype": "BOOL", "shape": [0], "parameters": {"p": {"int64_param": 2}}}
    request = read(
        asking(inputs=[tensor], parameters=value, outputs=[{"name": "o", "parameters": {"q": value["b"]}}])
    )

    assert request.parameters == {"b": True, "i": -1, "s": "t", "d": 0.5, "u": 1 << 63}
    assert request.inputs[0].parameters == {"p": 2}
    assert request.outputs[0].parameters == {"q": True}


@pytest.mark.parametrize("count", [0, 1, 31, 32, 5000])
def test_floats_are_taken_as_they_lie(count):
    values = [n / 4 for n in range(count)]
    contents = message("inference.InferTensorContents")(fp32_contents=values)
    unknown = contents.FromString(b"\xc2\x3e\x02hi" + contents.SerializeToString() + b"\xc2\x3e\x02hi")
    tensor = {"name": "x", "datatype": "FP32", "shape": [count]}

    for each in (contents, unknown):
        (made,) = read(asking(inputs=[{**tensor, "contents": each}])).inputs
        assert bytes(made.data) == struct.pack(f"<{count}f", *values)


def test_parameters_of_rest_are_left_out():
    """KServe's client says here too what is binary, with sizes: they must not keep requests apart (F22)."""
    sized = {"binary_data_size": {"int64_param": 4}, "p": {"int64_param": 2}}
    wish = {"name": "o", "parameters": {"binary_data": {"bool_param": True}}}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": sized}
    request = read(
        asking(
            inputs=[tensor],
            raw_input_contents=[b"\0" * 4],
            parameters={"binary_data_output": {"bool_param": True}},
            outputs=[wish],
        )
    )

    assert (request.inputs[0].parameters, request.parameters) == ({"p": 2}, None)
    assert request.outputs[0].parameters == {}


def test_envelope_gets_json():
    """A model in an envelope gets the JSON that REST would have, and its answer becomes tensors."""
    tensor = {"name": "x", "datatype": "BYTES", "shape": [2], "contents": {"bytes_contents": [b"a", b"\xff"]}}
    inference = read_message(asking(id="i", inputs=[tensor], outputs=[{"name": "o"}]), WHOLE)
    assert inference.bodies[0] == (
        b'{"id":"i","outputs":[{"name":"o"}],'
        b'"inputs":[{"name":"x","shape":[2],"datatype":"BYTES","data":["YQ==","/w=="]}]}'
    )

    body = b'{"outputs":[{"name":"o","datatype":"FP64","shape":[1,2],"data":[[1,2.5]]}],"model_name":"m"}'
    (output,) = outputs_of_json(body)
    answer = response(answering(inference.request), [output])
    assert list(answer.outputs[0].contents.fp64_contents) == [1.0, 2.5]

    body = b'{"outputs":[{"name":"o","datatype":"BYTES","shape":[2],"data":[{"a":1},[2]]}]}'

    assert bytes(outputs_of_json(body)[0].data) == b'\x07\0\0\0{"a":1}\x03\0\0\0[2]'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"outputs": [{"name": "o"}]}',
        b'{"outputs":[{"name":"o","datatype":"FP64","shape":[3],"data":[1]}]}',
        b'{"outputs":[{"name":"o","datatype":"INT8","shape":[1],"data":[300]}]}',
    ],
)
def test_answer_that_is_none_is_internal(body):
    with pytest.raises(InternalError, match="does not follow the Open Inference Protocol"):
        outputs_of_json(body)


TAKES = InputRules("m", Signature())
WHOLE = InputRules("m", Signature(), rows=False)
SEQUENCES = InputRules("m", Signature(), SequenceHeaders("seq-id", "seq-start", "seq-end"))


def make_request(rows=2, **parameters):
    """A request with so many rows of one number."""
    request = message("inference.ModelInferRequest")(model_name="m", id="own")
    tensor = request.inputs.add(name="x", datatype="UINT8", shape=[rows, 1])
    tensor.contents.uint_contents.extend(number % 256 for number in range(rows))
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(request.parameters[name], kind, value)
    return request


def test_rows_are_taken_apart():
    here = read_message(make_request(), TAKES)
    off_loop = read_bytes(make_request().SerializeToString(), TAKES)

    for read in (here, off_loop):
        assert [bytes(body) for body in read.bodies] == [b"\0", b"\1"]
        assert (read.request.id, read.kind) == ("own", TENSORS)
    assert off_loop.request.inputs == []

    read = read_message(make_request(), WHOLE)

    assert read.kind == BODY
    assert json.loads(read.bodies[0])["inputs"] == [
        {"name": "x", "datatype": "UINT8", "shape": [2, 1], "data": [0, 1]}
    ]


def test_sequence_parameters_become_headers():
    data = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}

    for splits in (True, False):
        takes = msgspec.structs.replace(SEQUENCES, rows=splits)
        read = read_message(make_request(**data), takes)
        assert list(read.sequence) == [(b"seq-id", b"7"), (b"seq-start", b"true")]
    assert not read_message(make_request(**data), TAKES).sequence

    with pytest.raises(BadRequest, match="parameter sequence_start is 1, true or false is needed"):
        read_message(make_request(sequence_id=7, sequence_start=1), SEQUENCES)


def test_heavy_request_is_left_to_a_helper():
    """With ``light=True`` such a request raises TooHeavy, and the caller uses a helper."""
    request = make_request(0)
    request.inputs[0].shape[:] = [LIGHT_BYTES + 1, 1]
    request.inputs[0].ClearField("contents")
    request.raw_input_contents.append(bytes(LIGHT_BYTES + 1))
    with pytest.raises(TooHeavy):
        read_message(request, WHOLE, light=True)

    with pytest.raises(BadRequest, match=r"not of type inference\.ModelInferRequest"):
        read_bytes(b"\xff\xff", TAKES)


def floats(*values, **changes):
    usual = {"name": "x", "datatype": "FP32", "shape": [len(values)], "contents": {"fp32_contents": values}}
    return {**usual, **changes}


def raw(datatype="FP32", size=2):
    return {"name": "x", "datatype": datatype, "shape": [size]}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"inputs": []}, "inputs is empty: at least one input is needed"),
        (
            {"inputs": [floats(1, 2)], "raw_input_contents": [b"x" * 8]},
            "contents field must not be specified when using raw_input_contents for input 'x' for model 'm'",
        ),
        (
            {"inputs": [raw()], "raw_input_contents": [b"", b""]},
            "the number of inputs (1) does not match the expected number of raw input contents (2) for mod",
        ),
        ({"inputs": [floats(1), floats(1)]}, "input 'x' is given twice"),
        (
            {"inputs": [floats(1, contents={"int_contents": [1]})]},
            "input 'x': FP32 data is in int_contents instead of fp32_contents",
        ),
        ({"inputs": [floats(1, shape=[2])]}, "input 'x': its shape needs 8 bytes, its data has 4"),
        ({"inputs": [floats(1, shape=[-1])]}, "input 'x': shape [-1] has a negative size"),
        ({"inputs": [floats(1, shape=[1] * 65)]}, "input 'x': "),
        (
            {"inputs": [floats(1, shape=[1 << 62, 1 << 62])]},
            f"input 'x': shape [{1 << 62}, {1 << 62}] has more",
        ),
        (
            {"inputs": [raw()], "raw_input_contents": [b"x" * 9]},
            "input 'x': its shape needs 8 bytes, its data",
        ),
        (
            {"inputs": [raw()], "raw_input_contents": [b"x" * 7]},
            "input 'x': its shape needs 8 bytes, its data",
        ),
        ({"inputs": [floats(1, datatype="FP8")]}, "input 'x': unknown datatype 'FP8'"),
        ({"inputs": [floats(1, datatype="FP16")]}, "input 'x': FP16 has no typed contents, send it raw"),
        (
            {"inputs": [floats(1, datatype="UINT8", contents={"uint_contents": [256]})]},
            "input 'x': a value is out of the range of UINT8",
        ),
        (
            {"inputs": [raw("BYTES", 1)], "raw_input_contents": [b"\x09\0\0\0a"]},
            "input 'x': an element of 9 bytes is announced where 1 are left",
        ),
        ({"inputs": [floats(1)], "parameters": {"p": {}}}, "the request: parameter p has no value"),
        ({"inputs": [floats(1)], "outputs": [{"name": "o"}, {"name": "o"}]}, "output 'o' is given twice"),
        (
            {"inputs": [floats(1)], "parameters": {"timeout": {"int64_param": -1}}},
            "the request: parameter tim",
        ),
    ],
)
def test_malformed_request_is_refused_by_name(fields, text):
    """The message says which input or parameter is wrong (F9, F11)."""
    with pytest.raises(BadRequest) as refused:
        read_message(message("inference.ModelInferRequest")(model_name="m", **fields), TAKES)
    assert refused.value.message.startswith(text)
