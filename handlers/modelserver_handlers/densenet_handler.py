"""``DenseNetHandler``: the image classifier under its old name (reference 13)."""

from __future__ import annotations

from typing import ClassVar

from modelserver_handlers.image_classifier import ImageClassifier


class DenseNetHandler(ImageClassifier):
    """An ImageClassifier, with its options. Unlike TorchServe's, it takes batches and any label file."""

    pipelined: ClassVar[bool] = True
