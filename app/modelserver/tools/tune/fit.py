"""The cost of a batch as a line a + b*n, by least squares."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TRUSTED_R2 = 0.9
TOLD_FROM = 3  # sizes: a line always fits two


@dataclass(frozen=True, slots=True)
class CostLine:
    """A batch of n takes ``a_ms + b_ms * n`` ms; ``r2`` is 1 if the line fits exactly.

    ``sizes``: the number of batch sizes it was fitted to.
    """

    a_ms: float
    b_ms: float
    r2: float
    sizes: int

    @property
    def trusted(self) -> bool:
        """Whether conclusions may be drawn from it: it fits, and larger batches cost more."""
        return self.r2 >= TRUSTED_R2 and self.b_ms > 0

    @property
    def worth_telling(self) -> bool:
        """Whether it is reliable enough to be shown."""
        return self.trusted and self.sizes >= TOLD_FROM

    def at(self, size: int) -> float:
        """The cost of a batch, in ms."""
        return self.a_ms + self.b_ms * size

    def largest_within(self, limit_ms: float) -> int:
        """The largest batch that takes no longer; 0 if none does. Needs ``b_ms`` above 0."""
        return max(0, math.floor((limit_ms - self.a_ms) / self.b_ms + 1e-9))

    def __str__(self) -> str:
        sign = "-" if self.b_ms < 0 else "+"
        return f"{self.a_ms:.3g} {sign} {abs(self.b_ms):.3g}*n ms (R^2 {self.r2:.3f})"


def fit_line(costs: Mapping[int, float]) -> CostLine | None:
    """The line through milliseconds by batch size; None for fewer than two sizes."""
    if len(costs) < 2:
        return None
    b, a = statistics.linear_regression([*costs], [*costs.values()])
    mean = statistics.fmean(costs.values())
    total = sum((t - mean) ** 2 for t in costs.values())
    left = sum((t - a - b * n) ** 2 for n, t in costs.items())
    return CostLine(a, b, 1.0 - left / total if total > 0 else 1.0, len(costs))
