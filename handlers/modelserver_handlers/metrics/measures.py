"""The methods with which handlers report values, shared by the cache and the old store (reference 13.6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from modelserver_handlers.metrics.emission import kind_of
from modelserver_handlers.metrics.errors import MetricsCacheValueError
from modelserver_handlers.metrics.values import SIZE_UNITS, TIME_UNITS, MetricTypes

if TYPE_CHECKING:
    from collections.abc import Iterable


class Measurement(NamedTuple):
    """One value; ``kind`` is counter, gauge or histogram."""

    name: str
    value: Any
    unit: str | None
    kind: str
    dimensions: Iterable[Any] | None
    idx: int | None
    level: str = "Model"


class Measures(ABC):
    """``idx`` is a position in the batch, None for all; ``dimensions`` have a ``name`` and a ``value``."""

    def add_metric(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: float,
        unit: str | None,
        idx: int | None = None,
        dimensions: Iterable[Any] | None = (),
        metric_type: Any = MetricTypes.COUNTER,
    ) -> None:
        """Adds one value; ``metric_type`` is counter, gauge or histogram."""
        self._add(Measurement(name, value, unit, kind_of(metric_type), dimensions, idx))

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Iterable[Any] | None = ()
    ) -> None:
        """Increments a counter by ``value``."""
        self._add(Measurement(name, value, "count", "counter", dimensions, idx))

    def add_time(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Iterable[Any] | None = (),
        metric_type: Any = MetricTypes.GAUGE,
    ) -> None:
        """Adds a duration in ``ms`` or ``s``; ValueError for other units."""
        if unit not in TIME_UNITS:
            raise MetricsCacheValueError("the unit for a timed metric should be one of ['ms', 's']")
        self._add(Measurement(name, value, unit, kind_of(metric_type), dimensions, idx))

    def add_size(  # noqa: PLR0917 - TorchServe's signature
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Iterable[Any] | None = (),
        metric_type: Any = MetricTypes.GAUGE,
    ) -> None:
        """Adds a size in ``MB``, ``kB``, ``GB`` or ``B``; ValueError for other units."""
        if unit not in SIZE_UNITS:
            raise MetricsCacheValueError("The unit for size based metric is one of ['MB','kB', 'GB', 'B']")
        self._add(Measurement(name, value, unit, kind_of(metric_type), dimensions, idx))

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Iterable[Any] | None = (),
        metric_type: Any = MetricTypes.GAUGE,
    ) -> None:
        """Adds a share in percent."""
        self._add(Measurement(name, value, "percent", kind_of(metric_type), dimensions, idx))

    def add_error(self, name: str, value: Any, dimensions: Iterable[Any] | None = ()) -> None:
        """Increments an error counter."""
        self._add(Measurement(name, value, "", "counter", dimensions, None, "Error"))

    @abstractmethod
    def _add(self, measurement: Measurement) -> None:
        """Add one value."""
