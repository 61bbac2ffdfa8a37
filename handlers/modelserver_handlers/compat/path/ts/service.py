"""What handlers raise, and metrics of the old kind."""

from __future__ import annotations

from modelserver_handlers.errors import PredictionException
from modelserver_handlers.metrics.metric import emit_metrics

__all__ = ["PredictionException", "emit_metrics"]
