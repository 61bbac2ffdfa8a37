"""The descriptors: what the protos say, in a pool of their own."""

import pytest
from google.protobuf import descriptor_pb2
from tests.ext.grpc.descriptors import generate

from modelserver.ext.grpc.messages import DESCRIPTORS, POOL, message, service

# Fields that Triton's messages do not have.
_OF_KSERVE = {
    "ModelMetadataResponse.properties",
    "RepositoryModelLoadResponse.model_name",
    "RepositoryModelLoadResponse.isLoaded",
    "RepositoryModelUnloadResponse.model_name",
    "RepositoryModelUnloadResponse.isUnloaded",
    "ModelMetadataResponse.PropertiesEntry.key",
    "ModelMetadataResponse.PropertiesEntry.value",
}
# Fields of these that have no meaning here are left out.
_IN_PART = {
    "ModelConfig",
    "ModelInput",
    "ModelOutput",
    "ModelInstanceGroup",
    "ModelDynamicBatching",
    "ModelSequenceBatching",
}


def test_descriptors_are_current():
    """`python -m tests.ext.grpc.descriptors` would write what is there."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed, so nothing can be compared")
    assert generate() == DESCRIPTORS.read_bytes(), "run python -m tests.ext.grpc.descriptors"


def test_pool_is_our_own():
    other = pytest.importorskip("tritonclient.grpc").service_pb2.ModelInferRequest

    assert "raw_input_contents" in message("inference.ModelInferRequest").DESCRIPTOR.fields_by_name
    assert other.DESCRIPTOR.full_name == "inference.ModelInferRequest"
    assert other.DESCRIPTOR.file.pool is not POOL

    for find in (message, service):
        with pytest.raises(KeyError):
            find("inference.NoSuch")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("inference.PredictionsRequest", "model_name model_version input sequence_id"),
        ("inference.PredictionResponse", "prediction sequence_id status"),
        (
            "management.RegisterModelRequest",
            (
                "batch_size handler initial_workers max_batch_delay model_name response_timeout runtime"
                " synchronous url s3_sse_kms startup_timeout"
            ),
        ),
        (
            "management.ScaleWorkerRequest",
            "model_name model_version max_worker min_worker number_gpu synchronous timeout",
        ),
    ],
)
def test_field_numbers_are_torchserves(name, fields):
    """They are TorchServe's (reference 20), from 1 on; those of V2 are compared below."""
    described = message(f"org.pytorch.serve.grpc.{name}").DESCRIPTOR.fields
    assert [(field.number, field.name) for field in described] == list(enumerate(fields.split(), 1))


def fields_of(kind):
    """The fields of a message type and of those within it, and the numbers of its enumerations."""
    result = {}
    for field in kind.field:
        choice = kind.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        result[field.name] = field.number, field.type, field.label, field.type_name, choice
    for enum in kind.enum_type:
        result |= {f"{enum.name}.{value.name}": (value.number,) for value in enum.value}
    for each in kind.nested_type:
        result |= {f"{each.name}.{name}": number for name, number in fields_of(each).items()}
    return result


def compared(pool, name):
    """The fields of a message of the protocol, by names that begin with its own."""
    kind = descriptor_pb2.DescriptorProto()
    pool.FindMessageTypeByName(f"inference.{name}").CopyToProto(kind)
    return {f"{name}.{field}": number for field, number in fields_of(kind).items()}


def test_messages_are_tritons():
    """Every method of Triton's that its client knows is there, and the messages have the fields that Triton's
    have, by number, type and name; beside them only those that KServe's clients know.
    """
    file = pytest.importorskip("tritonclient.grpc").service_pb2.DESCRIPTOR
    others, ours = file.services_by_name["GRPCInferenceService"], service("inference.GRPCInferenceService")
    names = {name for each in (ours.file, *ours.file.dependencies) for name in each.message_types_by_name}

    assert set(ours.methods_by_name) == set(others.methods_by_name)
    assert len(names) > 50
    for name in names:
        mine, other = compared(POOL, name), compared(file.pool, name)
        shared = mine.keys() & other.keys()
        assert {field: mine[field] for field in shared} == {field: other[field] for field in shared}
        assert mine.keys() - shared <= _OF_KSERVE
        assert name in _IN_PART or other.keys() == shared
