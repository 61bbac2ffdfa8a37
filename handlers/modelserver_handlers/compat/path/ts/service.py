"""What handlers raise, and metrics of the old kind."""

from __future__ import annotations

from modelserver_handlers.context import Context, RequestProcessor  # noqa: F401 - as in TorchServe
from modelserver_handlers.errors import PredictionException
from modelserver_handlers.metrics.metric import emit_metrics
from modelserver_handlers.utilities import get_yaml_config  # noqa: F401 - as in TorchServe

__all__ = ["PredictionException", "emit_metrics"]
