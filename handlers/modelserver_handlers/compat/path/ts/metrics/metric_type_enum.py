"""Kinds of metrics."""

from __future__ import annotations

from modelserver_handlers.metrics.values import MetricTypes

__all__ = ["MetricTypes"]
