import json
import struct

import numpy as np
import pytest

from modelserver.ext.grpc.framing import message_framed
from modelserver.ext.grpc.messages import message
from modelserver.ext.recording.entries import lines_of_call
from modelserver.ext.rollout.agreement import Tolerance
from modelserver.tools.http_client import TimedResponse
from modelserver.tools.replay.comparison import body_of, difference, document_of, gets_id


def compared(make_call, then, now, **changes):
    call = make_call(answer=then, **changes)
    return difference(call, TimedResponse(0, 0, 200, b"", now), Tolerance(1e-3))


def test_status_and_fault_are_compared_first(make_call):
    call = make_call()

    assert difference(call, TimedResponse(0, 0, 200, b"", b"answer"), Tolerance()) == ""
    busy = TimedResponse(0, 0, 503, b"", b"busy")
    assert difference(call, busy, Tolerance()) == "status 200 became 503: 'busy'"
    assert difference(call, TimedResponse(0, 0, fault="no answer"), Tolerance()) == "no answer"


@pytest.mark.parametrize(
    ("then", "now", "text"),
    [
        (b"[1.0, 2]", b"[1.0001, 2]", ""),
        (b"[1.0, 2]", b"[1.1, 2]", "[0]: 1.0 became 1.1"),
        (b"[1, 2]", b"[1]", "[1, 2] became [1]"),
        (b'{"a": {"b": [NaN]}}', b'{ "a": {"b": [NaN]} }', ""),
        (b'{"a": {"b": "x"}}', b'{"a": {"b": "y"}}', 'a.b: "x" became "y"'),
        (b"[true]", b"[1]", "[0]: true became 1"),
        (b'{"predictions": [1], "batchId": "1"}', b'{"predictions": [1], "batchId": "2"}', ""),
        (b'{"id": 281, "x": 1}', b'{"id": 282, "x": 1}', "id: 281 became 282"),
        (b"text", b"other", "'text' became 'other'"),
        (b"[1]", b"\xff", "'[1]' became '\ufffd'"),
    ],
)
def test_bodies_are_compared_by_value(make_call, then, now, text):
    assert compared(make_call, then, now) == text


@pytest.mark.parametrize("depth", [100, 700, 100_000])
def test_deep_json_is_compared(make_call, depth):
    deep = b"[" * depth + b"%d" + b"]" * depth

    text = compared(make_call, deep % 1, deep % 2)

    assert " became " in text
    assert len(text) < 500
    assert compared(make_call, deep % 1, deep % 1) == ""
    assert compared(make_call, deep % 1, b"", method=b"HEAD") == ""


@pytest.mark.parametrize(
    ("datatype", "then", "now", "text"),
    [
        ("BF16", b"\x80\x3f", b"\x81\x3f", "output y[0]: 1 became 1.00781"),
        ("BF16", b"\x80\x7f", b"\x80\x7f", ""),
        ("INT64", (2**60).to_bytes(8, "little"), (2**60 + 1).to_bytes(8, "little"), "output y[0]: "),
        ("BOOL", b"\0", b"\1", "output y: its bytes differ"),
    ],
)
def test_datatypes_are_compared_exactly(make_call, datatype, then, now, text):
    parameters = {"binary_data_size": len(then)}
    output = {"name": "y", "datatype": datatype, "shape": [1], "parameters": parameters}
    head = json.dumps({"outputs": [output]}).encode()
    call = make_call(answer=head + then)
    result = difference(call, TimedResponse(0, 0, 200, b"", head + now), Tolerance(0, 0))

    assert result.startswith(text)
    assert bool(result) == bool(text)


def test_ids_of_the_open_inference_protocol(make_call):
    path = "/v2/models/m/infer"
    text = compared(make_call, b'{"id": "mine"}', b'{"id": "other"}', target=path, body=b'{"id": "mine"}')

    assert text == 'id: "mine" became "other"'
    assert compared(make_call, b'{"id": "made up"}', b'{"id": "anew"}', target=path, body=b"{}") == ""


def test_binary_tensors_are_compared_within_tolerance(make_call):
    outputs = [
        {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},
        {"name": "t", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
    ]
    head = json.dumps({"id": "1", "outputs": outputs}).encode()

    def body(numbers, text=b"\x01\0\0\0a"):
        return head.replace(b'"1"', b'"%d"' % id(numbers)) + np.array(numbers, "<f4").tobytes() + text

    then = body([1, 2])

    def text(now):
        return compared(make_call, then, now, target="/v2/models/m/infer", body=b"{}")

    assert text(body([1.0001, 2])) == ""
    assert text(body([1, 3])) == "output y[1]: 2 became 3"
    assert text(body([1, 2], b"\x01\0\0\0b")) == "output t: its bytes differ"
    assert text(then[:-1]) == "13 bytes of tensors became 12"


PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
INFER = "/inference.GRPCInferenceService/ModelInfer"
_Predicted = message("org.pytorch.serve.grpc.inference.PredictionResponse")
_Infer, _Inferred = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")


def predicted(*parts):
    return b"".join(message_framed(_Predicted(prediction=part).SerializeToString()) for part in parts)


def inferred(*numbers, named="1"):
    raw = struct.pack(f"<{len(numbers)}f", *numbers)
    answer = _Inferred(model_name="m", id=named, raw_output_contents=[raw])
    answer.outputs.add(name="y", datatype="FP32", shape=[len(numbers)])
    return message_framed(answer.SerializeToString())


def answered(body, code=0, status=200):
    return TimedResponse(0.0, 0.0, status, lines_of_call(code), body)


@pytest.mark.parametrize(
    ("target", "then", "now", "how"),
    [
        (PREDICTIONS, predicted(b'{"a": 1.0}'), predicted(b'{"a":', b" 1.000001}"), ""),
        (PREDICTIONS, predicted(b'{"a": 1.0}'), predicted(b'{"a": 2.0}'), "a: 1.0 became 2.0"),
        (PREDICTIONS, predicted(b"text"), predicted(b"other"), "'text' became 'other'"),
        (INFER, inferred(1, 2), inferred(1, 2.000001, named="2"), ""),
        (INFER, inferred(1, 2), inferred(1, 3), "output y[1]: 2 became 3"),
        (INFER, inferred(1, 2), inferred(1), 'outputs[0].shape[0]: "2" became "1"'),
    ],
)
def test_answers_are_compared_by_their_content(make_call, target, then, now, how):
    body = _Infer(model_name="m").SerializeToString() if target == INFER else b""
    call = make_call(method=b"gRPC", target=target, body=body, answer=then, lines=lines_of_call(0))

    assert difference(call, answered(now), Tolerance()) == how


def test_statuses_are_those_of_grpc(make_call):
    text, lines = b"later [request 1]\nclass", lines_of_call(13)
    call = make_call(method=b"gRPC", target=PREDICTIONS, answer=text, status=500, lines=lines)
    other = difference(call, answered(text, 2, 500), Tolerance())

    assert difference(call, answered(text.replace(b"1", b"2"), 13, 500), Tolerance()) == ""
    assert other.startswith("status INTERNAL became UNKNOWN: ")


def test_the_clients_own_id_counts(make_call):
    named, plain = (_Infer(model_name="m", id=each).SerializeToString() for each in ("7", ""))
    calls = [make_call(method=b"gRPC", target=INFER, body=body) for body in (named, plain, b"\xff")]

    assert [gets_id(call) for call in calls] == [False, True, True]
    assert not gets_id(make_call(method=b"gRPC", target=PREDICTIONS, body=b'"id"'))


def test_what_cannot_be_read(make_call):
    call = make_call(method=b"gRPC", target=INFER)

    assert body_of(call, b"\0\0\0\0\x09x") == b"\0\0\0\0\x09x"
    assert document_of(call, b"\xff\xff") is None
    assert document_of(make_call(), b"text") is None
