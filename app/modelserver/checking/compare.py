"""Whether two answers are the same, within a tolerance for numbers."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelserver.testing.answer import Answer

TOLERANCE: Final = 1e-3
"""Of the largest number in the answer."""

# Of an answer with many numbers, this part may differ, such as the class of a pixel between two.
_STRAY: Final = 0.001
_LONGEST: Final = 60

Leaf = tuple[str, Any]


def difference(alone: Answer, other: Answer, tolerance: float) -> str:
    """What differs, in words; empty if nothing does."""
    if alone.status != other.status:
        return f"status {other.status} instead of {alone.status}"
    if alone.body == other.body:
        return ""
    try:
        return _difference(json.loads(alone.body), json.loads(other.body), tolerance)
    except (ValueError, RecursionError):
        return f"{shown(other)} instead of {shown(alone)}"


def shown(answer: Answer) -> str:
    """An answer in short."""
    text = " ".join(answer.text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(answer.body)} bytes)"


def _difference(left: Any, right: Any, tolerance: float) -> str:
    ours, theirs = list(_leaves(left)), list(_leaves(right))
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        return f"{_short(right)} instead of {_short(left)}"
    largest = max((abs(value) for _, value in ours if _is_number(value)), default=0.0)
    strays, first = 0, ""
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        if _is_number(a) and _is_number(b):
            same = a == b or abs(a - b) <= tolerance * largest or (math.isnan(a) and math.isnan(b))
        else:
            same = a == b and type(a) is type(b)
        if not same:
            strays += 1
            first = first or f"{_short(b)} instead of {_short(a)}{f' at {path}' if path else ''}"
    return first if strays > _STRAY * len(ours) else ""


def _leaves(value: Any, path: str = "") -> Iterator[Leaf]:
    """The values in a document with their paths; keys in one order, as that of equal probabilities is not."""
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from _leaves(value[key], f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}[{index}]")
    else:
        yield path, value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
