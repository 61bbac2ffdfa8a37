"""ImageNet's way of preparing pictures, and what ``handler`` of model-config.yaml may change about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelserver_handlers.classic import ClassicProcessing
from modelserver_handlers.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Mapping

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def classic_processing(resize: int = 256, crop: int = 224) -> ClassicProcessing:
    """ImageNet's: shorter side to ``resize`` pixels, the middle ``crop`` x ``crop``, normalised."""
    return ClassicProcessing(resize, crop, MEAN, STD)


def configured_processing(settings: Mapping[str, Any]) -> ClassicProcessing | None:
    """As ``resize`` and ``crop`` say, None if neither does. Raises ModelLoadError for what is no size."""
    if "resize" not in settings and "crop" not in settings:
        return None
    return classic_processing(_pixels(settings, "resize", 256), _pixels(settings, "crop", 224))


def _pixels(settings: Mapping[str, Any], key: str, default: int) -> int:
    value = settings.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelLoadError(f"handler: {key} must be a number of pixels, got {value!r}")
    return value
