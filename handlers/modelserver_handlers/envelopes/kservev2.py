"""``kservev2``: the Open Inference Protocol's tensors as JSON (reference 14.6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from modelserver_handlers.envelopes.base import BaseEnvelope, content, listed
from modelserver_handlers.errors import BadInput

_DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
_OF_PYTHON = {bool: "BOOL", int: "INT64", float: "FP64"}


class KserveV2Envelope(BaseEnvelope):
    """One value per input tensor: the input with its ``data`` in its ``shape``; for BYTES the first element.

    The handler's answer to each becomes an output of that input's name. A handler that takes the inputs
    together may answer each request once, or a lone request with fewer answers than inputs.
    """

    def unfold(self, request: Any) -> list[Any]:
        """The inputs. Raises BadInput, naming the input, for data that does not fill the shape."""
        return [_shaped(one, place) for place, one in enumerate(listed(request, "inputs"))]

    def fold(self, request: Any, answers: list[Any], position: int) -> Any:
        """An Open Inference answer; its id is the request's own, else that of the HTTP request."""
        carried = content(request)
        manifest = getattr(self.context, "manifest", None) or {}
        return {
            "id": carried.get("id") or self.context.get_request_id(position),
            "model_name": getattr(self.context, "model_name", None),
            "model_version": (manifest.get("model") or {}).get("modelVersion"),
            "outputs": [
                _output(one["name"], answer) for one, answer in zip(carried["inputs"], answers, strict=False)
            ],
        }

    def shares(self, answers: list[Any], counts: list[int]) -> list[int] | None:
        """One answer per input, or per request, or fewer than the inputs of the only one."""
        asking = [position for position, count in enumerate(counts) if count]
        if len(answers) == sum(counts):
            return counts
        if len(answers) == len(asking):
            return [min(count, 1) for count in counts]
        if len(asking) == 1 and len(answers) < sum(counts):
            return [len(answers) if count else 0 for count in counts]
        return None


def _shaped(one: Any, place: int) -> dict[str, Any]:
    fields = ("name", "shape", "datatype", "data")
    if not isinstance(one, Mapping) or not all(field in one for field in fields):
        raise BadInput(f"inputs[{place}] needs {', '.join(fields)}")
    values = _flat(one["data"])
    if one["datatype"] == "BYTES":
        # Its shape is ignored, as in TorchServe, whose documentation sends one text with shape -1.
        return {**one, "data": values[0] if values else ""}
    declared = one["shape"]
    shape = declared if isinstance(declared, list) else [declared]
    if not all(map(_is_size, shape)) or shape.count(-1) > 1:
        raise BadInput(f"inputs[{place}]: shape must be a size or a list of sizes, one of them may be -1")
    filled = _filled(shape, len(values))
    if len(values) != math.prod(filled):
        raise BadInput(f"inputs[{place}]: {len(values)} values do not fill the shape {declared}")
    return {**one, "data": _nested(values, filled)}


def _filled(shape: list[int], count: int) -> list[int]:
    """The shape with -1 replaced by the size that fits ``count`` values."""
    rest = math.prod(size for size in shape if size >= 0)
    return [count // (rest or 1) if size == -1 else size for size in shape]


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= -1


def _flat(data: Any) -> list[Any]:
    """The leaves of nested lists, in order."""
    leaves, waiting = [], [iter([data])]
    while waiting:
        for value in waiting[-1]:
            if isinstance(value, (list, tuple)):
                waiting.append(iter(value))
                break
            leaves.append(value)
        else:
            waiting.pop()
    return leaves


def _nested(values: list[Any], shape: list[int]) -> list[Any]:
    for size in reversed(shape[1:]):
        if size:
            values = [values[start : start + size] for start in range(0, len(values), size)]
    return values


def _output(name: str, answer: Any) -> dict[str, Any]:
    datatype = _DATATYPES.get(str(getattr(answer, "dtype", "")).removeprefix("torch."))
    values = _flat(answer.tolist() if hasattr(answer, "tolist") else answer)
    datatype = datatype or _datatype(values)
    return {"name": name, "datatype": datatype, "data": values, "shape": [len(values)]}


def _datatype(values: list[Any]) -> str:
    """As NumPy would read the list: the widest type of its numbers, BYTES for anything else."""
    kinds = {type(value) for value in values}
    if not kinds or not kinds <= _OF_PYTHON.keys():
        return "FP64" if not kinds else "BYTES"
    return max((_OF_PYTHON[kind] for kind in kinds), key=["BOOL", "INT64", "FP64"].index)
