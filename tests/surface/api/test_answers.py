from __future__ import annotations

import gc
import json

import pytest

from modelserver.surface.http.answers import pretty


@pytest.mark.parametrize(
    "value",
    [
        {"models": [{"name": 'ä\x7f\u2028"\\\x1f', "empty": [], "none": {}, "n": [1, -0.5, True, 1e-3]}]},
        [[1, [2, {}]], "text"],
        [],
        {"large": 1 << 70, "broken": "\ud800"},
    ],
)
def test_form(value: object) -> None:
    """Answers are indented as the standard library does it; text that has no UTF-8 is replaced."""
    expected = json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    assert pretty(value) == expected


def test_answer_leaves_no_reference_cycle() -> None:
    """An answer leaves nothing behind for the collector, which comes by rarely."""
    gc.collect()
    gc.disable()
    try:
        pretty({"code": 404, "message": "Model not found"})
        assert gc.collect() == 0
    finally:
        gc.enable()
