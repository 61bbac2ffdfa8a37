"""The base of handlers of pictures."""

from __future__ import annotations

from modelserver_handlers.vision import VisionHandler

__all__ = ["VisionHandler"]
