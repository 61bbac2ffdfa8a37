"""The classes of a text."""

from __future__ import annotations

from modelserver_handlers.labels import map_class_to_label  # noqa: F401 - as in TorchServe
from modelserver_handlers.text_classifier import TextClassifier
from modelserver_handlers.text_handler import TextHandler  # noqa: F401 - as in TorchServe
from modelserver_handlers.text_utils import ngrams_iterator  # noqa: F401 - as in TorchServe

__all__ = ["TextClassifier"]
