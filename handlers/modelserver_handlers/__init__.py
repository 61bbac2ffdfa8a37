"""The handlers that come with modelserver, and what a handler of your own builds on.

Importing this package imports neither torch nor Pillow; its modules ``base``, ``vision``,
``image_classifier`` and their like do.
"""

from __future__ import annotations

BUILT_IN: dict[str, str] = {
    "base_handler": "base",
    "densenet_handler": "densenet_handler",
    "image_classifier": "image_classifier",
    "image_segmenter": "image_segmenter",
    "object_detector": "object_detector",
    "text_classifier": "text_classifier",
}
"""The names that an archive may give as its handler without bringing a module, and where they are here."""
