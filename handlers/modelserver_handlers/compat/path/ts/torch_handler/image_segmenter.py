"""The class of each pixel."""

from __future__ import annotations

from modelserver_handlers.image_segmenter import ImageSegmenter

__all__ = ["ImageSegmenter"]
