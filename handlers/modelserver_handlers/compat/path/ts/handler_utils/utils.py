"""Classes by name, and answers in parts."""

from __future__ import annotations

from modelserver_handlers.context import Context  # noqa: F401 - as in TorchServe
from modelserver_handlers.streaming import send_intermediate_predict_response
from modelserver_handlers.utilities import import_class

__all__ = ["import_class", "send_intermediate_predict_response"]
