"""What every declared metric offers."""

from __future__ import annotations

from modelserver_handlers.metrics.caching import MetricAbstract

__all__ = ["MetricAbstract"]
