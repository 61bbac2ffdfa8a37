"""The inputs and outputs of a model, as declared in model-config.yaml (kserve reference 5).

    signature:
      inputs:
        - {name: image, datatype: FP32, shape: [-1, 3, 224, 224]}
      outputs:
        - {name: scores, datatype: FP32, shape: [-1, 1000]}

The first size of a shape is the number of rows; -1 is any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modelserver.engine.tensors.datatypes import NAMES
from modelserver.engine.tensors.tensor import VARIABLE, Tensor, TensorSpec
from modelserver.errors import BadRequest
from modelserver.models.options.values import Values, excerpt
from modelserver.models.settings.key import LARGEST

_FIELDS = ("name", "datatype", "shape")
_MOST_TENSORS = 256


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model in the V2 protocol."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()

    def check_inputs(self, inputs: Sequence[Tensor]) -> None:
        """Raises BadRequest, naming the input, unless these are all inputs as declared."""
        if not self.inputs:
            return
        tensors = {tensor.name: tensor for tensor in inputs}
        known = {spec.name for spec in self.inputs}
        for name in tensors:
            if name not in known:
                raise BadRequest(f"input '{name}' is unknown, the model has {_listed(self.inputs)}")
        for spec in self.inputs:
            tensor = tensors.get(spec.name)
            if tensor is None:
                raise BadRequest(f"input '{spec.name}' is missing")
            if tensor.datatype != spec.datatype:
                raise BadRequest(
                    f"input '{spec.name}': datatype is {tensor.datatype}, the model takes {spec.datatype}"
                )
            if not spec.fits(tensor.shape):
                raise BadRequest(
                    f"input '{spec.name}': shape is {list(tensor.shape)}, the model takes {list(spec.shape)}"
                )

    def check_outputs(self, model: str, names: Sequence[str]) -> None:
        """Raises BadRequest for the name of an output that the model does not have."""
        known = {spec.name for spec in self.outputs}
        for name in names:
            if known and name not in known:
                raise BadRequest(
                    f"Unexpected inference output '{name}' for model '{model}', "
                    f"which has {_listed(self.outputs)}"
                )


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"'{spec.name}'" for spec in specs)


def signature() -> Values:
    """The values of the key ``signature``: lists of tensors, each with name, datatype and shape."""
    allowed = "`{inputs: [{name: …, datatype: …, shape: […]}, …], outputs: […]}`"
    return Values(allowed, _read)


def _read(value: object) -> Signature:
    if not isinstance(value, dict):
        raise ValueError("a mapping of inputs and outputs is needed")  # noqa: TRY004 - as for all values
    for key in value:
        if key not in ("inputs", "outputs"):
            raise ValueError(f"{excerpt(key)} is unknown, a mapping of inputs and outputs is needed")
    return Signature(_tensors("inputs", value), _tensors("outputs", value))


def _tensors(side: str, block: dict[Any, Any]) -> tuple[TensorSpec, ...]:
    entries = block.get(side)
    if entries is None:
        return ()
    if not isinstance(entries, list) or len(entries) > _MOST_TENSORS:
        raise ValueError(f"{side}: a list of at most {_MOST_TENSORS} tensors is needed")
    specs = tuple(_tensor(f"{side}[{place}]", entry) for place, entry in enumerate(entries))
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{side}: '{excerpt(name)}' is given twice, unique names are needed")
    return specs


def _tensor(where: str, entry: object) -> TensorSpec:
    if not isinstance(entry, dict) or set(entry) != set(_FIELDS):
        raise ValueError(f"{where}: {', '.join(_FIELDS)}, and nothing else, is needed")
    name, datatype, shape = (entry[field] for field in _FIELDS)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}.name: a text is needed")
    if datatype not in NAMES:
        raise ValueError(f"{where}.datatype is {excerpt(datatype)}, one of {', '.join(NAMES)} is needed")
    if not isinstance(shape, list) or not shape or not all(map(_is_size, shape)):
        raise ValueError(
            f"{where}.shape is {excerpt(shape)}, a list of whole numbers, the rows first, "
            f"{VARIABLE} for any, is needed"
        )
    return TensorSpec(name, datatype, tuple(shape))


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and VARIABLE <= size <= LARGEST
