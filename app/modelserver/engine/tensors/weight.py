"""Cheap estimates of how long requests and responses would block the event loop.

What they call light takes a few milliseconds at most, and is processed on the event loop.
"""

from __future__ import annotations

# Limits for light work: bytes of any JSON, and elements of JSON, of BYTES, and rows by tensors.
LIGHT_BYTES = 16 << 10
LIGHT_ELEMENTS = 5_000
LIGHT_ROWS = 1_000
# Text of few elements is copied and checked a few times.
LIGHT_TEXT = 1 << 20
_PIECE = 1 << 16


class TooHeavy(Exception):
    """The work turned out to be too much for the event loop."""


def is_heavy_json(text: bytes | memoryview) -> bool:
    """Whether reading this JSON would take long."""
    if len(text) <= LIGHT_BYTES:
        return False
    if len(text) > LIGHT_TEXT:
        return True
    content, count = bytes(text), 0
    for begin in range(0, len(content), _PIECE):
        # Each element follows a comma, or is the first of a list or object.
        for mark in (b",", b"[", b"{"):
            count += content.count(mark, begin, begin + _PIECE)
        if count > LIGHT_ELEMENTS:
            return True
    return False
