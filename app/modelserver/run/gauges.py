"""Gauges of pools, which are set when metrics are read."""

from __future__ import annotations

from modelserver.models.registry import Registry


def update_pool_gauges(registry: Registry) -> None:
    """Sets the gauges that are updated only when metrics are read."""
    for model in registry.versions():
        if model.metrics.series.is_hidden:
            continue
        statistics = model.pool.statistics()
        for name, seconds in (
            ("PredictionTime", model.pool.dispatch.last_handler_time),
            ("HandlerTime", sum(model.pool.dispatch.last_phases) or model.pool.dispatch.last_handler_time),
        ):
            model.metrics.handler_metric(
                name, seconds * 1000.0, "ms", "gauge", [("ModelName", model.name), ("Level", "Model")]
            )
        model.metrics.workers.set_overhead(model.pool.dispatch.last_overhead)
        batches = model.metrics.batches
        batches.queue_requests.set(statistics.pending)
        batches.queue_instances.set(statistics.instances)
        batches.in_flight.set(statistics.batches_in_flight)
        batches.failing.set(model.pool.failing)
        model.metrics.workers.set_states(
            {"ready": statistics.ready, "loading": statistics.loading, "failed": statistics.failed}
        )
