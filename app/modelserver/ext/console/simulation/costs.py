"""What a batch costs its worker: t(n) = a + b*n seconds, fitted to what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """``fixed`` seconds per batch and ``each`` seconds per instance."""

    fixed: float
    each: float

    def seconds(self, size: float) -> float:
        """The time of a batch of ``size`` instances."""
        return self.fixed + self.each * size


def fit(points: Sequence[tuple[float, float]]) -> Cost:
    """The line through (size, seconds) of two or more sizes with the least relative errors, no part below 0.

    Relative ones, because large batches would otherwise decide alone.
    """
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    pairs = list(zip(weights, points, strict=True))
    mean_n = sum(w * n for w, (n, _) in pairs) / total
    mean_t = sum(w * t for w, (_, t) in pairs) / total
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in pairs)
    slope = sum(w * (n - mean_n) * (t - mean_t) for w, (n, t) in pairs) / spread
    each = min(max(slope, 0.0), mean_t / mean_n)
    return Cost(mean_t - each * mean_n, each)
