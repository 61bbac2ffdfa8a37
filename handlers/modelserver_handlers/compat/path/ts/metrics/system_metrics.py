"""The machine, measured."""

from __future__ import annotations

from modelserver_handlers.metrics.metric import Metric  # noqa: F401 - as in TorchServe
from modelserver_handlers.metrics.system import (
    collect_all,
    cpu_utilization,
    dimension,
    disk_available,
    disk_used,
    disk_utilization,
    gpu_utilization,
    memory_available,
    memory_used,
    memory_utilization,
    system_metrics,
)
from modelserver_handlers.metrics.values import Dimension  # noqa: F401 - as in TorchServe

__all__ = [
    "collect_all",
    "cpu_utilization",
    "dimension",
    "disk_available",
    "disk_used",
    "disk_utilization",
    "gpu_utilization",
    "memory_available",
    "memory_used",
    "memory_utilization",
    "system_metrics",
]
