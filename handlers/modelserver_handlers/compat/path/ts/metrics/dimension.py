"""Labels of metrics."""

from __future__ import annotations

from modelserver_handlers.metrics.values import Dimension

__all__ = ["Dimension"]
