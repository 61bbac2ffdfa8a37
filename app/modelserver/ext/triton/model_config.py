"""A model's configuration as Triton's `config.pbtxt` would say it (the model configuration extension)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelserver.ext.triton.metadata import describe_tensors

if TYPE_CHECKING:
    from modelserver.models.version import ModelVersion

_ANY_SIZE = -1


def describe_config(model: ModelVersion) -> dict[str, Any]:
    """The configuration as JSON; times are in microseconds.

    `max_batch_size` is the model's batch size if the first dimension of all tensors is the rows, and then
    `dims` leaves it out; otherwise 0.
    """
    options = model.options
    described = describe_tensors(model)
    inputs, outputs = described["inputs"], described["outputs"]
    by_rows = model.splits_tensors and all(each["shape"][:1] == [_ANY_SIZE] for each in (*inputs, *outputs))
    timeout = options.request_timeout
    config: dict[str, Any] = {
        "name": model.name,
        "platform": described["platform"],
        "backend": "modelserver",
        "max_batch_size": options.batch_size if by_rows else 0,
        "input": [_tensor(each, by_rows=by_rows) for each in inputs],
        "output": [_tensor(each, by_rows=by_rows) for each in outputs],
        "instance_group": [_instances(model)],
        "model_transaction_policy": {"decoupled": False},
        "parameters": {"batch_policy": {"string_value": options.batch_policy}},
    }
    if options.sequence_batching:
        config["sequence_batching"] = {
            "max_sequence_idle_microseconds": options.sequence_max_idle_ms * 1000,
            "oldest": {
                "max_candidate_sequences": options.max_num_sequence,
                "max_queue_delay_microseconds": options.max_batch_delay * 1000,
            },
        }
    elif options.batch_size > 1:
        config["dynamic_batching"] = {
            "preferred_batch_size": [options.batch_size],
            "max_queue_delay_microseconds": options.max_batch_delay * 1000,
            "default_queue_policy": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": 0 if timeout is None else round(timeout * 1e6),
                "allow_timeout_override": True,
                "max_queue_size": options.job_queue_size,
            },
        }
    return config


def _tensor(described: dict[str, Any], *, by_rows: bool) -> dict[str, Any]:
    datatype, shape = described["datatype"], described["shape"]
    return {
        "name": described["name"],
        "data_type": "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}",
        "dims": shape[1:] if by_rows else shape,
    }


def _instances(model: ModelVersion) -> dict[str, Any]:
    gpus = sorted({worker.gpu for worker in model.pool.workers if worker.gpu is not None})
    return {
        "name": f"{model.name}_0",
        "kind": "KIND_GPU" if gpus else "KIND_CPU",
        "count": len(model.pool.workers),
        "gpus": gpus,
    }
