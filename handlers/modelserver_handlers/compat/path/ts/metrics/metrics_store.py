"""The store of metrics of the old kind."""

from __future__ import annotations

from modelserver_handlers.metrics.metric import MetricsStore

__all__ = ["MetricsStore"]
