"""What the Open Inference Protocol says of the server and its models (kserve reference 5), and a model's
configuration as Triton's `config.pbtxt` would say it (the model configuration extension).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from modelserver import __version__

if TYPE_CHECKING:
    from modelserver.models.registry import Registry
    from modelserver.models.settings.settings import Settings
    from modelserver.models.version import ModelVersion

# Triton's names and KServe's one.
_EXTENSIONS = (
    "binary_tensor_data",
    "parameters",
    "model_repository",
    "model_repository_extension",
    "model_configuration",
    "statistics",
    "sequence",
    "classification",
    "trace",
    "logging",
)
_ANY_SIZE = -1
# For handlers whose inputs and outputs have no shape: images, text, JSON.
_ANY_INPUT = {"name": "input_0", "datatype": "BYTES", "shape": [_ANY_SIZE]}
_ANY_OUTPUT = {"name": "output_0", "datatype": "BYTES", "shape": [_ANY_SIZE]}


def describe_server(settings: Settings) -> dict[str, Any]:
    """Name, version and extensions of the protocol."""
    shared = [] if settings.shared_memory_prefix is None else ["system_shared_memory"]
    return {"name": "modelserver", "version": __version__, "extensions": [*_EXTENSIONS, *shared]}


def describe_model(registry: Registry, name: str, version: str | None) -> dict[str, Any]:
    """Versions, inputs and outputs, as far as these are known. Raises as :meth:`ModelTable.get`."""
    model = registry.get(name, version)
    versions = [each.version for each in registry.versions(name)]
    return {"name": model.name, "versions": versions, **describe_tensors(model)}


def describe_tensors(model: ModelVersion) -> dict[str, Any]:
    """Platform, inputs and outputs, of its signature or else of its handler's annotations (-1: any size).

    Without both, a built-in handler takes an image or a text and returns JSON; for others nothing is known.
    """
    signature = model.signature
    built_in = model.pool.splits and not model.envelope
    return {
        "platform": "pytorch",
        "inputs": _described(signature.inputs) or ([_ANY_INPUT] if built_in else []),
        "outputs": _described(signature.outputs) or ([_ANY_OUTPUT] if built_in else []),
    }


def _described(specs: Iterable[Any]) -> list[dict[str, Any]]:
    """The tensors of one side of a signature."""
    return [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)} for spec in specs]


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
