"""How long requests and answers would keep the event loop busy: what is light is worked on there.

Estimates, made for far less than the work itself; what they call light takes a few milliseconds at most.
"""

from __future__ import annotations

# Bytes of JSON that are light whatever they are, and elements: of JSON, of BYTES, of rows by tensors.
LIGHT_BYTES = 16 << 10
LIGHT_ELEMENTS = 5_000
LIGHT_ROWS = 1_000
# Text of few elements is copied and checked a few times.
LIGHT_TEXT = 1 << 20
_PIECE = 1 << 16


class TooHeavy(Exception):
    """What was begun on the event loop turned out to be more than it should do."""


def is_heavy_json(text: bytes | memoryview) -> bool:
    """Whether reading this JSON would take long."""
    if len(text) <= LIGHT_BYTES:
        return False
    if len(text) > LIGHT_TEXT:
        return True
    content, found = bytes(text), 0
    for begin in range(0, len(content), _PIECE):
        # Each element is behind a comma, or the first of a list or an object.
        for mark in (b",", b"[", b"{"):
            found += content.count(mark, begin, begin + _PIECE)
        if found > LIGHT_ELEMENTS:
            return True
    return False
