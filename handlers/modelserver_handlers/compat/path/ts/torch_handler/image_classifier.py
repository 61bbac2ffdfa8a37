"""The likeliest classes of a picture."""

from __future__ import annotations

from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.labels import map_class_to_label  # noqa: F401 - as in TorchServe
from modelserver_handlers.timer import timed  # noqa: F401 - as in TorchServe
from modelserver_handlers.vision import VisionHandler  # noqa: F401 - as in TorchServe

__all__ = ["ImageClassifier"]
