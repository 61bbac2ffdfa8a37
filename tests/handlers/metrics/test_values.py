"""The words of a metric."""

from __future__ import annotations

from modelserver_handlers.metrics.values import Units


def test_units() -> None:
    """The long names are TorchServe's."""
    assert (Units().units["ms"], Units.units[""], Units.units[None]) == ("Milliseconds", "unit", "unit")
