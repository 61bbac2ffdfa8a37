"""Readings of the host and its GPUs, by psutil and NVML; neither needs torch.

GPU ids are positions in CUDA_VISIBLE_DEVICES, as workers see them. Without NVML there are no GPUs.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from modelserver import resources
from modelserver.resources import allowed_cpus, cgroup_quota

if TYPE_CHECKING:
    from collections.abc import Mapping

MEGABYTE = 1 << 20
GIGABYTE = 1 << 30
NO_GPU = "N/A"
VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU_UNREADABLE = "failed to obtained gpu usage"  # the spelling of describe's answer (reference 5.4)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU: shares in percent, memory in MiB; ``memory_activity`` is the share of time it was accessed."""

    gpu_id: int
    utilization_percent: float
    memory_activity: float
    memory_percent: float
    memory_used_mb: float


@dataclass(frozen=True, slots=True)
class SystemReading:
    """The host: shares in percent, memory in MiB, disk in GiB."""

    cpu_percent: float
    memory_used_mb: float
    memory_available_mb: float
    memory_percent: float
    disk_used_gb: float
    disk_available_gb: float
    disk_percent: float
    gpus: tuple[GpuReading, ...] = ()


class SystemMonitor:
    """Reads the host; CPU use is measured between readings.

    ``of_container``: readings are relative to a control group's limits on memory and CPUs, if it has any;
    TorchServe's are always those of the machine.
    """

    def __init__(self, *, number_of_gpu: int | None = None, of_container: bool = False) -> None:
        self._number_of_gpu = number_of_gpu
        self._of_container = of_container
        quota = cgroup_quota(resources.ROOT, resources.OWN) if of_container else None
        self._quota = None if quota is None else min(quota, allowed_cpus())
        self._cpu_before = self._seconds()

    def read(self) -> SystemReading:
        """A reading of now. Quick, but it may access the disk: do not call it on the event loop."""
        used, available, percent = self._memory()
        disk = psutil.disk_usage("/")
        return SystemReading(
            cpu_percent=self._cpu_percent(),
            memory_used_mb=used / MEGABYTE,
            memory_available_mb=available / MEGABYTE,
            memory_percent=percent,
            disk_used_gb=disk.used / GIGABYTE,
            disk_available_gb=disk.free / GIGABYTE,
            disk_percent=disk.percent,
            gpus=read_gpus(self._number_of_gpu),
        )

    def _cpu_percent(self) -> float:
        busy_before, all_before = self._cpu_before
        busy, everything = self._cpu_before = self._seconds()
        passed = everything - all_before
        share = max(0.0, busy - busy_before) / passed if passed > 0 else 0.0
        return round(100 * min(1.0, share), 1)

    def _seconds(self) -> tuple[float, float]:
        """Busy and total CPU seconds."""
        used = None if self._quota is None else resources.cpu_seconds()
        return _cpu_seconds() if used is None else (used, time.monotonic() * (self._quota or 1.0))

    def _memory(self) -> tuple[float, float, float]:
        """Used and available bytes, and the used share in percent."""
        machine = psutil.virtual_memory()
        group = resources.memory_group() if self._of_container else None
        if group is None or not 0 < group.limit < machine.total:
            return machine.used, machine.available, machine.percent
        available = min(group.available, machine.available)
        return group.used, available, round(100 * group.used / group.limit, 1)


def worker_memory(pid: int) -> int:
    """Resident bytes of a process, 0 if they cannot be read."""
    try:
        return int(psutil.Process(pid).memory_info().rss) if pid > 0 else 0
    except (psutil.Error, OSError):
        return 0


def gpu_count(number_of_gpu: int | None = None) -> int:
    """The number of GPUs for workers: the visible ones, at most ``number_of_gpu``; 0 without NVML."""
    visible = len(_visible_handles())
    return visible if number_of_gpu is None else max(0, min(visible, number_of_gpu))


def read_gpus(number_of_gpu: int | None = None) -> tuple[GpuReading, ...]:
    """A reading of every GPU that can be read, at most ``number_of_gpu`` of them."""
    count = gpu_count(number_of_gpu)
    readings = (_read_gpu(gpu_id, handle) for gpu_id, handle in enumerate(_visible_handles()[:count]))
    return tuple(reading for reading in readings if reading is not None)


class GpuMemory(NamedTuple):
    """The memory of a GPU in bytes; ``by_process`` is the memory used by processes, if known."""

    free: int
    used: int
    by_process: Mapping[int, int] = MappingProxyType({})


def gpu_memory(gpu_id: int) -> GpuMemory | None:
    """The memory of a GPU; None if it cannot be read."""
    nvml, handles = _nvml(), _visible_handles()
    if nvml is None or not 0 <= gpu_id < len(handles):
        return None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handles[gpu_id])
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handles[gpu_id])
    except nvml.NVMLError as error:
        _log.debug("The memory of GPU %d cannot be read: %s", gpu_id, error)
        return None
    by_process = {p.pid: p.usedGpuMemory for p in processes if p.usedGpuMemory}
    return GpuMemory(memory.free, memory.used, by_process)


def gpu_usage(gpu_id: int | None, visible: str | None = None) -> str:
    """A worker's GPU as describe shows it (reference 5.4); None is a worker on the CPU.

    ``visible``: the GPUs that the worker sees, by default those of this process.
    """
    if gpu_id is None or gpu_id < 0:
        return NO_GPU
    handles = _visible_handles(visible)
    reading = _read_gpu(gpu_id, handles[gpu_id]) if gpu_id < len(handles) else None
    if reading is None:
        return GPU_UNREADABLE
    return (
        f"gpuId::{gpu_id} utilization.gpu::{reading.utilization_percent:.0f} % "
        f"utilization.memory::{reading.memory_activity:.0f} % memory.used::{reading.memory_used_mb:.0f} MiB"
    )


def _cpu_seconds() -> tuple[float, float]:
    times = psutil.cpu_times()
    # Linux counts guests in user and nice already.
    everything = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    return everything - idle, everything


@functools.cache
def _nvml() -> Any | None:
    """The initialised pynvml module, or None where there is no driver."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        _log.debug("No GPU readings: %s", error)
        return None
    return nvml


def _visible_handles(visible: str | None = None) -> list[Any]:
    nvml = _nvml()
    if nvml is None:
        return []
    try:
        installed = int(nvml.nvmlDeviceGetCount())
        wanted = os.environ.get(VISIBLE) if visible is None else visible
        if wanted is None:
            return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(installed)]
        return _chosen_handles(nvml, installed, wanted)
    except nvml.NVMLError as error:
        _log.warning("The GPUs cannot be listed: %s", error)
        return []


def _chosen_handles(nvml: Any, installed: int, wanted: str) -> list[Any]:
    """CUDA's rule: devices up to the first that does not exist; none if one is named twice."""
    names = [name.strip() for name in wanted.split(",")]
    handles: list[Any] = []
    seen: set[str] = set()
    for name in names:
        handle = _handle_named(nvml, installed, name)
        if handle is None:
            break
        uuid = _uuid(nvml, handle)
        if uuid in seen:
            return []
        seen.add(uuid)
        handles.append(handle)
    return handles


def _handle_named(nvml: Any, installed: int, name: str) -> Any | None:
    if name.isascii() and name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name)) if int(name) < installed else None
    if name.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(name)
        except nvml.NVMLError:
            return None
    if not name.startswith("GPU-"):
        return None
    handles = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(installed))
    return next((handle for handle in handles if _uuid(nvml, handle).startswith(name)), None)


def _uuid(nvml: Any, handle: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _read_gpu(gpu_id: int, handle: Any) -> GpuReading | None:
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    except nvml.NVMLError as error:
        _log.debug("GPU %d cannot be read: %s", gpu_id, error)
        return None
    return GpuReading(
        gpu_id=gpu_id,
        utilization_percent=float(rates.gpu),
        memory_activity=float(rates.memory),
        memory_percent=round(100 * memory.used / memory.total, 1) if memory.total else 0.0,
        memory_used_mb=memory.used / MEGABYTE,
    )
