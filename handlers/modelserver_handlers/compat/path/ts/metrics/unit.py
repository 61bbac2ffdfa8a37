"""Units of metrics."""

from __future__ import annotations

from modelserver_handlers.metrics.values import Units

__all__ = ["Units"]
