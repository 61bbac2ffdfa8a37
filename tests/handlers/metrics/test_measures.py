"""The methods with which handlers report values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelserver_handlers.metrics.cache import MetricsCache
from modelserver_handlers.metrics.metric import MetricsStore
from modelserver_handlers.metrics.values import Units

if TYPE_CHECKING:
    from modelserver_handlers.metrics.measures import Measures


@pytest.mark.parametrize("measures", [MetricsCache("m"), MetricsStore({}, "m")], ids=["cache", "store"])
def test_unknown_units_are_refused(measures: Measures) -> None:
    """A time or a size in another unit is a ValueError with exactly TorchServe's text."""
    with pytest.raises(ValueError, match=r"^the unit for a timed metric should be one of \['ms', 's'\]$"):
        measures.add_time("t", 1, unit="h")
    with pytest.raises(
        ValueError, match=r"^The unit for size based metric is one of \['MB','kB', 'GB', 'B'\]$"
    ):
        measures.add_size("s", 1, unit="h")


def test_units_have_torchserves_long_names() -> None:
    """The long names are TorchServe's."""
    assert (Units().units["ms"], Units.units[""], Units.units[None]) == ("Milliseconds", "unit", "unit")
