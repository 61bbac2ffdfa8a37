from types import SimpleNamespace

import pytest
from tests.ext.triton.doubles import version

from modelserver.engine.tensors.tensor import TensorSpec
from modelserver.ext.triton.metadata import describe_config, describe_model, describe_server
from modelserver.models.options.signature import Signature

ROWS = Signature((TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "BYTES", (-1,)),))


def test_rows_are_batches():
    """`dims` leaves out a first dimension that is the rows, and the batch size is set; times are in µs."""
    config = describe_config(version(ROWS, batch_size=8, max_batch_delay=5, job_queue_size=50))

    assert config["max_batch_size"] == 8
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_STRING", "dims": []}]
    assert config["dynamic_batching"] == {
        "preferred_batch_size": [8],
        "max_queue_delay_microseconds": 5000,
        "default_queue_policy": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 0,
            "allow_timeout_override": True,
            "max_queue_size": 50,
        },
    }
    assert "sequence_batching" not in config


def test_batch_size_of_one_has_no_scheduler():
    assert "dynamic_batching" not in describe_config(version(ROWS))
    policy = describe_config(version(ROWS, batch_size=2, request_timeout=1.5))["dynamic_batching"]

    assert policy["default_queue_policy"]["default_timeout_microseconds"] == 1_500_000

    assert describe_config(version(ROWS, batch_size=4, tensors=False))["max_batch_size"] == 0


@pytest.mark.parametrize("shape", [(2, 3), (), (3, -1)], ids=["fixed", "scalar", "fixed rows"])
def test_tensor_without_rows_is_not_batched(shape):
    """Where a tensor's first dimension is not any number of rows, clients must not add one."""
    config = describe_config(version(Signature((TensorSpec("x", "INT8", shape),)), batch_size=4))
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (0, list(shape))


def test_sequences_and_unknown_tensors_are_described():
    """Triton's tools need to know of them."""
    options = {"sequence_batching": True, "sequence_max_idle_ms": 60_000, "max_num_sequence": 16}
    config = describe_config(version(ROWS, batch_size=4, max_batch_delay=2, **options))

    assert config["sequence_batching"] == {
        "max_sequence_idle_microseconds": 60_000_000,
        "oldest": {"max_candidate_sequences": 16, "max_queue_delay_microseconds": 2000},
    }
    assert "dynamic_batching" not in config

    built_in, other = describe_config(version(splits=True)), describe_config(version())

    assert [(each["name"], each["data_type"]) for each in (*built_in["input"], *built_in["output"])] == [
        ("input_0", "TYPE_STRING"),
        ("output_0", "TYPE_STRING"),
    ]
    assert (other["input"], other["output"]) == ([], [])


@pytest.mark.parametrize(("gpus", "kind"), [((None, None), "KIND_CPU"), ((1, 0, 1), "KIND_GPU")])
def test_workers_are_one_group_of_instances(gpus, kind):
    (group,) = describe_config(version(ROWS, gpus=gpus))["instance_group"]
    assert (group["kind"], group["count"]) == (kind, len(gpus))
    assert group["gpus"] == ([0, 1] if kind == "KIND_GPU" else [])


def test_tensors_of_a_signature_are_described():
    signature = Signature((TensorSpec("x", "FP32", (-1, 2)),))
    pool = SimpleNamespace(splits=False)
    model = SimpleNamespace(name="m", version="1.0", signature=signature, pool=pool, envelope="")
    registry = SimpleNamespace(get=lambda *_: model, versions=lambda _: [model])
    about = {"name": "m", "versions": ["1.0"], "platform": "pytorch"}
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]

    assert describe_model(registry, "m", None) == {**about, "inputs": inputs, "outputs": []}
    pool.splits = True
    described = describe_model(registry, "m", None)
    assert described["outputs"] == [{"name": "output_0", "datatype": "BYTES", "shape": [-1]}]


def test_shared_memory_is_an_extension_where_it_is_allowed():
    without, with_it = (
        describe_server(SimpleNamespace(shared_memory_prefix=each))["extensions"] for each in (None, "/")
    )

    assert [*without, "system_shared_memory"] == with_it
