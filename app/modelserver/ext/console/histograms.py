"""Percentiles of what a histogram has counted."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(share: float, bounds: Sequence[float], counts: Sequence[float]) -> float | None:
    """Computes a quantile in ms as Prometheus does, linear within a bucket; None without observations."""
    left = share * math.fsum(counts)
    if not left:
        return None
    for low, high, count in zip((0.0, *bounds), bounds, counts, strict=False):
        if count >= left:
            return 1e3 * (low + (high - low) * left / count)
        left -= count
    return 1e3 * bounds[-1]
