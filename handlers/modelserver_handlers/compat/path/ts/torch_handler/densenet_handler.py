"""The image classifier under an old name."""

from __future__ import annotations

from modelserver_handlers.densenet_handler import DenseNetHandler

__all__ = ["DenseNetHandler"]
