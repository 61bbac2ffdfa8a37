"""TorchServe's oldest metrics: objects in a store (reference 13.6)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from modelserver_handlers.metrics.cache import (
    Dimension,
    Emission,
    Measures,
    MetricTypes,
    emit,
    long_unit,
)


@dataclass(eq=False)
class Metric:
    """One value with its name, unit and Dimension objects; ``update`` reports another one."""

    name: str
    value: Any
    unit: Any
    dimensions: Sequence[Any]
    request_id: str | None = None
    metric_method: str | None = None

    def __post_init__(self) -> None:
        self.unit = long_unit(self.unit)

    def update(self, value: Any) -> None:
        """Report a value: a counter adds it, other metrics replace theirs."""
        self.value = self.value + value if self.metric_method == "counter" else value
        emit(self.emission(value))

    def reset(self) -> None:
        """Set 0 without reporting it."""
        self.value = 0

    def emission(self, value: Any) -> Emission:
        """``value`` as an emission of this metric."""
        kind = "counter" if self.metric_method == "counter" else "gauge"
        dimensions = [(dimension.name, dimension.value) for dimension in self.dimensions]
        return Emission(self.name, value, self.unit, kind, dimensions, self.request_id or "")

    def to_dict(self) -> dict[str, Any]:
        """The mapping that TorchServe writes as JSON."""
        return {
            "MetricName": self.name,
            "Value": self.value,
            "Unit": self.unit,
            "Dimensions": self.dimensions,
            "Timestamp": int(time.time()),
            "HostName": socket.gethostname(),
            "RequestId": self.request_id,
        }

    def __str__(self) -> str:
        dimensions = ",".join(str(dimension) for dimension in self.dimensions)
        request = f",{self.request_id}" if self.request_id else ""
        place = f"{socket.gethostname()},{int(time.time())}"
        return f"{self.name}.{self.unit}:{self.value}|#{dimensions}|#hostname:{place}{request}"


class MetricEncoder(json.JSONEncoder):
    """Writes metrics and dimensions as JSON."""

    def default(self, o: Any) -> Any:
        """The mapping that :meth:`Metric.to_dict` returns."""
        return o.to_dict() if isinstance(o, (Metric, Dimension)) else super().default(o)


class MetricsStore(Measures):
    """Collects metrics by name, unit, request and dimensions; only tests of handlers still use it.

    Each ``add_`` method first creates a metric without reporting it, and updates it from then on.
    """

    def __init__(self, request_ids: dict[int, str] | None, model_name: str) -> None:
        self.store: list[Metric] = []
        self.request_ids = request_ids
        self.model_name = model_name
        self.cache: dict[str, Metric] = {}

    def add_metric(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: Any,
        unit: str | None,
        idx: int | None = None,
        dimensions: Iterable[Any] | None = None,
        metric_type: Any = MetricTypes.GAUGE,
    ) -> None:
        """Adds one value of any kind."""
        super().add_metric(name, value, unit, idx, dimensions, metric_type)

    def _add(  # noqa: PLR0917 - all that there is to say of a value
        self, name: str, value: Any, unit: Any, kind: str, dimensions: Any, idx: Any, level: str = "Model"
    ) -> None:
        own, request_id, tag, method = [*(dimensions or ()), Dimension("Level", level)], "", "None", None
        if level == "Model":
            own.insert(-1, Dimension("ModelName", self.model_name))
            ids = self.request_ids or {}
            request_id = tag = ",".join(ids.values()) if idx is None else ids.get(idx, "")
            method = "counter" if kind == "counter" else None
        # As TorchServe writes it: tests of handlers look metrics up by it.
        key = "-".join([name, str(unit), tag, *map(str, own)])
        metric = self.cache.get(key)
        if metric is None:
            metric = self.cache[key] = Metric(name, value, unit, own, request_id, method)
            self.store.append(metric)
        else:
            metric.update(value)


def emit_metrics(metrics: Iterable[Metric]) -> None:
    """Report each metric's value."""
    for metric in metrics:
        emit(metric.emission(metric.value))
