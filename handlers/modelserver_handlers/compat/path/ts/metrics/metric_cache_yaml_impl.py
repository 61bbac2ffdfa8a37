"""The object at ``context.metrics``, from a metrics.yaml."""

from __future__ import annotations

from modelserver_handlers.metrics.cache import MetricsCacheYamlImpl

__all__ = ["MetricsCacheYamlImpl"]
