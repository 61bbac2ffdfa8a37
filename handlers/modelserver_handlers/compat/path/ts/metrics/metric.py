"""Metric objects of the old kind."""

from __future__ import annotations

from modelserver_handlers.metrics.metric import Metric

__all__ = ["Metric"]
