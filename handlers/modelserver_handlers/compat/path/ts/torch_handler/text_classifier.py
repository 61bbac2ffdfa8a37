"""The classes of a text."""

from __future__ import annotations

from modelserver_handlers.text_classifier import TextClassifier

__all__ = ["TextClassifier"]
