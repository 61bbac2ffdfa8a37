"""A context for tests of handlers."""

from __future__ import annotations

from modelserver_handlers.compat.mock_context import MockContext
from modelserver_handlers.metrics.metric import MetricsStore  # noqa: F401 - as in TorchServe
from modelserver_handlers.utilities import get_yaml_config  # noqa: F401 - as in TorchServe

__all__ = ["MockContext"]
