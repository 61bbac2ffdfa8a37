"""What the Open Inference Protocol says of the server and its models (kserve reference 5)."""

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
# For handlers whose inputs and outputs have no shape: images, text, JSON.
_ANY_INPUT = {"name": "input_0", "datatype": "BYTES", "shape": [-1]}
_ANY_OUTPUT = {"name": "output_0", "datatype": "BYTES", "shape": [-1]}


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
