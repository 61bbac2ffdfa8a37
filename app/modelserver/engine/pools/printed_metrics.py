"""Metrics that a worker prints in the form of TorchServe's workers (reference 15.4).

``context.metrics`` does not print here, but some handlers, and programs that they start, print such lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

Measured = Callable[[str, float, str, str, Sequence[tuple[str, str]], str], None]
"""Called with name, value, unit, kind, dimensions and request id."""

_BEGINNINGS = ("[METRICS]", "INFO > [METRICS]")
# Dimensions may be absent; kind, host and time may not, as in TorchServe.
_LINE = re.compile(
    r"(?:INFO > )?\[METRICS\](?P<name>[^|:]+?)\.(?P<unit>[^|:.]*):(?P<value>[^|:]+)"
    r"\|#(?P<dimensions>[^|]*)\|#type:(?P<kind>COUNTER|GAUGE|HISTOGRAM)"
    r"\|#hostname:[^,|]+,\d+(?:,(?P<request_id>[^|]*))?"
)


class PrintedMetric(NamedTuple):
    """One value in a line, with the arguments of ``Measured``."""

    name: str
    value: float
    unit: str
    kind: str
    dimensions: tuple[tuple[str, str], ...]
    request_id: str


def parse_metric(line: str) -> PrintedMetric | None:
    """The metric in a line; None for any other line, even if it resembles a metric."""
    match = _LINE.fullmatch(line) if line.startswith(_BEGINNINGS) else None
    if match is None:
        return None
    try:
        value = float(match["value"])
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    pairs = (item.partition(":") for item in match["dimensions"].split(",") if item)
    return PrintedMetric(
        match["name"],
        value,
        match["unit"],
        match["kind"].lower(),
        tuple((name, text) for name, _, text in pairs),
        match["request_id"] or "",
    )
