"""Metrics that are declared once and then updated."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from modelserver_handlers.metrics.caching import CachingMetric
from modelserver_handlers.metrics.emission import Emission
from modelserver_handlers.metrics.values import Dimension, MetricTypes

if TYPE_CHECKING:
    from modelserver_handlers.metrics.cache import MetricsCache

GAUGE = MetricTypes.GAUGE


def test_declared_metrics_have_only_their_own_dimensions(cache: MetricsCache, seen: list[Emission]) -> None:
    """Nothing is reported when a metric is declared; a value has the declared names, and no others."""
    metric = cache.add_metric_to_cache("size", "MB", ["shape"], GAUGE)
    assert (metric.unit, metric.dimension_names, seen) == ("Megabytes", ["shape"], [])

    metric.add_or_update(3, ["square"], "id-0")
    assert seen == [Emission("size", 3, "MB", "gauge", (("shape", "square"),), "id-0")]


@pytest.mark.parametrize(
    ("value", "values", "message"),
    [
        (1, ["x"], r"Dimension values: \['x'\] should correspond to Dimension names: \['a', 'b'\]"),
        (1, None, "Dimension values: None should correspond"),
        (-1, ["x", "y"], "Counter metric update value cannot be negative"),
    ],
)
def test_wrong_values_are_logged(
    seen: list[Emission], caplog: pytest.LogCaptureFixture, value: int, values: Any, message: str
) -> None:
    """A value that cannot be reported fails no request: it is an error in the log."""
    CachingMetric("n", "count", ["a", "b"]).add_or_update(value, values)

    assert seen == []
    assert caplog.records[0].levelno == logging.ERROR
    assert caplog.records[0].getMessage().startswith("[METRICS]Failed to update metric with name:n")
    assert re.search(message, caplog.text)


def test_update_replaces_the_declared_names(seen: list[Emission], caplog: pytest.LogCaptureFixture) -> None:
    """The way of old: Dimension objects override the names, with a warning."""
    metric = CachingMetric("n", "ms", ["a"], GAUGE)
    metric.update(4, "id", [Dimension("q", "r")])

    assert seen == [Emission("n", 4, "ms", "gauge", (("q", "r"),), "id")]
    assert "Overriding existing dimensions" in caplog.text


def test_negative_counters_are_not_reported(
    cache: MetricsCache, seen: list[Emission], caplog: pytest.LogCaptureFixture
) -> None:
    """A counter never goes down: the attempt is logged."""
    cache.add_counter("n", -1)
    cache.add_counter("n", 0)

    assert [emission.value for emission in seen] == [0]
    assert "below 0" in caplog.text
