"""``kservev2``: the Open Inference Protocol's tensors as JSON (reference 14.6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from modelserver_handlers.envelopes.base import BaseEnvelope, Malformed, content, listed

_DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
_OF_PYTHON = {bool: "BOOL", int: "INT64", float: "FP64"}


class KserveV2Envelope(BaseEnvelope):
    """One value per input tensor: the input with its ``data`` in its ``shape``; of BYTES the first element.

    The handler's answer to each becomes an output of that input's name.
    """

    def unfold(self, request: Any) -> list[Any]:
        """The inputs. Raises Malformed, naming the input, for data that does not fill the shape."""
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
                _output(one["name"], answer) for one, answer in zip(carried["inputs"], answers, strict=True)
            ],
        }


def _shaped(one: Any, place: int) -> dict[str, Any]:
    fields = ("name", "shape", "datatype", "data")
    if not isinstance(one, Mapping) or not all(field in one for field in fields):
        raise Malformed(f"inputs[{place}] needs {', '.join(fields)}")
    data, shape = one["data"], one["shape"]
    if not isinstance(data, list) or not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise Malformed(f"inputs[{place}]: data and shape must be lists, shape one of sizes")
    values = _flat(data)
    if len(values) != math.prod(shape):
        raise Malformed(f"inputs[{place}]: {len(values)} values do not fill the shape {shape}")
    if one["datatype"] == "BYTES":
        return {**one, "data": values[0] if values else ""}
    return {**one, "data": _nested(values, shape)}


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0


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
