import math

import pytest

from modelserver.ext.rollout.agreement import LONGEST, Tolerance, agree, excerpt, pairs, place, without_ids


def nested(depth, value):
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1, 2, [("", 1, 2)]),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, [("a[0]", 1, 1), ("a[1].b", 2, 3)]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, [("a", 1, 1), ("b", 2, 2)]),
        ({"x": {"a": 1}}, {"x": {"b": 1}}, [("x", {"a": 1}, {"b": 1})]),
        ([[1]], [[1, 2]], [("[0]", [1], [1, 2])]),
        ([[]], [{}], [("[0]", [], {})]),
        ([{}, []], [{}, []], []),
    ],
)
def test_values_are_paired_by_place(one, other, expected):
    assert [(place(path), *values) for path, *values in pairs(one, other)] == expected


def test_documents_are_compared_in_any_order_and_depth():
    one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}

    assert list(pairs(one, other, ordered=True)) == [(None, one, other)]
    assert len(list(pairs(one, dict(one), ordered=True))) == 2

    one, other = nested(50_000, 1), nested(50_000, 2)

    ((path, left, right),) = pairs(one, other)

    assert (left, right) == (1, 2)
    assert place(path).startswith("[0].a[0].a")
    assert len(place(path)) == LONGEST
    assert len(excerpt(one)) <= LONGEST

    assert not agree(2**60, 2**60 + 1, Tolerance(0.0, 0.5))
    assert agree(2**60, 2**60 + 1, Tolerance(0.0, 1))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1.0, 1.0 + 1e-6, True),
        (1.0, 1.1, False),
        (1, 1.0, True),
        (True, 1, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (10**400, 10**400, True),
        (10**400, 1.0, False),
        (10**400, math.nan, False),
        ("a", "a", True),
        (None, 0, False),
        ([], [], False),
    ],
)
def test_values_agree_within_the_tolerance(one, other, same):
    assert agree(one, other, Tolerance()) is same


def test_ids_and_times_of_openai_are_left_out():
    events = b'data: {"id":"chatcmpl-%b","created":%d,"text":"a"}\n\n'

    assert without_ids(events % (b"1-2", 5)) == without_ids(events % (b"3", 60))
    assert without_ids(events % (b"1", 5)) != without_ids((events % (b"1", 5)).replace(b'"a"', b'"b"'))
    assert without_ids(b'{"id":"cmpl-1"}') == b'{"id":"cmpl-1"}'
