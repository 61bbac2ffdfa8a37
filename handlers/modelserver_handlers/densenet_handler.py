"""``DenseNetHandler``: the image classifier under the name that old archives give it (reference 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from modelserver_handlers.image_classifier import ImageClassifier
from modelserver_handlers.pictures.classic import classic_processing

if TYPE_CHECKING:
    from collections.abc import Callable


class DenseNetHandler(ImageClassifier):
    """As ImageClassifier, with its options. Other than TorchServe's it takes batches and any label file."""

    pipelined: ClassVar[bool] = True
    picture_mode = "RGB"
    image_processing: Callable[[Any], Any] = classic_processing()
