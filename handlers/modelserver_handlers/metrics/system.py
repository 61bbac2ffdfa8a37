"""The machine as metrics of the old kind (reference 13, ``ts.metrics.system_metrics``).

The server measures its machine by itself; this is for programs that were written against TorchServe's module.
"""

from __future__ import annotations

import logging
from types import FunctionType
from typing import TYPE_CHECKING, Any

import psutil

from modelserver_handlers.metrics.metric import Metric
from modelserver_handlers.metrics.values import Dimension

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger(__name__)

_MB = 1 << 20
_GB = 1 << 30

system_metrics: list[Metric] = []
"""What was measured so far."""

dimension = [Dimension("Level", "Host")]


def cpu_utilization() -> None:
    """Percent of all processors since it was asked last."""
    _add("CPUUtilization", psutil.cpu_percent(), "percent")


def memory_used() -> None:
    """Used memory in MB."""
    _add("MemoryUsed", psutil.virtual_memory().used / _MB, "MB")


def memory_available() -> None:
    """Memory that processes can have, in MB."""
    _add("MemoryAvailable", psutil.virtual_memory().available / _MB, "MB")


def memory_utilization() -> None:
    """Used memory in percent."""
    _add("MemoryUtilization", psutil.virtual_memory().percent, "percent")


def disk_used() -> None:
    """Used space of the root file system in GB."""
    _add("DiskUsage", psutil.disk_usage("/").used / _GB, "GB")


def disk_utilization() -> None:
    """Used space of the root file system in percent."""
    _add("DiskUtilization", psutil.disk_usage("/").percent, "percent")


def disk_available() -> None:
    """Free space of the root file system in GB."""
    _add("DiskAvailable", psutil.disk_usage("/").free / _GB, "GB")


def gpu_utilization(num_of_gpu: int) -> None:
    """Memory and load of each of NVIDIA's GPUs; nothing where ``num_of_gpu`` is 0."""
    if num_of_gpu <= 0:
        return
    import pynvml  # noqa: PLC0415 - not every machine has a GPU

    pynvml.nvmlInit()
    try:
        for index in range(min(num_of_gpu, pynvml.nvmlDeviceGetCount())):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            own = [*dimension, Dimension("device_id", index)]
            _add("GPUMemoryUtilization", 100 * memory.used / memory.total, "percent", own)
            _add("GPUMemoryUsed", memory.used // _MB, "MB", own)
            _add("GPUUtilization", pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, "percent", own)
    finally:
        pynvml.nvmlShutdown()


def collect_all(mod: ModuleType, num_of_gpu: int) -> None:
    """Call every function of a module that measures, and log what :data:`system_metrics` holds then."""
    for name, function in sorted(vars(mod).items()):
        if name in {"collect_all", "log_msg"} or name.startswith("_"):
            continue
        if isinstance(function, FunctionType):
            if name == "gpu_utilization":
                function(num_of_gpu)
            else:
                function()
    for metric in system_metrics:
        logger.info("%s", metric)
    logger.info("")


def _add(name: str, value: Any, unit: str, dimensions: list[Dimension] = dimension) -> None:
    system_metrics.append(Metric(name, value, unit, dimensions))
