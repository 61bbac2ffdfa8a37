"""Metric objects of the old kind."""

from __future__ import annotations

from modelserver_handlers.metrics.caching import CachingMetric  # noqa: F401 - as in TorchServe
from modelserver_handlers.metrics.metric import Metric
from modelserver_handlers.metrics.values import MetricTypes, Units  # noqa: F401 - as in TorchServe

__all__ = ["Metric"]

MetricUnit = Units()
