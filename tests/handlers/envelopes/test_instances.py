"""The envelopes ``body``, ``json`` and ``kserve``: what each takes and gives (reference 14.6)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from tests.handlers.envelopes.conftest import put

from modelserver_handlers.envelopes import BodyEnvelope, Instance, JSONEnvelope, KserveEnvelope


@pytest.mark.parametrize(
    ("request_", "value"),
    [
        ({"body": {"instances": [1]}}, {"instances": [1]}),
        ({"data": "d", "body": "b"}, "d"),
        ({"data": "", "body": "b"}, "b"),
        ({"other": 1}, None),
        (Instance({"body": 1}), {"body": 1}),
    ],
)
def test_body_hands_over_data_or_body(request_: Any, value: Any) -> None:
    """``body`` hands the handler what is under data or body."""
    assert put(BodyEnvelope, [request_])[0] == [value]


def test_json_joins_instances() -> None:
    """``json`` joins the instances of all requests, decodes base64, and answers each request a text."""
    seen: list[Any] = []

    def handler(values: list[Any], _context: Any) -> list[Any]:
        seen.append(values)
        return list(range(len(values)))

    rows = [
        {"body": {"instances": [1, {"b64": "aGk="}]}},
        {"data": b'{"instances": [{"x": {"b64": "aGk="}, "y": 2}]}'},
        {"instances": []},
    ]

    answers, _ = put(JSONEnvelope, rows, handler)

    assert seen == [[1, b"hi", {"x": b"hi", "y": 2}]]
    assert answers == ['{"predictions": [0, 1]}', '{"predictions": [2]}', '{"predictions": []}']


def test_json_makes_lists_of_tensors() -> None:
    """Tensors and arrays become lists."""
    rows = [{"body": {"instances": [1, 2]}}]
    (answer,), _ = put(JSONEnvelope, rows, lambda *_: [torch.ones(2), np.float32(0.5)])

    assert json.loads(answer) == {"predictions": [[1.0, 1.0], 0.5]}


@pytest.mark.parametrize(("explain", "key"), [("False", "predictions"), ("True", "explanations")])
def test_kserve_answers_every_request(explain: str, key: str) -> None:
    """``kserve`` answers every request of a batch, in KServe's form (TorchServe answers the first only)."""
    rows = [{"body": {"instances": [1, {"b64": "aGk="}]}}, {"body": b'{"instances": [3]}'}]

    answers, _ = put(KserveEnvelope, rows, explain=explain)

    assert answers == [{key: [1, {"b64": "aGk="}]}, {key: [3]}]
