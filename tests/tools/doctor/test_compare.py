"""Whether answers are the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tools.doctor.conftest import answer

from modelserver.testing.answer import Answer
from modelserver.tools.doctor.compare import difference, shown


@pytest.mark.parametrize(
    ("alone", "other", "told"),
    [
        ([1.0, 100.0], [1.05, 100.0], ""),
        ([1.0, 100.0], [1.2, 100.0], "1.2 instead of 1.0 at [0]"),
        ({"a": 0.6, "b": 0.4}, {"b": 0.4, "a": 0.6}, ""),
        ({"a": [1, "x"]}, {"a": [1, "y"]}, '"y" instead of "x" at a[1]'),
        ({"a": 1}, {"b": 1}, '{"b": 1} instead of {"a": 1}'),
        ([], [1], "[1] instead of []"),
        (True, 1, "1 instead of true"),
        (0, 0, ""),
        ([0] * 2000, [0] * 1999 + [7], ""),
        ([0] * 2000, [0] * 1990 + [7] * 10, "7 instead of 0 at [1990]"),
    ],
)
def test_differences(alone: Any, other: Any, told: str) -> None:
    """Numbers may differ a little, of many a few more; all else must be the same."""
    assert difference(answer(alone), answer(other), 1e-3) == told


def test_other_bodies() -> None:
    """Text and bytes are compared as they are, and a status before them."""
    text, other = Answer(200, {}, b"one"), Answer(200, {}, b"two")

    assert difference(text, text, 0) == ""
    assert difference(text, other, 0) == "two instead of one"
    assert difference(text, Answer(503, {}, b"one"), 0) == "status 503 instead of 200"
    assert shown(Answer(200, {}, b"a " * 100)).endswith("… (200 bytes)")
