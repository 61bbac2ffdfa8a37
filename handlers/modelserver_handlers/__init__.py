"""modelserver's built-in handlers, and the base classes for your own.

Importing this package imports neither torch nor Pillow; its modules ``base``, ``vision``,
``image_classifier`` and the like do.
"""

from __future__ import annotations

BUILT_IN: dict[str, str] = {
    "base_handler": "base",
    "densenet_handler": "densenet_handler",
    "image_classifier": "image_classifier",
    "image_segmenter": "image_segmenter",
    "object_detector": "object_detector",
    "tabular": "tabular",
    "text_classifier": "text_classifier",
    "vllm_handler": "language.vllm_handler",
}
"""The built-in handlers' names, which archives may use without a module, and their modules."""
