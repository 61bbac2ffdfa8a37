"""The class of each pixel."""

from __future__ import annotations

from modelserver_handlers.image_segmenter import ImageSegmenter
from modelserver_handlers.vision import VisionHandler  # noqa: F401 - as in TorchServe

__all__ = ["ImageSegmenter"]
