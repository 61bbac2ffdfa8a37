"""Rows of JSON numbers as tensors: how ``base_handler`` reads requests to /predictions and V1.

A request has its numbers as they are, under ``data``, or as named inputs (``{name: numbers, ...}``); or a
list of any of these under ``instances``, which is answered with ``{"predictions": [...]}``. Text and bytes
are read as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from modelserver.engine.tensors.datatypes import TensorError
from modelserver_handlers.arrays import torch_type
from modelserver_handlers.errors import BadInput

_EMBEDDINGS = frozenset({"Embedding", "EmbeddingBag"})
_ONLY = "data"


def are_requests(rows: Any) -> bool:
    """Whether these are rows as the server passes them: dicts."""
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, Mapping) for row in rows)


def datatypes_of(config: Mapping[str, Any]) -> dict[str, torch.dtype]:
    """Input name to type, from the ``signature`` in model-config.yaml.

    Raises:
        BadInput: this torch is too old for one of them.
    """
    signature = config.get("signature")
    inputs = signature.get("inputs") if isinstance(signature, Mapping) else None
    try:
        return {each["name"]: torch_type(each["datatype"]) for each in inputs or ()}
    except TensorError as error:
        raise BadInput(str(error)) from None


def takes_floats(model: Any) -> bool:
    """Whether ``model`` takes whole numbers as floats: it has float parameters and no embedding."""
    if not isinstance(model, torch.nn.Module) or not any(map(torch.is_floating_point, model.parameters())):
        return False
    # torch.export's programs have operators instead of layers, TorchScript has layers of another class.
    steps = (
        [str(node.target) for node in model.graph.nodes] if isinstance(model, torch.fx.GraphModule) else []
    )
    kinds = {getattr(module, "original_name", type(module).__name__) for module in model.modules()}
    return kinds.isdisjoint(_EMBEDDINGS) and not any("embedding" in step for step in steps)


def instances_of(row: Mapping[str, Any]) -> list[Any] | None:
    """The value of ``instances`` in a request; None if it has none.

    Raises:
        BadInput: the request is not JSON.
    """
    content = _content(row)
    instances = content.get("instances") if isinstance(content, Mapping) else None
    return instances if isinstance(instances, list) else None


def tensors_of(
    row: Mapping[str, Any], datatypes: Mapping[str, torch.dtype], floats: bool
) -> list[dict[str, torch.Tensor]]:
    """The tensors of each instance of a request, by input; a lone one is called ``data``.

    ``floats``: whole numbers of inputs that ``datatypes`` does not name become float32.

    Raises:
        BadInput: they are not numbers, lists of different lengths, or instances of different shapes.
    """
    instances = instances_of(row)
    if instances is not None and not instances:
        raise BadInput("'instances' is empty")
    made = [_named(each, datatypes, floats) for each in ([row] if instances is None else instances)]
    shapes = [{name: tuple(tensor.shape) for name, tensor in each.items()} for each in made]
    if any(shape != shapes[0] for shape in shapes):
        raise BadInput("the instances differ in shape")
    return made


def grouped(answers: Any, rows: Sequence[Any]) -> Any:
    """One answer per request: those to the instances of one become ``{"predictions": [...]}``."""
    if not are_requests(rows):
        return answers
    instances = [instances_of(row) for row in rows]
    counts = [1 if each is None else len(each) for each in instances]
    if (
        all(each is None for each in instances)
        or not isinstance(answers, list)
        or len(answers) != sum(counts)
    ):
        return answers
    following = iter(answers)
    return [
        next(following) if each is None else {"predictions": [next(following) for _ in each]}
        for each in instances
    ]


def _content(value: Any) -> Any:
    """The value without the request's wrapping."""
    while True:
        value = _read(value)
        if not isinstance(value, Mapping):
            return value
        if "body" in value:
            value = value["body"]
        elif value.keys() - {"target"} == {_ONLY}:
            value = value[_ONLY]
        else:
            return value


def _read(value: Any) -> Any:
    if not isinstance(value, (str, bytes, bytearray)):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise BadInput("the input is not JSON: numbers or lists of numbers are needed") from None


def _named(instance: Any, datatypes: Mapping[str, torch.dtype], floats: bool) -> dict[str, torch.Tensor]:
    content = _content(instance)
    if not isinstance(content, Mapping):
        only = next(iter(datatypes.values())) if len(datatypes) == 1 else None
        return {_ONLY: _tensor(content, only, floats)}
    if not content:
        raise BadInput("no numbers were sent")
    made = {name: _tensor(_read(value), datatypes.get(name), floats) for name, value in content.items()}
    return made if len(made) > 1 else {_ONLY: next(iter(made.values()))}


def _tensor(numbers: Any, dtype: torch.dtype | None, floats: bool) -> torch.Tensor:
    try:
        tensor = torch.as_tensor(numbers, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadInput(f"not a tensor of numbers: {error}") from None
    return tensor.float() if floats and dtype is None and tensor.dtype == torch.int64 else tensor
