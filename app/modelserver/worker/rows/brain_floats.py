"""Arrays of BF16, for which numpy has no type: float32 that know in what they came.

Importing this imports numpy; ``tensor_rows`` does so when the first of them comes.
"""

from __future__ import annotations

from typing import Any

import numpy


class BrainFloats(numpy.ndarray[Any, numpy.dtype[numpy.float32]]):
    """Float32 whose lower 16 bits are zero, as long as it cannot be written to."""

    @property
    def unchanged(self) -> bool:
        """Whether these are values that came, not computed from them: those can be written to."""
        return not self.flags.writeable


def widened(raw: numpy.ndarray[Any, Any]) -> BrainFloats:
    """Of little-endian bytes, two each."""
    return (raw.view("<u2").astype("<u4") << 16).view("<f4").view(BrainFloats)


def narrowed(values: BrainFloats) -> bytes:
    """The bytes that they came in."""
    return (numpy.asarray(values).view("<u4") >> 16).astype("<u2").tobytes()
