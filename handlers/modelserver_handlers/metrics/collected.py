"""The metrics object that handlers find at ``context.metrics`` (reference 13.6)."""

from __future__ import annotations

import contextlib
import os
from copy import copy

from modelserver.engine.wire.messages import METRICS_CONFIG, Measurement, sendable
from modelserver_handlers.metrics.cache import (
    CachingMetric,
    Emission,
    MetricsCache,
    MetricsCacheKeyError,
    MetricsCacheYamlImpl,
    MetricTypes,
    long_unit,
)

# Known in every worker, as TorchServe's own metrics.yaml declares them (reference 15.3).
_DECLARED = ("HandlerTime", "PredictionTime")


class HandlerMetrics(MetricsCache):
    """Collects a handler's metrics, which are sent along with the batch's answers.

    Concurrent calls have separate objects, which find the metrics of ``known``.
    """

    def __init__(self, model_name: str, known: HandlerMetrics | None = None) -> None:
        super().__init__(model_name, self.receive)
        self._collected: list[Measurement] = []
        self._known = known
        if known is None:
            self.initialize_cache()

    def initialize_cache(self) -> None:
        """Declares the metrics of every model, and those of the server's ``metrics_config``."""
        for name in _DECLARED:
            self.add_metric_to_cache(name, "ms", ["ModelName", "Level"], MetricTypes.GAUGE)
        if path := os.environ.get(METRICS_CONFIG):
            self._declare_listed(path)

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> CachingMetric:
        """A metric that was declared or added before; MetricsCacheKeyError if there is none."""
        try:
            return super().get_metric(metric_name, metric_type)
        except MetricsCacheKeyError:
            if self._known is None:
                raise
        metric = copy(self._known.get_metric(metric_name, metric_type)).with_sink(self.receive)
        self.cache.setdefault(metric_type, {})[metric_name] = metric
        return metric

    def _declare_listed(self, path: str) -> None:
        listed = MetricsCacheYamlImpl(path)
        with contextlib.suppress(MetricsCacheKeyError):  # the file may be about the server's metrics only
            listed.initialize_cache()
        for kind, metrics in listed.cache.items():
            for name, metric in metrics.items():
                self.add_metric_to_cache(name, metric.unit, list(metric.dimension_names), kind)

    def receive(self, emission: Emission) -> None:
        """Collects a value, with its unit's long name as in TorchServe; ValueError if it is not a number."""
        named = [(sendable(name), sendable(value)) for name, value in emission.dimensions]
        self._collected.append(
            Measurement(
                sendable(emission.name),
                float(emission.value),
                sendable(emission.unit if emission.name in _DECLARED else long_unit(emission.unit)),
                sendable(emission.kind),
                named,
                sendable(emission.request_id),
            )
        )

    def collect(self) -> list[Measurement] | None:
        """The values added since the last call, or None."""
        # Values that another thread adds after the copy are kept for the next call.
        collected = self._collected[:]
        del self._collected[: len(collected)]
        return collected or None
