"""Tensors in messages and out of them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from modelserver.engine.tensors.tensor import OutputTensor
from modelserver.engine.wire.messages import TENSORS
from modelserver.errors import BadRequest, InternalError
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.tensors import outputs_of_json, read_request, response, to_json
from modelserver.surface.inference.v2 import ResponseParts


def asking(**fields: Any) -> Any:
    """A request as it arrives."""
    made = message("inference.ModelInferRequest")(**fields)
    return message("inference.ModelInferRequest").FromString(made.SerializeToString())


def answering(request: Any, identity: str = "id", **parameters: Any) -> ResponseParts:
    """What a response to the request is made of."""
    return ResponseParts("m", "1", request, TENSORS, False, [], identity, parameters)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32"])
def test_raw_request_gets_raw_answer(datatype: str) -> None:
    """What comes raw is sent raw, without a change."""
    raw = bytes(range(8))
    count = 8 // (4 if datatype == "FP32" else 2)
    tensor = {"name": "x", "datatype": datatype, "shape": [count]}

    request = read_request(asking(inputs=[tensor], raw_input_contents=[raw]))
    answer = response(
        answering(request, "id", batchId="b"), [OutputTensor("x", datatype, (count,), [raw[:4], raw[4:]])]
    )

    assert list(answer.raw_output_contents) == [raw]
    assert answer.parameters["batchId"].string_param == "b"
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "id")


def test_a_half_makes_all_raw() -> None:
    """An output without a typed form makes all of them raw, though the request was typed."""
    request = read_request(
        asking(inputs=[{"name": "x", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [1]}}])
    )
    outputs = [OutputTensor("a", "FP32", (1,), [b"aaaa"]), OutputTensor("b", "BF16", (1,), [b"bb"])]

    assert list(response(answering(request), outputs).raw_output_contents) == [b"aaaa", b"bb"]


def test_parameters_are_read_by_kind() -> None:
    """Each kind is read as what it is, of the request, its inputs and its outputs."""
    value = {
        "b": {"bool_param": True},
        "i": {"int64_param": -1},
        "s": {"string_param": "t"},
        "d": {"double_param": 0.5},
        "u": {"uint64_param": 1 << 63},
    }
    tensor = {"name": "x", "datatype": "BOOL", "shape": [0], "parameters": {"p": {"int64_param": 2}}}
    request = read_request(
        asking(inputs=[tensor], parameters=value, outputs=[{"name": "o", "parameters": {"q": value["b"]}}])
    )

    assert request.parameters == {"b": True, "i": -1, "s": "t", "d": 0.5, "u": 1 << 63}
    assert request.inputs[0].parameters == {"p": 2}
    assert request.outputs is not None
    assert request.outputs[0].parameters == {"q": True}


@pytest.mark.parametrize("count", [0, 1, 31, 32, 5000])
def test_floats_are_taken_as_they_lie(count: int) -> None:
    """However long their field's length is; what else a newer client puts beside them is passed over."""
    values = [n / 4 for n in range(count)]
    contents = message("inference.InferTensorContents")(fp32_contents=values)
    unknown = contents.FromString(b"\xc2\x3e\x02hi" + contents.SerializeToString() + b"\xc2\x3e\x02hi")
    tensor = {"name": "x", "datatype": "FP32", "shape": [count]}

    for each in (contents, unknown):
        (read,) = read_request(asking(inputs=[{**tensor, "contents": each}])).inputs
        assert bytes(read.data) == struct.pack(f"<{count}f", *values)


def test_parameters_of_rest_are_left_out() -> None:
    """KServe's client says here too what is binary, with sizes: they must not keep requests apart (F22)."""
    sized = {"binary_data_size": {"int64_param": 4}, "p": {"int64_param": 2}}
    wish = {"name": "o", "parameters": {"binary_data": {"bool_param": True}}}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": sized}
    request = read_request(
        asking(
            inputs=[tensor],
            raw_input_contents=[b"\0" * 4],
            parameters={"binary_data_output": {"bool_param": True}},
            outputs=[wish],
        )
    )

    assert (request.inputs[0].parameters, request.parameters) == ({"p": 2}, None)
    assert request.outputs is not None
    assert request.outputs[0].parameters == {}


@pytest.mark.parametrize("shape", [[1 << 62, 1 << 62], [-1, -1], [2], [1] * 65])
def test_impossible_shape_is_refused(shape: list[int]) -> None:
    """Overflowing, negative, or not that of the data: the input is named (F9)."""
    tensor = {"name": "x", "datatype": "FP32", "shape": shape}

    with pytest.raises(BadRequest, match="input 'x': "):
        read_request(asking(inputs=[tensor], raw_input_contents=[b"\0" * 4]))


def test_envelope_gets_json() -> None:
    """A model in an envelope gets the JSON that REST would have, and its answer becomes tensors."""
    tensor = {"name": "x", "datatype": "BYTES", "shape": [2], "contents": {"bytes_contents": [b"a", b"\xff"]}}
    request = read_request(asking(id="i", inputs=[tensor], outputs=[{"name": "o"}]))
    assert to_json(request) == (
        b'{"id":"i","outputs":[{"name":"o"}],'
        b'"inputs":[{"name":"x","shape":[2],"datatype":"BYTES","data":["YQ==","/w=="]}]}'
    )

    body = b'{"outputs":[{"name":"o","datatype":"FP64","shape":[1,2],"data":[[1,2.5]]}],"model_name":"m"}'
    (output,) = outputs_of_json(body)
    answer = response(answering(request), [output])
    assert list(answer.outputs[0].contents.fp64_contents) == [1.0, 2.5]


def test_objects_in_bytes_become_json() -> None:
    """What an envelope puts into BYTES and is no text is its JSON."""
    body = b'{"outputs":[{"name":"o","datatype":"BYTES","shape":[2],"data":[{"a":1},[2]]}]}'

    assert bytes(outputs_of_json(body)[0].data) == b'\x07\0\0\0{"a":1}\x03\0\0\0[2]'


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"\xff", b'{"outputs": [{"name": "o"}]}',
        b'{"outputs":[{"name":"o","datatype":"FP64","shape":[3],"data":[1]}]}',
        b'{"outputs":[{"name":"o","datatype":"INT8","shape":[1],"data":[300]}]}',
    ],
)  # fmt: skip
def test_answer_that_is_none_is_internal(body: bytes) -> None:
    """The handler's fault is INTERNAL and says what it should have been."""
    with pytest.raises(InternalError, match="does not follow the Open Inference Protocol"):
        outputs_of_json(body)
