"""Things in a picture, and where they are."""

from __future__ import annotations

from modelserver_handlers.labels import map_class_to_label  # noqa: F401 - as in TorchServe
from modelserver_handlers.object_detector import ObjectDetector
from modelserver_handlers.vision import VisionHandler  # noqa: F401 - as in TorchServe

__all__ = ["ObjectDetector"]
