"""The same tensor in JSON, in binary, and typed and raw over gRPC: one is as good as the other."""

import json
import math
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelserver.engine.tensors.datatypes import BYTES, DATATYPES, NAMES, from_json, pack, unpack
from modelserver.engine.tensors.rest import InferRequest, decode_request, encode_response
from modelserver.engine.tensors.rows import (
    OutputForm,
    cut,
    decode_form,
    is_plain,
    join_answers,
    pack_answer,
    separate,
)
from modelserver.engine.tensors.tensor import Tensor
from modelserver.engine.wire.messages import TENSORS
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.tensors import read_message, response
from modelserver.models.options.signature import Signature
from modelserver.surface.inference.v2 import InputRules, ResponseParts

_FEW = settings(max_examples=15)
_FIELDS = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
}


def elements_of(datatype):
    """Elements that the type holds exactly and JSON can say."""
    if datatype == BYTES:
        return st.text(max_size=6)
    if datatype == "BOOL":
        return st.booleans()
    if DATATYPES[datatype].json_type is int:
        bits = 8 * DATATYPES[datatype].width
        if datatype[0] == "U":
            return st.integers(0, (1 << bits) - 1)
        return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    if datatype == "BF16":
        return st.floats(width=32, allow_nan=False, allow_infinity=False).map(truncated)
    return st.floats(width=8 * DATATYPES[datatype].width, allow_nan=False, allow_infinity=False)


def truncated(value):
    """The next number towards zero that has only the upper half of a float32."""
    bits = numpy.array(value, "f4").view("u4") & numpy.uint32(0xFFFF0000)
    return float(bits.view("f4"))


class Sent(NamedTuple):
    """A tensor as a client has it; ``values`` are flat, texts where they are BYTES."""

    datatype: str
    shape: list[int]
    values: list[Any]

    @property
    def data(self):
        return pack(self.datatype, self.elements)

    @property
    def elements(self):
        """The elements as typed contents have them."""
        return [value.encode() for value in self.values] if self.datatype == BYTES else self.values

    @property
    def head(self):
        return {"name": "x", "datatype": self.datatype, "shape": self.shape}


@st.composite
def tensors(draw, datatype):
    """Any tensor of a type, also without elements or dimensions."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = math.prod(shape)
    return Sent(datatype, shape, draw(st.lists(elements_of(datatype), min_size=count, max_size=count)))


def nested(values, shape):
    """Lists of lists; a scalar is a list of one, as ``data`` is always a list."""
    if len(shape) < 2:
        return values
    return numpy.array([*values, None], object)[:-1].reshape(shape).tolist()


def in_json(sent, *, flat):
    data = sent.values if flat else nested(sent.values, sent.shape)
    return decode_request(json.dumps({"inputs": [{**sent.head, "data": data}]}).encode(), None)


def in_binary(sent):
    field = {**sent.head, "parameters": {"binary_data_size": len(sent.data)}}
    text = json.dumps({"inputs": [field], "parameters": {"binary_data_output": True}}).encode()
    return decode_request(text + sent.data, str(len(text)))


def over_grpc(**fields):
    kind = message("inference.ModelInferRequest")
    takes = InputRules("m", Signature())
    return read_message(kind.FromString(kind(**fields).SerializeToString()), takes).request


def typed(sent):
    return over_grpc(inputs=[{**sent.head, "contents": {_FIELDS[sent.datatype]: sent.elements}}])


def raw(sent):
    return over_grpc(inputs=[sent.head], raw_input_contents=[sent.data])


def forms(sent):
    """The request in every form that there is for its type."""
    results = [in_json(sent, flat=True), in_json(sent, flat=False), in_binary(sent), raw(sent)]
    return [*results, typed(sent)] if sent.datatype in _FIELDS else results


@pytest.mark.parametrize("datatype", NAMES)
@given(data=st.data())
@_FEW
def test_all_forms_of_a_request_are_the_same_tensor(datatype, data):
    sent = data.draw(tensors(datatype))
    requests = forms(sent)

    for request in requests:
        (tensor,) = request.inputs
        assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("x", datatype, sent.shape)
        assert bytes(tensor.data) == sent.data
    rows = {tuple(map(bytes, cut(request)[2])) for request in requests}
    assert len(rows) == 1
    if datatype != BYTES or is_plain(requests[0]):
        keys = {b"" if is_plain(request) else cut(request)[0] for request in requests}
        assert len(keys) == 1


def echoed(request):
    extra, whole, rows = cut(request)
    form = decode_form(extra)
    (tensor,) = form.inputs
    answers = [
        pack_answer(
            [(OutputForm("o", tensor.datatype, tensor.shape), bytes(separate(form, memoryview(row))[0]))]
        )
        for row in rows
    ]
    return join_answers(answers, whole=whole)


@pytest.mark.parametrize("datatype", NAMES)
@given(data=st.data())
@_FEW
def test_answers_come_back_in_every_form(datatype, data):
    sent = data.draw(tensors(datatype))

    for request in forms(sent):
        outputs = echoed(request)
        assert [(each.datatype, list(each.shape)) for each in outputs] == [(datatype, sent.shape)]
        assert from_rest(request, outputs, binary=False) == sent.data
        assert from_rest(request, outputs, binary=True) == sent.data
        assert from_grpc(request, outputs) == sent.data


def from_rest(request, outputs, *, binary):
    requests = InferRequest(request.inputs, binary=binary)
    content, length = encode_response("m", "1", requests, "id", outputs)
    (output,) = json.loads(content if length is None else content[:length])["outputs"]
    if length is not None:
        assert output["parameters"] == {"binary_data_size": len(content) - length}
        return content[length:]
    values = from_json(output["datatype"], json.dumps(output["data"]).encode())
    return pack(
        output["datatype"], [each.encode() for each in values] if output["datatype"] == BYTES else values
    )


def from_grpc(request, outputs):
    """The output's bytes in a gRPC response: raw if the request was, or if there is no other form."""
    answer = message("inference.ModelInferResponse").FromString(
        response(ResponseParts("m", "1", request, TENSORS, False, [], "id"), outputs).SerializeToString()
    )
    (output,) = answer.outputs
    assert bool(answer.raw_output_contents) == (request.binary or output.datatype not in _FIELDS)
    if answer.raw_output_contents:
        return bytes(answer.raw_output_contents[0])
    return pack(output.datatype, list(getattr(output.contents, _FIELDS[output.datatype])))


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
@given(data=st.data())
@_FEW
def test_any_bits_pass(datatype, data):
    """Infinities, what is no number, and all else that bits can be pass in binary, raw and typed."""
    count = data.draw(st.integers(1, 4))
    width = DATATYPES[datatype].width
    content = data.draw(st.binary(min_size=count * width, max_size=count * width))
    request = InferRequest([Tensor("x", datatype, (count,), memoryview(content))], binary=True)

    assert from_rest(request, echoed(request), binary=True) == content
    assert from_grpc(request, echoed(request)) == content
    typed_content = from_grpc(InferRequest(request.inputs), echoed(request))
    assert str(unpack(datatype, memoryview(typed_content))) == str(unpack(datatype, memoryview(content)))
