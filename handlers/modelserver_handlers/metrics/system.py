"""The old metrics of the host and of processes (reference 13, ``ts.metrics.system_metrics``).

The server collects these itself; this is for programs written for TorchServe's modules.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

import psutil

from modelserver_handlers.metrics.cache import Dimension
from modelserver_handlers.metrics.metric import Metric

logger = logging.getLogger(__name__)


_MB = 1 << 20
_GB = 1 << 30

system_metrics: list[Metric] = []
"""The readings so far."""

dimension = [Dimension("Level", "Host")]


def _reading(name: str, unit: str, read: Callable[[], float]) -> Callable[[], None]:
    def measure() -> None:
        _add(name, read(), unit)

    return measure


# Of all processors since the last call; memory in MB, the root file system in GB.
cpu_utilization = _reading("CPUUtilization", "percent", psutil.cpu_percent)
memory_used = _reading("MemoryUsed", "MB", lambda: psutil.virtual_memory().used / _MB)
memory_available = _reading("MemoryAvailable", "MB", lambda: psutil.virtual_memory().available / _MB)
memory_utilization = _reading("MemoryUtilization", "percent", lambda: psutil.virtual_memory().percent)
disk_used = _reading("DiskUsage", "GB", lambda: psutil.disk_usage("/").used / _GB)
disk_utilization = _reading("DiskUtilization", "percent", lambda: psutil.disk_usage("/").percent)
disk_available = _reading("DiskAvailable", "GB", lambda: psutil.disk_usage("/").free / _GB)


def gpu_utilization(num_of_gpu: int) -> None:
    """Memory and load of each NVIDIA GPU; nothing if ``num_of_gpu`` is 0."""
    if num_of_gpu <= 0:
        return
    import pynvml  # noqa: PLC0415 - not every machine has a GPU

    pynvml.nvmlInit()
    try:
        for index in range(min(num_of_gpu, pynvml.nvmlDeviceGetCount())):
            # A GPU may be lost; instances of a divided one (MIG) do not measure their utilisation.
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                own = [*dimension, Dimension("device_id", index)]
                _add("GPUMemoryUtilization", 100 * memory.used / memory.total, "percent", own)
                _add("GPUMemoryUsed", memory.used // _MB, "MB", own)
                _add("GPUUtilization", pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, "percent", own)
    finally:
        pynvml.nvmlShutdown()


def collect_all(mod: ModuleType, num_of_gpu: int) -> None:
    """Call every measuring function of a module, then log :data:`system_metrics`."""
    for name, function in sorted(vars(mod).items()):
        if name in {"collect_all", "log_msg"} or name.startswith("_"):
            continue
        if isinstance(function, FunctionType):
            function(*([num_of_gpu] if name == "gpu_utilization" else []))
    for metric in system_metrics:
        logger.info("%s", metric)
    logger.info("")


def _add(name: str, value: Any, unit: str, dimensions: list[Dimension] = dimension) -> None:
    system_metrics.append(Metric(name, value, unit, dimensions))


def check_process_mem_usage(stdin: Iterable[Any]) -> None:
    """Log ``<pid>:<resident bytes>`` of each process id in ``stdin``; ended processes are skipped."""
    for line in stdin:
        for pid in str(line).replace(",", " ").split():
            try:
                memory = psutil.Process(int(pid)).memory_info().rss
            except psutil.NoSuchProcess:
                continue
            logger.info("%s:%d", pid, memory)


def get_cpu_usage(pid: Any) -> float:
    """Percent of one core that the process used since the last call; 0 if it has ended."""
    try:
        return psutil.Process(int(pid)).cpu_percent()
    except psutil.NoSuchProcess:
        return 0.0
