"""Messages that are too heavy to be taken apart on the event loop."""

import pytest
from tests.opcodes import opcodes_of

from modelserver.errors import BadRequest
from modelserver.ext.grpc.encoded import EncodedMessage, is_heavy, texts_of
from modelserver.ext.grpc.messages import message

NAME = "inference.ModelInferRequest"
_Request = message(NAME)
_Part = message("inference.ModelStreamInferResponse")
_Answer = message("inference.ModelInferResponse")


def test_buffers_are_light_and_weighing_looks_at_few_fields():
    """Raw contents and packed floating-point numbers weigh nothing, however large they are."""
    raw = _Request(model_name="m", inputs=[{"name": "x"}], raw_input_contents=[bytes(1 << 20)])
    typed = _Request(model_name="m", inputs=[{"name": "x", "contents": {"fp32_contents": [0.5] * 100_000}}])

    assert not is_heavy(NAME, raw.SerializeToString())
    assert not is_heavy(NAME, typed.SerializeToString())

    many, few = b"\x2a\x00" * 3_000_000, b"\x2a\x00" * 20_000

    assert is_heavy(NAME, many)
    assert opcodes_of(lambda: is_heavy(NAME, many)) <= opcodes_of(lambda: is_heavy(NAME, few))
    assert is_heavy(NAME, b"\xff" * 100_000)


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": [{}] * 20_000},
        {"raw_input_contents": [b""] * 20_000},
        {"inputs": [{"contents": {"bytes_contents": [b""] * 20_000}}]},
        {"inputs": [{"contents": {"int_contents": [1] * 20_000}}]},
        {"parameters": {str(n): {"bool_param": True} for n in range(5_000)}},
    ],
    ids=["inputs", "raw", "bytes", "integers", "parameters"],
)
def test_structure_is_heavy(fields):
    """Many fields are heavy, each as small as it may be."""
    assert is_heavy(NAME, _Request(**fields).SerializeToString())


def test_encoded_messages_have_names_and_become_parts_of_streams():
    request = _Request(model_name="m", model_version="2", id="i", inputs=[{}] * 9)

    result = texts_of(_Request.DESCRIPTOR, request.SerializeToString())

    assert result == {"model_name": "m", "model_version": "2", "id": "i"}
    for broken in (b"\x0a\x02\xff\xff", b"\x0a"):
        with pytest.raises(BadRequest, match=NAME):
            texts_of(_Request.DESCRIPTOR, broken)

    answer = _Answer(model_name="m", raw_output_contents=[bytes(300)])
    encoded = EncodedMessage(_Answer.DESCRIPTOR, answer.SerializeToString())

    part = encoded.within(_Part.DESCRIPTOR, "infer_response")

    assert _Part.FromString(part.SerializeToString()).infer_response == answer
