"""What a batch costs its worker: t(n) = a + b*n seconds, assumed or fitted to what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """``fixed`` seconds per batch and ``each`` seconds per instance."""

    name: str
    fixed: float
    each: float

    def seconds(self, size: float) -> float:
        """The time of a batch of ``size`` instances."""
        return self.fixed + self.each * size

    def capacity(self, batch_size: int, workers: int) -> float:
        """Instances per second of so many workers that get nothing but full batches."""
        return workers * batch_size / self.seconds(batch_size)


def fit(name: str, points: Sequence[tuple[float, float]]) -> Cost:
    """The line through (size, seconds) with the least relative errors, neither part below 0.

    Relative ones, because large batches would otherwise decide alone. Raises ValueError for fewer than two
    sizes.
    """
    if len({size for size, _ in points}) < 2:
        raise ValueError(f"{name}: a cost curve needs batches of two sizes")
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    pairs = list(zip(weights, points, strict=True))
    mean_n = sum(w * n for w, (n, _) in pairs) / total
    mean_t = sum(w * t for w, (_, t) in pairs) / total
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in pairs)
    slope = sum(w * (n - mean_n) * (t - mean_t) for w, (n, t) in pairs) / spread
    each = min(max(slope, 0.0), mean_t / mean_n)
    return Cost(name, mean_t - each * mean_n, each)
