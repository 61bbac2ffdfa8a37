"""Metrics of workers on other machines."""

from __future__ import annotations

from modelserver.engine.telemetry.metrics import ServerMetrics
from modelserver.models.registry import Registry

_LABELS = ("model_name", "model_version", "node")


def show_nodes(metrics: ServerMetrics, registry: Registry) -> None:
    """Shows the loaded workers of each machine and their memory; a machine without any is not shown."""
    count = metrics.gauge("modelserver_node_workers", "Loaded workers on another machine.", _LABELS)
    memory = "Resident memory of workers on another machine."
    resident = metrics.gauge("modelserver_node_worker_memory_bytes", memory, _LABELS)

    def render() -> None:
        for family in (count, resident):
            for values, _ in family.series:
                family.remove(*values)
        for model in registry.versions():
            if model.metrics.series.is_hidden:
                continue
            for worker in model.pool.workers:
                node = worker.node
                if node is not None and worker.is_ready:
                    values = model.name, model.version, node.name
                    count.labels(*values).add()
                    resident.labels(*values).add(node.resident)

    metrics.on_render(render)
