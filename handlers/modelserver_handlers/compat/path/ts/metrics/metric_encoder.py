"""Metric objects as JSON."""

from __future__ import annotations

from modelserver_handlers.metrics.metric import MetricEncoder

__all__ = ["MetricEncoder"]
