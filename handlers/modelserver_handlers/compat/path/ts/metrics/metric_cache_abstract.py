"""The object at ``context.metrics``."""

from __future__ import annotations

from modelserver_handlers.metrics.cache import MetricsCache as MetricCacheAbstract

__all__ = ["MetricCacheAbstract"]
