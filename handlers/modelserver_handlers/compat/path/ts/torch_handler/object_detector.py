"""Things in a picture, and where they are."""

from __future__ import annotations

from modelserver_handlers.object_detector import ObjectDetector

__all__ = ["ObjectDetector"]
