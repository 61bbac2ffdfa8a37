"""What single rules about predictions take over, and what they do not."""

from __future__ import annotations

import pytest
from tests.tools.migrate.pairs import FAILED, HINT, INSTANCES, NO_ROUTE, a_call, change_of, good, said

from modelserver.tools.migrate.calls import Answer, Call
from modelserver.tools.migrate.requests import png


@pytest.mark.parametrize(
    ("rule", "asked", "theirs", "ours"),
    [
        ("v1-instances", INSTANCES, good({"predictions": [1]}), said(500, HINT)),
        ("v1-instances", INSTANCES, good("whole"), good({"predictions": [1]})),
        ("v2", a_call("/v2/models/m/versions/1/infer"), NO_ROUTE, good(1)),
        ("v2", a_call("/v2/health/live", method="GET"), NO_ROUTE, good(1)),
        ("pictures", a_call("/predictions/m", png().replace(b"\x08\x02", b"\x08\x00", 1)), FAILED, good({})),
    ],
)  # fmt: skip
def test_explained(rule: str, asked: Call, theirs: Answer, ours: Answer) -> None:
    """The body is ours then."""
    assert change_of(rule)(asked, theirs, ours).body == ours.body


@pytest.mark.parametrize(
    ("rule", "asked", "theirs", "ours"),
    [
        ("v1-instances", INSTANCES, good({"predictions": [1]}), good({"predictions": [2]})),
        ("v1-instances", INSTANCES, good({"predictions": [1]}), said(500, "Prediction failed: ValueError")),
        ("pictures", a_call("/predictions/m", png()), FAILED, good({})),
        ("isolation", a_call("/predictions/m"), FAILED, good(1)),
        ("v1-error", INSTANCES, Answer(418, "", {}, b"no JSON"), good(1)),
        ("explanations", a_call("/predictions/m"), FAILED, said(501)),
        ("explanations", a_call("/explanations/m"), good({"target": "cat"}), good({"target": "dog"})),
    ],
)
def test_not_explained(rule: str, asked: Call, theirs: Answer, ours: Answer) -> None:
    """TorchServe's answer stays as it is."""
    assert change_of(rule)(asked, theirs, ours) == theirs
