"""The attributes of a metric: its kind, unit and dimensions."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar


class MetricTypes(Enum):
    """How values of a metric are combined."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Dimension:
    """A label of a metric: ``str()`` of it is ``name:value``."""

    def __init__(self, name: Any, value: Any) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, Any]:
        """As TorchServe writes it to JSON."""
        return {"Name": self.name, "Value": self.value}


class Units:
    """TorchServe's long names of units, by the short ones that handlers use."""

    units: ClassVar[dict[str | None, str]] = {
        "ms": "Milliseconds",
        "s": "Seconds",
        "percent": "Percent",
        "count": "Count",
        "MB": "Megabytes",
        "GB": "Gigabytes",
        "kB": "Kilobytes",
        "B": "Bytes",
        "": "unit",
        None: "unit",
    }


METRIC_UNIT = Units()
TIME_UNITS = ("ms", "s")
SIZE_UNITS = ("MB", "kB", "GB", "B")
