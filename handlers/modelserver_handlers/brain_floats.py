"""Arrays of BF16, for which numpy has no type: float32 arrays marked as BF16.

Importing this imports numpy; workers do so on first use.
"""

from __future__ import annotations

from typing import Any

import numpy


class BrainFloats(numpy.ndarray[Any, numpy.dtype[numpy.float32]]):
    """Float32 whose lower 16 bits are zero, as long as it cannot be written to."""

    @property
    def unchanged(self) -> bool:
        """Whether these are received values; computed ones are writeable."""
        return not self.flags.writeable


def widened(raw: numpy.ndarray[Any, Any]) -> BrainFloats:
    """From little-endian BF16 bytes."""
    return (raw.view("<u2").astype("<u4") << 16).view("<f4").view(BrainFloats)


def narrowed(values: BrainFloats) -> bytes:
    """The BF16 bytes."""
    return (numpy.asarray(values).view("<u4") >> 16).astype("<u2").tobytes()
