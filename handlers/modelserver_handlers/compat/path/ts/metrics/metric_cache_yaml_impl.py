"""The object at ``context.metrics``, from a metrics.yaml."""

from __future__ import annotations

from modelserver_handlers.metrics.cache import MetricsCache as MetricCacheAbstract  # noqa: F401 - as in TorchServe
from modelserver_handlers.metrics.cache import MetricsCacheYamlImpl
from modelserver_handlers.metrics.caching import CachingMetric  # noqa: F401 - as in TorchServe
from modelserver_handlers.metrics.values import MetricTypes  # noqa: F401 - as in TorchServe

__all__ = ["MetricsCacheYamlImpl"]
