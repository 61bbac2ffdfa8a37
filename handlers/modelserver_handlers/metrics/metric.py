"""TorchServe's oldest way to measure: metric objects in a store (reference 13.6)."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any

from modelserver_handlers.metrics.emission import Emission, emit, long_unit
from modelserver_handlers.metrics.values import SIZE_UNITS, TIME_UNITS, Dimension

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Metric:
    """One value with its name, unit and Dimension objects; ``update`` reports another one."""

    def __init__(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: Any,
        unit: str | None,
        dimensions: Sequence[Any],
        request_id: str | None = None,
        metric_method: str | None = None,
    ) -> None:
        self.name = name
        self.value = value
        self.unit = long_unit(unit)
        self.dimensions = dimensions
        self.request_id = request_id
        self.metric_method = metric_method

    def update(self, value: Any) -> None:
        """Report a value: added to the one held if this counts, otherwise in its place."""
        self.value = self.value + value if self.metric_method == "counter" else value
        emit(self.emission(value))

    def reset(self) -> None:
        """Hold 0; nothing is reported."""
        self.value = 0

    def emission(self, value: Any) -> Emission:
        """``value`` as one of this metric, on its way."""
        kind = "counter" if self.metric_method == "counter" else "gauge"
        dimensions = [(dimension.name, dimension.value) for dimension in self.dimensions]
        return Emission(self.name, value, self.unit, kind, dimensions, self.request_id or "")

    def to_dict(self) -> dict[str, Any]:
        """As TorchServe writes it to JSON."""
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
        """What :meth:`Metric.to_dict` says."""
        return o.to_dict() if isinstance(o, (Metric, Dimension)) else super().default(o)


class MetricsStore:
    """Collects metrics by name, unit, request and dimensions; only tests of handlers still use it.

    Each ``add_`` method makes a metric at first, without a report, and updates it from then on.
    """

    def __init__(self, request_ids: dict[int, str] | None, model_name: str) -> None:
        self.store: list[Metric] = []
        self.request_ids = request_ids
        self.model_name = model_name
        self.cache: dict[str, Metric] = {}

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Iterable[Any] | None = None
    ) -> None:
        """Counts."""
        self._add(name, value, "count", idx, dimensions, "counter")

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Iterable[Any] | None = None,
    ) -> None:
        """A duration in ``ms`` or ``s``; ValueError for other units."""
        if unit not in TIME_UNITS:
            raise ValueError(f"the unit for a timed metric should be one of {list(TIME_UNITS)}")
        self._add(name, value, unit, idx, dimensions)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Iterable[Any] | None = None,
    ) -> None:
        """A size in ``MB``, ``kB``, ``GB`` or ``B``; ValueError for other units."""
        if unit not in SIZE_UNITS:
            raise ValueError(f"The unit for size based metric is one of {list(SIZE_UNITS)}")
        self._add(name, value, unit, idx, dimensions)

    def add_percent(
        self, name: str, value: float, idx: int | None = None, dimensions: Iterable[Any] | None = None
    ) -> None:
        """A share in percent."""
        self._add(name, value, "percent", idx, dimensions)

    def add_error(self, name: str, value: Any, dimensions: Iterable[Any] | None = None) -> None:
        """An error."""
        self._add(name, value, "", None, [*(dimensions or ()), Dimension("Level", "Error")], level=False)

    def add_metric(
        self,
        name: str,
        value: Any,
        unit: str | None,
        idx: int | None = None,
        dimensions: Iterable[Any] | None = None,
    ) -> None:
        """Anything."""
        self._add(name, value, unit, idx, dimensions)

    def _add(  # noqa: PLR0917 - one argument per field
        self,
        name: str,
        value: Any,
        unit: str | None,
        idx: int | None,
        dimensions: Iterable[Any] | None,
        method: str | None = None,
        *,
        level: bool = True,
    ) -> None:
        own = list(dimensions or ())
        if level:
            own += [Dimension("ModelName", self.model_name), Dimension("Level", "Model")]
        request_id = self._request_id(idx) if level else ""
        # As TorchServe writes it: tests of handlers look metrics up by it.
        key = "-".join([name, str(unit), request_id if level else "None", *map(str, own)])
        metric = self.cache.get(key)
        if metric is None:
            metric = self.cache[key] = Metric(name, value, unit, own, request_id, method)
            self.store.append(metric)
        else:
            metric.update(value)

    def _request_id(self, idx: int | None) -> str:
        ids = self.request_ids or {}
        return ",".join(ids.values()) if idx is None else ids.get(idx, "")


def emit_metrics(metrics: Iterable[Metric]) -> None:
    """Report each metric's value."""
    for metric in metrics:
        emit(metric.emission(metric.value))
