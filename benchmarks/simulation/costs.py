"""Costs of batches from the command line and from what a benchmark measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from modelserver.engine.simulation.costs import Cost, fit

if TYPE_CHECKING:
    from pathlib import Path


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
