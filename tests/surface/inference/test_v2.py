import json
from types import SimpleNamespace

import msgspec
import pytest

from modelserver.engine.batching.request import Request
from modelserver.engine.tensors.rows import OutputForm, pack_answer
from modelserver.engine.wire.messages import TENSORS, Answer, Row, SequenceHeaders
from modelserver.errors import BadRequest
from modelserver.models.options.resolve import ModelOptions
from modelserver.models.options.signature import Signature
from modelserver.surface.inference.requests import headers_of, make_request
from modelserver.surface.inference.v2 import InputRules, ResponseParts, read_tensors

TAKES = InputRules("m", Signature())
SEQUENCES = InputRules("m", Signature(), SequenceHeaders("seq-id", "seq-start", "seq-end"))


def body(rows: int = 2, **more) -> bytes:
    tensor = {"name": "x", "datatype": "INT8", "shape": [rows, 1], "data": list(range(rows))}
    return json.dumps({"inputs": [tensor], **more}).encode()


def test_each_row_travels_alone():
    taken = read_tensors(body(), None, TAKES)
    model = SimpleNamespace(sequence_headers=None, options=ModelOptions())
    rows = make_request(taken, model, "r", b"\x90", 0.0, None, explain=True).rows

    assert [bytes(each) for each in taken.bodies] == [b"\0", b"\1"]
    assert [(r.request_id, r.kind, r.explain, r.size) for r in rows] == [("r", TENSORS, True, 1)] * 2
    assert taken.without_inputs().request.inputs == []


@pytest.mark.parametrize(
    ("parameters", "seconds"), [({}, None), ({"timeout": 0}, None), ({"timeout": 2_500_000}, 2.5)]
)
def test_a_timeout_is_in_microseconds(parameters, seconds):
    taken = read_tensors(body(parameters=parameters), None, TAKES)
    assert (taken.timeout, taken.key) == (seconds, read_tensors(body(), None, TAKES).key)


@pytest.mark.parametrize(
    ("rules", "parameters", "message"),
    [
        *((TAKES, {"timeout": each}, "a number of microseconds is needed") for each in (-1, 1.5, True, "1")),
        (SEQUENCES, {"sequence_id": 1.5}, "parameter sequence_"),
        (SEQUENCES, {"sequence_id": "x" * 300}, "parameter sequence_"),
        (SEQUENCES, {"sequence_start": 1}, "parameter sequence_"),
    ],
)
def test_unusable_parameters_are_refused(rules, parameters, message):
    with pytest.raises(BadRequest, match=message):
        read_tensors(body(parameters=parameters), None, rules)


def test_sequence_parameters_become_headers():
    named = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
    taken = read_tensors(body(parameters=named), None, SEQUENCES)

    assert msgspec.msgpack.decode(headers_of(taken, msgspec.msgpack.encode([[b"a", b"b"]]))) == [
        [b"a", b"b"],
        [b"seq-id", b"7"],
        [b"seq-start", b"true"],
    ]
    assert read_tensors(body(parameters=named), None, TAKES).sequence == []


def test_small_answers_are_light():
    """Large ones only in binary, which nobody has to write out."""
    parsed = read_tensors(body(), None, TAKES).request
    light, heavy = (
        ResponseParts("m", "1", parsed, TENSORS, False, [bytes(size)], "id") for size in (10, 10_000_000)
    )

    assert (light.is_light, heavy.is_light) == (True, False)


def test_rows_answers_are_one_response():
    parsed = read_tensors(body(), None, TAKES)
    answers = [pack_answer([(OutputForm("y", "INT8", ()), bytes([number]))]) for number in (3, 4)]
    model = SimpleNamespace(name="m", version="1", batches=True)
    request = Request("made", [Row("made", 1)] * 2, [b"", b""], 0.0)
    request.batch_id = "b"
    request.deliver(0, [(Answer(len(each), parameters=b'{"own":1}'), each) for each in answers])
    content, content_type, length = parsed.encode(model, request)

    assert (content_type, length) == ("application/json", b"")
    assert json.loads(content) == {
        "model_name": "m",
        "model_version": "1",
        "id": "made",
        "parameters": {"own": 1, "batchId": "b"},
        "outputs": [{"name": "y", "datatype": "INT8", "shape": [2], "data": [3, 4]}],
    }
