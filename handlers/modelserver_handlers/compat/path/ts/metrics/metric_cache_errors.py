"""What the metrics cache raises."""

from __future__ import annotations

from modelserver_handlers.metrics.errors import (
    GeneralMetricsCacheError,
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCachePyYamlError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)

__all__ = [
    "GeneralMetricsCacheError",
    "MetricsCacheIOError",
    "MetricsCacheKeyError",
    "MetricsCachePyYamlError",
    "MetricsCacheTypeError",
    "MetricsCacheValueError",
]
