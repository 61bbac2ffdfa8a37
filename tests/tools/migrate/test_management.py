"""What single rules about the management API take over, and what they do not."""

from __future__ import annotations

import pytest
from tests.tools.migrate.pairs import a_call, change_of, good

from modelserver.tools.migrate.calls import Answer, Call

DESCRIBE = Call("", "management", "GET", "/models/m")


@pytest.mark.parametrize(
    ("rule", "asked", "theirs", "ours"),
    [
        ("numbers", DESCRIBE, good([{"batchSize": 0}]), good([{"batchSize": 1}])),
        ("timeouts", DESCRIBE, good([{"responseTimeout": 1}]), good([{"responseTimeout": 2}])),
        ("parallel-type", DESCRIBE, good([{"parallelType": ""}]), good([{"parallelType": "tp"}])),
    ],
)
def test_explained(rule: str, asked: Call, theirs: Answer, ours: Answer) -> None:
    """The body is ours then."""
    assert change_of(rule)(asked, theirs, ours).body == ours.body


@pytest.mark.parametrize(
    ("rule", "asked", "theirs", "ours"),
    [
        ("timeouts", a_call("/predictions/m"), good({"responseTimeout": 1}), good({"responseTimeout": 2})),
        ("numbers", a_call("/predictions/m"), good([{"batchSize": 0}]), good([{"batchSize": 1}])),
        ("numbers", DESCRIBE, good([{"batchSize": 4}]), good([{"batchSize": 1}])),
    ],
)
def test_not_explained(rule: str, asked: Call, theirs: Answer, ours: Answer) -> None:
    """TorchServe's answer stays as it is."""
    assert change_of(rule)(asked, theirs, ours) == theirs
