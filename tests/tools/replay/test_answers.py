"""Answers over gRPC as documents that can be compared."""

from __future__ import annotations

import struct

import pytest

from modelserver.ext.grpc.messages import message
from modelserver.ext.recording.entries import lines_of_call
from modelserver.ext.rollout.agreement import Tolerance
from modelserver.surface.http.client import TimedResponse
from modelserver.surface.watching import message_framed
from modelserver.tools.replay.answers import body_of, document_of, gets_id
from modelserver.tools.replay.comparison import difference

PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
INFER = "/inference.GRPCInferenceService/ModelInfer"
_Predicted = message("org.pytorch.serve.grpc.inference.PredictionResponse")
_Infer, _Inferred = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")


def predicted(*parts: bytes) -> bytes:
    """An answer in so many messages."""
    return b"".join(message_framed(_Predicted(prediction=part).SerializeToString()) for part in parts)


def inferred(*numbers: float, named: str = "1") -> bytes:
    """An answer with a tensor of these numbers."""
    answer = _Inferred(
        model_name="m", id=named, raw_output_contents=[struct.pack(f"<{len(numbers)}f", *numbers)]
    )
    answer.outputs.add(name="y", datatype="FP32", shape=[len(numbers)])
    return message_framed(answer.SerializeToString())


def answered(body: bytes, code: int = 0, status: int = 200) -> TimedResponse:
    """An answer of now."""
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
def test_answers_are_compared_by_their_content(make_call, target, then, now, how) -> None:
    """Numbers within the tolerance, however many messages they came in; not the ids that the server makes."""
    body = _Infer(model_name="m").SerializeToString() if target == INFER else b""
    call = make_call(method=b"gRPC", target=target, body=body, answer=then, lines=lines_of_call(0))

    assert difference(call, answered(now), Tolerance()) == how


def test_statuses_are_those_of_grpc(make_call) -> None:
    """Two codes that are one status of HTTP differ; ids of requests in texts do not count."""
    told = b"later [request 1]\nclass"
    call = make_call(
        method=b"gRPC", target=PREDICTIONS, answer=told, status=500, lines=lines_of_call(13)
    )  # fmt: skip

    assert difference(call, answered(told.replace(b"1", b"2"), 13, 500), Tolerance()) == ""
    assert difference(call, answered(told, 2, 500), Tolerance()).startswith(
        "status INTERNAL became UNKNOWN: "
    )


def test_the_clients_own_id_counts(make_call) -> None:
    """An answer repeats it."""
    named, plain = (_Infer(model_name="m", id=each).SerializeToString() for each in ("7", ""))
    calls = [make_call(method=b"gRPC", target=INFER, body=body) for body in (named, plain, b"\xff")]

    assert [gets_id(call) for call in calls] == [False, True, True]
    assert not gets_id(make_call(method=b"gRPC", target=PREDICTIONS, body=b'"id"'))


def test_what_cannot_be_read(make_call) -> None:
    """Is compared as it is."""
    call = make_call(method=b"gRPC", target=INFER)

    assert body_of(call, b"\0\0\0\0\x09x") == b"\0\0\0\0\x09x"
    assert document_of(call, b"\xff\xff") is None
    assert document_of(make_call(), b"text") is None
