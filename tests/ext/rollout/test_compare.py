import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from modelserver.engine.tensors.datatypes import pack
from modelserver.engine.tensors.rows import OutputForm, pack_answer
from modelserver.ext.rollout.compare import Pair, difference


def difference_in_json(primary, shadow, mode="numeric", tolerance=0.01):
    return difference(Pair(json.dumps(primary).encode(), json.dumps(shadow).encode()), mode, tolerance)


def tensor(*numbers, datatype="FP32", name="y"):
    form = OutputForm(name, datatype, (len(numbers),))
    return pack_answer([(form, pack(datatype, numbers))])


@pytest.mark.parametrize(
    ("primary", "shadow", "expected"),
    [
        (1, 1.005, ""),
        (1, 1.5, "1 and 1.5 at the top"),
        ([0.1, {"a": 2}], [0.1001, {"a": 2.001}], ""),
        ([1, {"a": [5, 2]}], [1, {"a": [5, 3]}], "2 and 3 at [1].a[1]"),
        ([1], [1, 2], "1 and 2 elements at the top"),
        ({"a": 1}, {"b": 1}, "other keys at the top"),
        ({"a": {"b": 1}}, {"a": {}}, "other keys at a"),
        ("cat", "dog", '"cat" and "dog" at the top'),
        (True, 1, "true and 1 at the top"),
        (None, 0, "null and 0 at the top"),
        (["x" * 100], [{"a": 1}], f'"{"x" * 58}… and {{"a": 1}} at [0]'),
    ],
)
def test_numbers_may_differ_a_little(primary, shadow, expected):
    """Everything else must be the same; the reason names the first place."""
    assert difference_in_json(primary, shadow) == expected


@pytest.mark.parametrize(
    ("primary", "shadow", "expected"),
    [
        ({"cat": 0.9, "dog": 0.1}, {"cat": 0.6, "dog": 0.4}, ""),
        ({"cat": 0.9, "dog": 0.1}, {"dog": 0.6, "fox": 0.4}, 'the most probable is "cat" and "dog"'),
        ([0.1, 0.9], [0.4, 0.6], ""),
        ([[0.1, 0.9], [0.5, 0.4]], [[0.4, 0.6], [0.4, 0.5]], "the most probable is [1, 0] and [1, 1]"),
        ("cat", "cat", ""),
        (3, 4, "the most probable is 3 and 4"),
    ],
)
def test_only_the_most_probable_class_counts(primary, shadow, expected):
    assert difference_in_json(primary, shadow, "top1") == expected


@pytest.mark.parametrize("mode", ["numeric", "top1"])
@pytest.mark.parametrize(
    ("primary", "shadow", "expected"),
    [
        (b"\xff\xd8", b"\xff\xd9", "bodies differ, and are no JSON that can be read"),
        (b"[" * 5000 + b"]" * 5000, b"[]", "bodies differ, and are no JSON that can be read"),
        (b"cat", b"cat", ""),
    ],
)
def test_other_bodies_agree_byte_by_byte(primary, shadow, expected, mode):
    assert difference(Pair(primary, shadow), mode, 0.1) == expected


def test_exact_mode_compares_bytes():
    assert difference_in_json([1], [1], "exact") == ""
    assert difference_in_json([1], [1.0], "exact") == "bodies of 3 and 5 bytes differ"


@pytest.mark.parametrize(
    ("primary", "shadow", "mode", "expected"),
    [
        (tensor(1, 2), tensor(1, 2.001), "numeric", ""),
        (tensor(1, 2), tensor(1, 3), "numeric", "2.0 and 3.0 at y[1]"),
        (tensor(1, float("nan")), tensor(1.001, float("nan")), "numeric", ""),
        (tensor(1), tensor(1, 2), "numeric", "y FP32[1] and y FP32[2]"),
        (tensor(1), tensor(1, datatype="FP64"), "top1", "y FP32[1] and y FP64[1]"),
        (tensor(1, 2), tensor(3, 4), "top1", ""),
        (tensor(1, 2), tensor(4, 3), "top1", "the most probable is [1] and [0]"),
        (tensor(1, 2), b"", "numeric", "tensors that cannot be read: "),
    ],
)
def test_tensors_are_compared_like_json(primary, shadow, mode, expected):
    result = difference(Pair(primary, shadow, tensors=True), mode, 0.01)
    assert result.startswith(expected)
    assert bool(result) == bool(expected)


def test_versions_of_the_example_agree_on_the_class():
    """They agree on the class, and on no number, as docs/rollouts.md says."""
    path = Path(__file__).parents[3] / "examples" / "rollouts" / "moods.py"
    moods = runpy.run_path(str(path))["Moods"]
    answers = []
    for version in ("1.0", "2.0"):
        handler = moods()
        handler.initialize(SimpleNamespace(manifest={"model": {"modelVersion": version}}))
        answers += handler.handle([{"body": b"a great day"}], None)

    assert difference_in_json(*answers, "top1") == ""
    assert difference_in_json(*answers, "numeric") != ""
