"""Values of ``handler`` of model-config.yaml that built-in handlers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modelserver_handlers.errors import ModelLoadError


def handler_settings(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The mapping ``handler`` of model-config.yaml, empty if there is none."""
    settings = document.get("handler")
    return settings if isinstance(settings, Mapping) else {}


def whole_number(settings: Mapping[str, Any], key: str, default: int) -> int:
    """A whole number of at least 1. Raises ModelLoadError naming the key."""
    value = settings.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelLoadError(f"handler: {key} must be a whole number of at least 1, got {value!r}")
    return value


def probability(settings: Mapping[str, Any], key: str, default: float) -> float:
    """A number from 0 to 1. Raises ModelLoadError naming the key."""
    value = settings.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ModelLoadError(f"handler: {key} must be a number from 0 to 1, got {value!r}")
    return float(value)
