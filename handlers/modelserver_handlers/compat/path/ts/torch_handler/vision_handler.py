"""The base of handlers of pictures."""

from __future__ import annotations

from modelserver_handlers.base import BaseHandler  # noqa: F401 - as in TorchServe
from modelserver_handlers.timer import timed  # noqa: F401 - as in TorchServe
from modelserver_handlers.vision import VisionHandler

__all__ = ["VisionHandler"]
