"""KServe's V2 envelope."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.handlers.envelopes.conftest import put

from modelserver_handlers.envelopes import (
    KserveV2Envelope,
)


def test_every_request_is_answered_in_the_protocol() -> None:
    """``kservev2`` shapes the inputs of every request, and answers each in the Open Inference Protocol."""
    first = {
        "id": "abc",
        "inputs": [
            {"name": "a", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]},
            {"name": "b", "shape": [1], "datatype": "BYTES", "data": ["hello"]},
        ],
    }
    second = {
        "inputs": [{"name": "c", "shape": [2, 1, 2], "datatype": "INT64", "data": [[[1, 2]], [[3, 4]]]}]
    }

    answers, _ = put(
        KserveV2Envelope,
        [{"body": first}, {"body": json.dumps(second).encode()}],
        lambda values, _: [value["data"] for value in values],
    )

    whole = {"model_name": "m", "model_version": "2.0"}
    assert answers == [
        {
            "id": "abc",
            **whole,
            "outputs": [
                {"name": "a", "datatype": "INT64", "data": [1, 2, 3, 4], "shape": [4]},
                {"name": "b", "datatype": "BYTES", "data": ["hello"], "shape": [1]},
            ],
        },
        {
            "id": "id-1",
            **whole,
            "outputs": [{"name": "c", "datatype": "INT64", "data": [1, 2, 3, 4], "shape": [4]}],
        },
    ]


@pytest.mark.parametrize(
    ("answer", "datatype", "data"),
    [
        (np.ones((1, 2), np.float32), "FP32", [1.0, 1.0]),
        (torch.tensor([[1], [2]], dtype=torch.uint8), "UINT8", [1, 2]),
        (np.array([True]), "BOOL", [True]),
        (np.float64(2.5), "FP64", [2.5]),
        ([1, 2.5], "FP64", [1, 2.5]),
        ([True, 2], "INT64", [True, 2]),
        ({"label": 0.5}, "BYTES", [{"label": 0.5}]),
        ("text", "BYTES", ["text"]),
        ([], "FP64", []),
    ],
)
def test_outputs_have_the_widest_datatype(answer: Any, datatype: str, data: list[Any]) -> None:
    """NumPy's and torch's types have their names there; of lists, the widest; all else is BYTES."""
    rows = [{"body": {"inputs": [{"name": "i", "shape": [0], "datatype": "FP32", "data": []}]}}]
    (result,), _ = put(KserveV2Envelope, rows, lambda *_: [answer])

    assert result["outputs"] == [{"name": "i", "datatype": datatype, "data": data, "shape": [len(data)]}]


@pytest.mark.parametrize(
    ("shape", "datatype", "data", "seen"),
    [
        (-1, "BYTES", "this year business is good", "this year business is good"),
        ([-1], "BYTES", ["picture"], "picture"),
        (3, "INT64", [1, 2, 3], [1, 2, 3]),
        ([2, -1], "FP32", [1, 2, 3, 4], [[1, 2], [3, 4]]),
        (-1, "FP32", [], []),
        ([1], "INT64", 7, [7]),
    ],
)
def test_shapes_of_torchserves_samples_are_read(shape: Any, datatype: str, data: Any, seen: Any) -> None:
    """A shape may be a number, a size -1, and the data of BYTES one text."""
    one = {"name": "i", "shape": shape, "datatype": datatype, "data": data}
    (value,) = KserveV2Envelope(lambda values, _: values).parse_input([{"body": {"inputs": [one]}}])

    assert value["data"] == seen


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_flat_data_is_reshaped(shape: list[int]) -> None:
    """Flat data of any shape becomes what NumPy's reshape makes of it, and nested data stays as it is."""
    flat = list(range(int(np.prod(shape))))
    nested = np.reshape(flat, shape).tolist()

    for data in (flat, nested):
        one = {"name": "i", "shape": shape, "datatype": "INT64", "data": data}
        (value,) = KserveV2Envelope(lambda values, _: values).parse_input([{"body": {"inputs": [one]}}])
        assert value == {**one, "data": nested}
