"""Whether two documents of JSON agree, for everything that compares answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Path: TypeAlias = "tuple[Path, str | int] | None"
"""The path of what holds it, and its key or index there; None for the whole document."""
Pair: TypeAlias = tuple[Path, Any, Any]

# What is new in each answer of OpenAI's API, in whole ones and in events.
_OWN: Final = re.compile(rb'"id":"(?:chatcmpl|cmpl|score|rerank)-[^"]*"|"created":\d+')
# Characters of a value or a place in a message.
LONGEST: Final = 60


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Numbers may differ by ``relative`` of the larger one, or by ``absolute``."""

    relative: float = 1e-5
    absolute: float = 1e-8

    def admits(self, one: float, other: float) -> bool:
        """Whether they are the same for this purpose; NaN is the same as NaN."""
        if not self.relative and isinstance(one, int) and isinstance(other, int):
            # As floats, large ones that differ would be the same.
            return abs(one - other) <= self.absolute
        try:
            both_nan = math.isnan(one) and math.isnan(other)
            return both_nan or math.isclose(one, other, rel_tol=self.relative, abs_tol=self.absolute)
        except OverflowError:  # whole numbers beyond those of floats
            return one == other


def without_ids(body: bytes) -> bytes:
    """The body without what is new in each answer of OpenAI's API: its id and its time."""
    return _OWN.sub(b'"new":0', body) if b'"created":' in body or b'"id":"rerank-' in body else body


def pairs(one: Any, other: Any, *, ordered: bool = False) -> Iterator[Pair]:
    """The values at the same place of both documents, however deep, and where they differ in form.

    Objects with other keys (``ordered``: or another order of them) and lists of other lengths are one pair.
    """
    waiting: list[Iterator[Pair]] = [iter([(None, one, other)])]
    while waiting:
        pair = next(waiting[-1], None)
        if pair is None:
            waiting.pop()
            continue
        path, a, b = pair
        if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            if not ordered or list(a) == list(b):
                waiting.append(_within(path, a, a, b))
                continue
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            waiting.append(_within(path, range(len(a)), a, b))
            continue
        yield pair


def _within(path: Path, keys: Any, one: Any, other: Any) -> Iterator[Pair]:
    return (((path, key), one[key], other[key]) for key in keys)


def agree(one: Any, other: Any, tolerance: Tolerance) -> bool:
    """Whether the two of a pair do."""
    if is_number(one) and is_number(other):
        return tolerance.admits(one, other)
    return type(one) is type(other) and not isinstance(one, (dict, list)) and bool(one == other)


def is_number(value: object) -> bool:
    """Whether it is a number of JSON."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def place(path: Path) -> str:
    """Such as ``a.b[1]``, or its beginning; empty for the whole document."""
    steps = []
    while path is not None:
        path, key = path
        steps.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    return short("".join(reversed(steps)).lstrip("."))


def excerpt(value: Any) -> str:
    """A value as JSON, or its beginning."""
    try:
        return short(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return "a document that is nested deeply"


def short(text: str) -> str:
    """The text, or its beginning."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
