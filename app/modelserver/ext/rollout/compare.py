"""Whether two answers to the same row agree, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from modelserver.engine.tensors.rows import join_answers
from modelserver.engine.tensors.tensor import OutputTensor
from modelserver.ext.rollout.agreement import Tolerance, agree, excerpt, is_number, pairs, place, without_ids
from modelserver.ext.rollout.plan import Mode

_decode = msgspec.json.Decoder().decode


class Pair(msgspec.Struct, array_like=True):
    """The bodies of both answers to a row; ``tensors``: they are packed tensors, else usually JSON."""

    primary: bytes
    shadow: bytes
    tensors: bool = False


def compare_all(pairs: list[Pair], mode: Mode, tolerance: float) -> list[str]:
    """For each pair why the answers differ, or an empty string; in a helper, as reading them takes long."""
    return [difference(pair, mode, tolerance) for pair in pairs]


def difference(pair: Pair, mode: Mode, tolerance: float) -> str:
    """Why the answers differ; an empty string if they agree."""
    if pair.primary == pair.shadow:
        return ""
    if not pair.tensors:
        pair = Pair(without_ids(pair.primary), without_ids(pair.shadow))
        if pair.primary == pair.shadow:
            return ""
    if mode == "exact":
        return f"bodies of {len(pair.primary)} and {len(pair.shadow)} bytes differ"
    if pair.tensors:
        return _between_tensors(pair, mode, tolerance)
    try:
        primary, shadow = _decode(pair.primary), _decode(pair.shadow)
        return _top(primary, shadow) if mode == "top1" else _values(primary, shadow, tolerance)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "bodies differ, and are no JSON that can be read"


def _values(primary: Any, shadow: Any, tolerance: float, name: str = "") -> str:
    """Describes the :func:`difference` of values of JSON, or of the numbers of the tensor of this name."""
    slack = Tolerance(tolerance, tolerance)
    for path, one, other in pairs(primary, shadow):
        if not agree(one, other, slack):
            where = f"{name}{place(path)}" or "the top"
            if isinstance(one, dict) and isinstance(other, dict):
                return f"other keys at {where}"
            if isinstance(one, list) and isinstance(other, list):
                return f"{len(one)} and {len(other)} elements at {where}"
            return f"{excerpt(one)} and {excerpt(other)} at {where}"
    return ""


def _top(primary: Any, shadow: Any) -> str:
    """Describes the :func:`difference` of the most probable class of an answer or of each element."""
    one, other = _best(primary), _best(shadow)
    if one == other:
        return ""
    return f"the most probable is {excerpt(one)} and {excerpt(other)}"


def _best(value: Any) -> Any:
    """The key or place of the greatest number; of other lists that of each element."""
    if isinstance(value, dict) and value and all(map(is_number, value.values())):
        return max(value, key=value.__getitem__)
    if isinstance(value, list) and len(value) > 1 and all(map(is_number, value)):
        return max(range(len(value)), key=value.__getitem__)
    if isinstance(value, list):
        return [_best(each) for each in value]
    return value


def _between_tensors(pair: Pair, mode: Mode, tolerance: float) -> str:
    try:
        primary, shadow = (join_answers([each], whole=True) for each in (pair.primary, pair.shadow))
    except ValueError as error:
        return f"tensors that cannot be read: {error}"
    shapes = [[(each.name, each.datatype, each.shape) for each in outputs] for outputs in (primary, shadow)]
    if shapes[0] != shapes[1]:
        return f"{_outputs(primary)} and {_outputs(shadow)}"
    both = zip(primary, shadow, strict=True)
    return next(filter(None, (_between(one, other, mode, tolerance) for one, other in both)), "")


def _between(one: OutputTensor, other: OutputTensor, mode: Mode, tolerance: float) -> str:
    if one.data == other.data:
        return ""
    if one.datatype == "BYTES":
        return f"other elements of {one.name}"
    numbers, others = one.values(), other.values()
    width = one.shape[-1] if one.shape else 1
    if mode == "top1" and width > 1:
        return _top(_lines(numbers, width), _lines(others, width))
    return _values(numbers, others, 0.0 if mode == "top1" else tolerance, one.name)


def _lines(numbers: Sequence[Any], width: int) -> list[Any]:
    return [list(numbers[begin : begin + width]) for begin in range(0, len(numbers), width)]


def _outputs(outputs: Sequence[OutputTensor]) -> str:
    return ", ".join(f"{each.name} {each.datatype}{list(each.shape)}" for each in outputs) or "no output"
