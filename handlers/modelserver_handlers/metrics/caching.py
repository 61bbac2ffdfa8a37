"""A metric that is declared once and then updated (reference 13.6)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from modelserver_handlers.metrics.emission import Emission, Sink, emit, long_unit
from modelserver_handlers.metrics.errors import MetricsCacheTypeError
from modelserver_handlers.metrics.values import MetricTypes

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)


class MetricAbstract(ABC):
    """What every declared metric offers."""

    def __init__(
        self,
        metric_name: str,
        unit: str | None,
        dimension_names: Sequence[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self.metric_name = metric_name
        self.unit = long_unit(unit)
        self.dimension_names = list(dimension_names or ())
        self.metric_type = metric_type

    @abstractmethod
    def add_or_update(self, value: float, dimension_values: Sequence[Any] = (), request_id: str = "") -> None:
        """Report a value."""


class CachingMetric(MetricAbstract):
    """A metric with its unit and the names of its dimensions.

    A value that cannot be reported (dimensions that do not match, a counter below 0) is an error in the log;
    nothing is raised, so that measuring never fails a request.
    """

    def __init__(
        self,
        metric_name: str,
        unit: str | None,
        dimension_names: Sequence[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        if not isinstance(metric_type, MetricTypes):
            raise MetricsCacheTypeError("`metric_type` must be a MetricTypes enum")
        super().__init__(metric_name, unit, dimension_names, metric_type)
        self._short_unit = unit
        self._sink: Sink | None = None

    def sent_to(self, sink: Sink | None) -> CachingMetric:
        """Itself, with this sink for its values; None: the sink of the process."""
        self._sink = sink
        return self

    def add_or_update(self, value: float, dimension_values: Sequence[Any] = (), request_id: str = "") -> None:
        """Report a value for these dimensions, one per name."""
        problem = self._problem(value, dimension_values)
        if problem:
            values = ",".join(str(text) for text in dimension_values or ())
            logger.error(
                "[METRICS]Failed to update metric with name:%s and dimensions: %s with value: %s: %s",
                *(self.metric_name, values, value, problem),
            )
            return
        dimensions = tuple(zip(self.dimension_names, dimension_values, strict=True))
        emission = Emission(
            self.metric_name, value, self._short_unit, self.metric_type.value, dimensions, request_id
        )
        (self._sink or emit)(emission)

    def update(self, value: float, request_id: str = "", dimensions: Sequence[Any] = ()) -> None:
        """Report a value for Dimension objects, whose names replace those declared (the old way)."""
        names = [dimension.name for dimension in dimensions]
        if self.dimension_names not in ([], names):
            logger.warning("Overriding existing dimensions")
        self.dimension_names = names
        self.add_or_update(value, [dimension.value for dimension in dimensions], request_id)

    def _problem(self, value: Any, dimension_values: Sequence[Any] | None) -> str:
        if dimension_values is None or len(dimension_values) != len(self.dimension_names):
            return (
                f"Dimension values: {dimension_values} should correspond to Dimension names:"
                f" {self.dimension_names}"
            )
        if self.metric_type is MetricTypes.COUNTER and value < 0:
            return "Counter metric update value cannot be negative"
        return ""
