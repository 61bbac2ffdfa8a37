"""The image classifier under an old name."""

from __future__ import annotations

from modelserver_handlers.densenet_handler import DenseNetHandler
from modelserver_handlers.networks.modules import list_classes_from_module  # noqa: F401 - as in TorchServe

__all__ = ["DenseNetHandler"]
