"""The descriptors: what the protos say, in a pool of their own."""

from __future__ import annotations

import pytest
from tests.grpc.descriptors import generate

from modelserver.grpc.messages import DESCRIPTORS, POOL, message, service


def test_descriptors_are_current() -> None:
    """`python -m tests.grpc.descriptors` would write what is there."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed, so nothing can be compared")

    assert generate() == DESCRIPTORS.read_bytes(), "run python -m tests.grpc.descriptors"


def test_pool_is_our_own() -> None:
    """A client's copy of the same messages, in the pool of all, is not in the way."""
    theirs = pytest.importorskip("tritonclient.grpc").service_pb2.ModelInferRequest

    assert "raw_input_contents" in message("inference.ModelInferRequest").DESCRIPTOR.fields_by_name
    assert theirs.DESCRIPTOR.full_name == "inference.ModelInferRequest"
    assert theirs.DESCRIPTOR.file.pool is not POOL


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        (
            "org.pytorch.serve.grpc.inference.PredictionsRequest",
            {"model_name": 1, "model_version": 2, "input": 3, "sequence_id": 4},
        ),
        (
            "org.pytorch.serve.grpc.inference.PredictionResponse",
            {"prediction": 1, "sequence_id": 2, "status": 3},
        ),
        (
            "org.pytorch.serve.grpc.management.RegisterModelRequest",
            {
                "batch_size": 1,
                "handler": 2,
                "initial_workers": 3,
                "max_batch_delay": 4,
                "model_name": 5,
                "response_timeout": 6,
                "runtime": 7,
                "synchronous": 8,
                "url": 9,
                "s3_sse_kms": 10,
                "startup_timeout": 11,
            },
        ),
        (
            "org.pytorch.serve.grpc.management.ScaleWorkerRequest",
            {
                "model_name": 1,
                "model_version": 2,
                "max_worker": 3,
                "min_worker": 4,
                "number_gpu": 5,
                "synchronous": 6,
                "timeout": 7,
            },
        ),
        (
            "inference.ModelInferRequest",
            {
                "model_name": 1,
                "model_version": 2,
                "id": 3,
                "parameters": 4,
                "inputs": 5,
                "outputs": 6,
                "raw_input_contents": 7,
            },
        ),
        (
            "inference.InferTensorContents",
            {
                "bool_contents": 1,
                "int_contents": 2,
                "int64_contents": 3,
                "uint_contents": 4,
                "uint64_contents": 5,
                "fp32_contents": 6,
                "fp64_contents": 7,
                "bytes_contents": 8,
            },
        ),
        (
            "inference.InferParameter",
            {
                "bool_param": 1,
                "int64_param": 2,
                "string_param": 3,
                "double_param": 4,
                "uint64_param": 5,
            },
        ),
    ],
)
def test_field_numbers(name: str, numbers: dict[str, int]) -> None:
    """They are the contract (reference 20, kserve reference 6)."""
    assert {field.name: field.number for field in message(name).DESCRIPTOR.fields} == numbers


def test_unknown_names() -> None:
    """Names that the protos do not have are KeyErrors."""
    for find in (message, service):
        with pytest.raises(KeyError):
            find("inference.NoSuch")
