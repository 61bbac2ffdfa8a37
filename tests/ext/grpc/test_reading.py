"""Requests of ModelInfer, read for a model."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from modelserver.engine.tensors.weight import LIGHT_BYTES, TooHeavy
from modelserver.engine.wire.messages import BODY, TENSORS, SequenceHeaders
from modelserver.errors import BadRequest
from modelserver.ext.grpc.messages import message
from modelserver.ext.grpc.tensors import read_bytes, read_message
from modelserver.models.options.signature import Signature
from modelserver.surface.inference.v2 import InputRules

TAKES = InputRules("m", Signature())
WHOLE = InputRules("m", Signature(), rows=False)
SEQUENCES = InputRules("m", Signature(), SequenceHeaders("seq-id", "seq-start", "seq-end"))


def make_request(rows: int = 2, **parameters: Any) -> Any:
    """So many rows of one number."""
    request = message("inference.ModelInferRequest")(model_name="m", id="own")
    tensor = request.inputs.add(name="x", datatype="UINT8", shape=[rows, 1])
    tensor.contents.uint_contents.extend(number % 256 for number in range(rows))
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(request.parameters[name], kind, value)
    return request


def test_rows_are_taken_apart() -> None:
    """Of a model that takes rows; on the loop and by a helper alike."""
    here, off_loop = (
        read_message(make_request(), TAKES),
        read_bytes(make_request().SerializeToString(), TAKES),
    )

    for read in (here, off_loop):
        assert [bytes(body) for body in read.bodies] == [b"\0", b"\1"]
        assert (read.request.id, read.kind) == ("own", TENSORS)
    assert off_loop.request.inputs == []


def test_another_model_gets_the_whole_as_json() -> None:
    """As the same request has it over REST."""
    read = read_message(make_request(), WHOLE)

    assert read.kind == BODY
    assert json.loads(read.bodies[0])["inputs"] == [
        {"name": "x", "datatype": "UINT8", "shape": [2, 1], "data": [0, 1]}
    ]


def test_a_sequence_is_said_by_headers() -> None:
    """Only where the model has sequences; the parameters are taken out then."""
    data = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}

    for splits in (True, False):
        takes = msgspec.structs.replace(SEQUENCES, rows=splits)
        read = read_message(make_request(**data), takes)
        assert list(read.sequence) == [(b"seq-id", b"7"), (b"seq-start", b"true")]
    assert not read_message(make_request(**data), TAKES).sequence


def test_what_names_no_sequence_is_refused() -> None:
    """As over REST."""
    with pytest.raises(BadRequest, match="parameter sequence_start is 1, true or false is needed"):
        read_message(make_request(sequence_id=7, sequence_start=1), SEQUENCES)


def test_what_is_heavy_is_left_to_a_helper() -> None:
    """Where it must be light."""
    request = make_request(0)
    request.inputs[0].shape[:] = [LIGHT_BYTES + 1, 1]
    request.inputs[0].ClearField("contents")
    request.raw_input_contents.append(bytes(LIGHT_BYTES + 1))
    with pytest.raises(TooHeavy):
        read_message(request, WHOLE, light=True)


def test_nonsense_is_a_bad_request() -> None:
    """It names the message that it should have been."""
    with pytest.raises(BadRequest, match=r"not of type inference\.ModelInferRequest"):
        read_bytes(b"\xff\xff", TAKES)


def floats(*values: float, **changes: Any) -> dict[str, Any]:
    """A typed input of one row of numbers."""
    usual = {"name": "x", "datatype": "FP32", "shape": [len(values)], "contents": {"fp32_contents": values}}
    return {**usual, **changes}


def raw(datatype: str = "FP32", size: int = 2) -> dict[str, Any]:
    """An input whose contents are raw."""
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
def test_malformed_request_is_refused_by_name(fields: dict[str, Any], text: str) -> None:
    """The message says which input or parameter is wrong (F9, F11)."""
    with pytest.raises(BadRequest) as refused:
        read_message(message("inference.ModelInferRequest")(model_name="m", **fields), TAKES)

    assert refused.value.message.startswith(text)
