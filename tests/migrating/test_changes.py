"""What single rules take over, and what they do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from modelserver.migrating.calls import Answer, Call
from modelserver.migrating.changes import CHANGES, pretty
from modelserver.migrating.requests import png
from modelserver.migrating.rules import OF_THE_RUN, RULES


def call(path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Call:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Call("", "inference", method, path, named, body)


def said(status: int, message: str = "", **more: Any) -> Answer:
    body = {"code": status, "type": "InternalServerException", "message": message, **more}
    return Answer(status, "", {}, pretty(body))


def good(value: object) -> Answer:
    return Answer(200, "OK", {}, json.dumps(value).encode())


FAILED = said(503, "Prediction failed")
INSTANCES = call("/v1/models/m:predict", b'{"instances": [1]}')
HINT = "Prediction failed: TypeError. Hint: a handler that reads the body itself needs split_instances=false"
NO_ROUTE = said(404, "Requested resource is not found, please refer to API document.")


def test_each_rule_has_its_change() -> None:
    """And the other way round."""
    assert [rule.name for rule in (*RULES, *OF_THE_RUN)] == list(CHANGES)


@pytest.mark.parametrize(
    ("rule", "asked", "theirs", "ours"),
    [
        ("exposed", call("/predictions/m"), FAILED, said(503, "Prediction failed: KeyError", request_id="1")),
        ("exposed", INSTANCES, said(500, "Prediction failed", error="Prediction failed"),
         said(500, "Prediction failed: K", error="Prediction failed: K", request_id="1")),
        ("rounding", call("/predictions/m"), good({"a": [0.123456]}), good({"a": [0.123457]})),
        ("v1-instances", INSTANCES, good({"predictions": [1]}), said(500, HINT)),
        ("v1-instances", INSTANCES, good("whole"), good({"predictions": [1]})),
        ("v2", call("/v2/models/m/versions/1/infer"), NO_ROUTE, good(1)),
        ("v2", call("/v2/health/live", method="GET"), NO_ROUTE, good(1)),
        ("pictures", call("/predictions/m", png().replace(b"\x08\x02", b"\x08\x00", 1)), FAILED, good({})),
    ],
)  # fmt: skip
def test_explained(rule: str, asked: Call, theirs: Answer, ours: Answer) -> None:
    """The body is ours then."""
    assert CHANGES[rule](asked, theirs, ours).body == ours.body


@pytest.mark.parametrize(
    ("rule", "asked", "theirs", "ours"),
    [
        ("exposed", call("/predictions/m"), FAILED, said(500, "Prediction failed: KeyError")),
        ("rounding", call("/predictions/m"), good({"a": [0.12]}), good({"a": [0.13]})),
        ("rounding", call("/predictions/m"), good([1]), good([1.0])),
        ("v1-instances", INSTANCES, good({"predictions": [1]}), good({"predictions": [2]})),
        ("v1-instances", INSTANCES, good({"predictions": [1]}), said(500, "Prediction failed: ValueError")),
        ("pictures", call("/predictions/m", png()), FAILED, good({})),
        ("isolation", call("/predictions/m"), FAILED, good(1)),
        ("v1-error", INSTANCES, Answer(418, "", {}, b"no JSON"), good(1)),
        ("explanations", call("/predictions/m"), FAILED, said(501)),
        ("explanations", call("/explanations/m"), good({"target": "cat"}), good({"target": "dog"})),
        ("timeouts", call("/predictions/m"), good({"responseTimeout": 1}), good({"responseTimeout": 2})),
        ("numbers", call("/predictions/m"), good([{"batchSize": 0}]), good([{"batchSize": 1}])),
    ],
)
def test_not_explained(rule: str, asked: Call, theirs: Answer, ours: Answer) -> None:
    """TorchServe's answer stays as it is."""
    assert CHANGES[rule](asked, theirs, ours) == theirs
