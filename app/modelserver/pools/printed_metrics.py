"""Metrics that a worker prints, in the form in which TorchServe's workers do (reference 15.4).

Handlers made for TorchServe report theirs through ``context.metrics``, which does not print here; but some
print such lines themselves, and so do programs that they start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

Measured = Callable[[str, float, str, str, Sequence[tuple[str, str]], str], None]
"""Takes name, value, unit, kind, dimensions and request id of one value."""

_BEGINNINGS = ("[METRICS]", "INFO > [METRICS]")
# Dimensions may be absent; kind, host and time may not, as in TorchServe.
_LINE = re.compile(
    r"(?:INFO > )?\[METRICS\](?P<name>[^|:]+?)\.(?P<unit>[^|:.]*):(?P<value>[^|:]+)"
    r"\|#(?P<dimensions>[^|]*)\|#type:(?P<kind>COUNTER|GAUGE|HISTOGRAM)"
    r"\|#hostname:[^,|]+,\d+(?:,(?P<request_id>[^|]*))?"
)


class PrintedMetric(NamedTuple):
    """One value that a line reports, as ``Measured`` takes it; the host that it names is this one."""

    name: str
    value: float
    unit: str
    kind: str
    dimensions: tuple[tuple[str, str], ...]
    request_id: str


def parse_metric(line: str) -> PrintedMetric | None:
    """What a line reports; None for any other line, also one that only looks like a metric."""
    found = _LINE.fullmatch(line) if line.startswith(_BEGINNINGS) else None
    if found is None:
        return None
    try:
        value = float(found["value"])
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    pairs = (item.partition(":") for item in found["dimensions"].split(",") if item)
    return PrintedMetric(
        found["name"],
        value,
        found["unit"],
        found["kind"].lower(),
        tuple((name, text) for name, _, text in pairs),
        found["request_id"] or "",
    )
