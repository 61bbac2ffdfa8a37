"""Metrics that a worker prints, in the form in which TorchServe's workers do (reference 15.4).

Handlers made for TorchServe report theirs through ``context.metrics``, which does not print here; but some
print such lines themselves, and so do programs that they start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Measured = Callable[[str, float, str, str, Sequence[tuple[str, str]], str], None]
"""Takes name, value, unit, kind, dimensions and request id of one value."""

_BEGINNINGS = ("[METRICS]", "INFO > [METRICS]")
# Dimensions may be absent; kind, host and time may not, as in TorchServe.
_LINE = re.compile(
    r"(?:INFO > )?\[METRICS\](?P<name>[^|:]+?)\.(?P<unit>[^|:.]*):(?P<value>[^|:]+)"
    r"\|#(?P<dimensions>[^|]*)\|#type:(?P<kind>COUNTER|GAUGE|HISTOGRAM)"
    r"\|#hostname:[^,|]+,\d+(?:,(?P<request_id>[^|]*))?"
)


@dataclass(frozen=True, slots=True)
class PrintedMetric:
    """One value that a line reports; the host that it names is this one."""

    name: str
    value: float
    unit: str
    kind: str
    dimensions: tuple[tuple[str, str], ...]
    request_id: str

    def tell(self, measured: Measured) -> None:
        """Hands it to whoever keeps it."""
        measured(self.name, self.value, self.unit, self.kind, self.dimensions, self.request_id)


def parse_metric(line: str) -> PrintedMetric | None:
    """What a line reports; None for any other line, also one that only looks like a metric."""
    if not line.startswith(_BEGINNINGS):
        return None
    found = _LINE.fullmatch(line)
    value = math.nan
    if found is not None:
        try:
            value = float(found["value"])
        except ValueError:
            return None
    if found is None or not math.isfinite(value):
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
