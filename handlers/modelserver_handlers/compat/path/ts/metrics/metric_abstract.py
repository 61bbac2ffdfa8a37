"""What every declared metric offers."""

from __future__ import annotations

from modelserver_handlers.metrics.caching import MetricAbstract
from modelserver_handlers.metrics.values import MetricTypes, Units  # noqa: F401 - as in TorchServe

__all__ = ["MetricAbstract"]

MetricUnit = Units()
