"""Recorded calls over gRPC that are made again in a worker."""

from __future__ import annotations

import pytest
from tests.e2e.conftest import MODEL_CODE

from modelserver.ext.grpc.client import messages_of
from modelserver.ext.grpc.messages import message
from modelserver.ext.recording.entries import code_of
from modelserver.models.settings.load import load_settings
from modelserver.tools.archiver import ArchiveConfig, build_archive
from modelserver.tools.replay.exact import replay_exactly

PREDICT = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
INFER = "/inference.GRPCInferenceService/ModelInfer"
_Predicted = message("org.pytorch.serve.grpc.inference.PredictionResponse")
_Inferred = message("inference.ModelInferResponse")


@pytest.fixture
def settings(tmp_path):
    """Settings with a store that has ``fields`` and ``mirror``."""
    for name in ("fields", "mirror"):
        build_archive(ArchiveConfig(name, str(MODEL_CODE / f"{name}.py"), "1.0", export_path=tmp_path))
    return load_settings({"model_store": str(tmp_path)}, {}, tmp_path)


def predict(model, **data):
    """The message of a prediction."""
    asked = message("org.pytorch.serve.grpc.inference.PredictionsRequest")(model_name=model, input=data)
    return asked.SerializeToString()


def test_calls_of_each_method(settings, make_call) -> None:
    """Each with its answer, or its failure; a message that cannot be read is one."""
    tensors = message("inference.ModelInferRequest")(model_name="mirror", raw_input_contents=[bytes(8)])
    tensors.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    asked = [
        ("mirror", f"{PREDICT}Predictions", predict("mirror", data=b"x")),
        ("mirror", INFER, tensors.SerializeToString()),
        ("mirror", f"{PREDICT}Predictions", b"\xff"),
        ("fields", f"{PREDICT}StreamPredictions", predict("fields", parts=b"2")),
        ("fields", f"{PREDICT}StreamPredictions", predict("fields", parts=b"1", fail=b"")),
    ]
    calls = [
        make_call(
            number=number, method=b"gRPC", target=target, model=model, body=body, headers=[],
            lines=b"x-batch-id: %d\r\nx-batch-size: 1" % number,
        )
        for number, (model, target, body) in enumerate(asked)
    ]  # fmt: skip
    replayed = replay_exactly(calls, settings)
    answers = [answer for batch in replayed.batches for answer in batch.answers]
    predicted, inferred, unread, stream, broken = answers

    assert [_Predicted.FromString(each).prediction for each in messages_of(predicted.body)] == [b"x"]
    assert [_Inferred.FromString(each).outputs[0].shape for each in messages_of(inferred.body)] == [[1, 2]]
    assert [len(list(messages_of(each.body))) for each in (predicted, inferred, stream)] == [1, 1, 3]
    assert [code_of(each.lines) for each in answers] == [0, 0, 13, 0, 14]
    assert (unread.status, broken.status) == (500, 0)
    assert [not batch.difference for batch in replayed.batches] == [True, True, False, True, True]
