"""Declared metrics."""

from __future__ import annotations

from modelserver_handlers.metrics.caching import (
    CachingMetric,
    MetricAbstract,  # noqa: F401 - as in TorchServe
)
from modelserver_handlers.metrics.values import Dimension, MetricTypes  # noqa: F401 - as in TorchServe

__all__ = ["CachingMetric"]
