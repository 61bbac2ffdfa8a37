"""A finished tuning, for the tests of what is written of it."""

from __future__ import annotations

import pytest
from tests.tuning.tune_samples import FakeBench, Notes

from modelserver.tuning.goal import parse_goal
from modelserver.tuning.sweep import Bounds
from modelserver.tuning.tuner import Result, Tuner


@pytest.fixture
def result() -> Result:
    """Of a handler of 20 + 2n ms under a limit of 70 ms."""
    return Tuner(FakeBench(), parse_goal("p99<=70ms"), Bounds(), 300.0, Notes()).run()
