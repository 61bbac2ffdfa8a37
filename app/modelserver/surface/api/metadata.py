"""What the Open Inference Protocol says of the server and its models (kserve reference 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelserver.engine.tensors.datatypes import BYTES
from modelserver.engine.tensors.tensor import VARIABLE, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelserver.models.registry import Registry
    from modelserver.models.settings.settings import Settings
    from modelserver.models.version import ModelVersion

PLATFORM = "pytorch"

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
# For handlers whose inputs and outputs have no shape: images, text, JSON.
_ANY_INPUT = (TensorSpec("input_0", BYTES, (VARIABLE,)),)
_ANY_OUTPUT = (TensorSpec("output_0", BYTES, (VARIABLE,)),)


def extensions(settings: Settings) -> list[str]:
    """The extensions of the protocol that the server has."""
    shared = [] if settings.shared_memory_prefix is None else ["system_shared_memory"]
    return [*_EXTENSIONS, *shared]


def is_ready(registry: Registry) -> bool:
    """Whether every model that should have workers has a loaded one."""
    return all(readiness(registry))


def readiness(registry: Registry) -> list[bool]:
    """For each model that should have workers, whether it has a loaded one."""
    return [model.pool.ready for model in registry.defaults() if model.pool.min_workers]


def tensors_of(model: ModelVersion) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
    """The inputs and outputs of a model, from its signature, else from its handler's annotations.

    Without both, a built-in handler takes an image or a text and returns JSON; for others nothing is known.
    """
    signature = model.signature
    built_in = model.pool.splits and not model.envelope
    return (
        signature.inputs or (_ANY_INPUT if built_in else ()),
        signature.outputs or (_ANY_OUTPUT if built_in else ()),
    )


def describe_tensors(model: ModelVersion) -> dict[str, list[dict[str, Any]]]:
    """The inputs and outputs of a model, as far as they are known."""
    inputs, outputs = tensors_of(model)
    return {"inputs": _described(inputs), "outputs": _described(outputs)}


def _described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)} for spec in specs]
