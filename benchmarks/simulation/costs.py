"""What a batch costs its worker: t(n) = a + b*n seconds, assumed or fitted to what a benchmark measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cost:
    """``fixed`` seconds per batch and ``each`` seconds per instance."""

    name: str
    fixed: float
    each: float

    def seconds(self, size: int) -> float:
        """The time of a batch of ``size`` instances."""
        return self.fixed + self.each * size

    def capacity(self, batch_size: int, workers: int) -> float:
        """Instances per second of so many workers that get nothing but full batches."""
        return workers * batch_size / self.seconds(batch_size)


def parse_cost(text: str) -> Cost:
    """``NAME=A,B`` with milliseconds. Raises ValueError."""
    name, _, numbers = text.partition("=")
    fixed, each = (float(part) / 1e3 for part in numbers.split(","))
    if fixed < 0 or each < 0 or fixed + each <= 0:
        raise ValueError("times are positive")
    return Cost(name, fixed, each)


def read_costs(path: Path) -> list[Cost]:
    """One per model of the JSON that ``benchmarks.batching --out`` writes. Raises ValueError.

    Its clients keep the worker busy, so a batch took its size by the rate.
    """
    costs = []
    for model in json.loads(path.read_text("utf-8"))["models"]:
        rates = [(int(row["batch"]), row["figure"]["rate"]) for row in model["rows"]]
        costs.append(fit(model["model"], [(size, size / rate) for size, rate in rates if rate]))
    return costs


def fit(name: str, points: Sequence[tuple[int, float]]) -> Cost:
    """The line through (size, seconds) with the least relative errors, neither part below 0.

    Relative ones, because large batches would otherwise decide alone. Raises ValueError for fewer than two
    sizes.
    """
    if len({size for size, _ in points}) < 2:
        raise ValueError(f"{name}: a cost curve needs batches of two sizes")
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, points)) / total  # noqa: B905 - of one length
    mean_t = sum(w * t for w, (_, t) in zip(weights, points)) / total  # noqa: B905
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, points))  # noqa: B905
    slope = sum(w * (n - mean_n) * (t - mean_t) for w, (n, t) in zip(weights, points)) / spread  # noqa: B905
    each = min(max(slope, 0.0), mean_t / mean_n)
    return Cost(name, mean_t - each * mean_n, each)
