"""Labels, classes and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelserver_handlers.errors import PredictionException
from modelserver_handlers.labels import load_label_mapping, map_class_to_label
from modelserver_handlers.networks.modules import list_classes_from_module
from modelserver_handlers.utilities import CLEANUP_REGEX, deprecated, get_yaml_config

if TYPE_CHECKING:
    from modelserver_handlers.networks.compilation import PT2Backend, check_valid_pt2_backend

__all__ = [
    "CLEANUP_REGEX",
    "PT2Backend",
    "PredictionException",
    "check_valid_pt2_backend",
    "deprecated",
    "get_yaml_config",
    "list_classes_from_module",
    "load_label_mapping",
    "map_class_to_label",
]


def __getattr__(name: str) -> Any:
    """What needs torch, imported when it is asked for."""
    if name in {"PT2Backend", "check_valid_pt2_backend"}:
        from modelserver_handlers.networks import compilation  # noqa: PLC0415 - see above

        return getattr(compilation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
