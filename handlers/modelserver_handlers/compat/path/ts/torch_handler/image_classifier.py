"""The likeliest classes of a picture."""

from __future__ import annotations

from modelserver_handlers.image_classifier import ImageClassifier

__all__ = ["ImageClassifier"]
