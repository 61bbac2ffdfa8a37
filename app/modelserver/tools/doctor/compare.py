"""Whether two answers are the same, within a tolerance for numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from modelserver.ext.rollout.agreement import LONGEST, Tolerance, agree, is_number, pairs, place
from modelserver.ext.rollout.agreement import shown as shown_value

if TYPE_CHECKING:
    from modelserver.testing.answer import Answer

TOLERANCE: Final = 1e-3
"""Of the largest number in the answer."""

# Of an answer with many numbers, this part may differ, such as the class of a pixel between two.
_STRAY: Final = 0.001


def difference(alone: Answer, other: Answer, tolerance: float) -> str:
    """What differs, in words; empty if nothing does."""
    if alone.status != other.status:
        return f"status {other.status} instead of {alone.status}"
    if alone.body == other.body:
        return ""
    try:
        return _difference(json.loads(alone.body), json.loads(other.body), tolerance)
    except (ValueError, RecursionError, OverflowError):
        return f"{shown(other)} instead of {shown(alone)}"


def shown(answer: Answer) -> str:
    """An answer in short."""
    text = " ".join(answer.text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(answer.body)} bytes)"


def _difference(left: Any, right: Any, tolerance: float) -> str:
    both = list(pairs(left, right))
    largest = max((abs(one) for _, one, _ in both if is_number(one)), default=0.0)
    slack = Tolerance(0.0, tolerance * largest)
    found = [each for each in both if not agree(*each[1:], slack)]
    # Another form is no stray number.
    if len(found) <= _STRAY * len(both) and not any(isinstance(one, (dict, list)) for _, one, _ in found):
        return ""
    path, one, other = found[0]
    return f"{shown_value(other)} instead of {shown_value(one)}" + (f" at {place(path)}" if path else "")
