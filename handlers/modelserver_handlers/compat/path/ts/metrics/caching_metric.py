"""Declared metrics."""

from __future__ import annotations

from modelserver_handlers.metrics.caching import CachingMetric

__all__ = ["CachingMetric"]
