"""Metric objects as JSON."""

from __future__ import annotations

from modelserver_handlers.metrics.metric import (
    Metric,  # noqa: F401 - as in TorchServe
    MetricEncoder,
)
from modelserver_handlers.metrics.values import Dimension  # noqa: F401 - as in TorchServe

__all__ = ["MetricEncoder"]
