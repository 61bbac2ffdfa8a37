"""Readings of NVIDIA's GPUs, by NVML, which needs no torch.

GPU ids are positions among the GPUs that CUDA shows to workers. Without NVML there are no GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

MEGABYTE = 1 << 20
NO_GPU = "N/A"
VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU_UNREADABLE = "failed to obtained gpu usage"  # the spelling of describe's answer (reference 5.4)
UNSUPPORTED = "[N/A]"  # as nvidia-smi shows what a GPU does not measure

# Seconds after which a driver that could not be used is tried again.
RETRY = 10.0
# Seconds that a reading is waited for, and the first one, for which the driver may have to wake each GPU.
PATIENCE = 1.0
START_PATIENCE = 60.0

# NVML's numbers of errors, and of the mode of a GPU that is divided.
_NO_PERMISSION, _NO_LIBRARY = 4, 12
_DIVIDED = 1

_log = logging.getLogger(__name__)


class GpuMemory(NamedTuple):
    """The memory of a GPU in bytes; ``by_process`` is the memory used by processes, if known."""

    free: int
    used: int
    by_process: Mapping[int, int] = MappingProxyType({})


_UNKNOWN = GpuMemory(0, 0)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU: shares in percent, memory in MiB; ``memory_activity`` is the share of time it was accessed.

    Both shares of time are None where the GPU does not measure them, as instances of a divided one (MIG).
    """

    gpu_id: int
    utilization_percent: float | None
    memory_activity: float | None
    memory_percent: float
    memory_used_mb: float
    memory: GpuMemory = _UNKNOWN


class Driver:
    """NVIDIA's library. One that cannot be used is tried again: drivers may be loaded after the server.

    ``problem`` says why there are no GPUs, and ``is_broken`` is true if a driver is installed nevertheless.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.problem = ""
        self.is_broken = False
        self._clock = clock
        self._nvml: Any = None
        self._next = -math.inf

    def nvml(self) -> Any | None:
        """The initialised pynvml module, or None where there is no usable driver."""
        now = self._clock()
        if self._nvml is None and now >= self._next:
            self._next = now + RETRY
            self._nvml = self._open()
        return self._nvml

    def read(self, visible: str | None) -> tuple[GpuReading | None, ...]:
        """A reading of each GPU, None for one that cannot be read, as one that is lost."""
        nvml = self.nvml()
        if nvml is None:
            return ()
        try:
            installed = _installed(nvml)
            handles = _seen_by_cuda(nvml, installed, visible)
        except nvml.NVMLError as error:
            # It may be another driver by now.
            self._nvml, self._next = None, self._clock() + RETRY
            self.problem, self.is_broken = f"NVIDIA's driver cannot list them: {error}", True
            _log.warning("The GPUs cannot be listed: %s", error)
            return ()
        self.problem, self.is_broken = "", False
        if not handles:
            hidden = f"{VISIBLE}={visible} names none of the {len(installed)} GPUs"
            self.problem = hidden if installed and visible is not None else "NVIDIA's driver has none"
        return tuple(_read_gpu(nvml, gpu_id, handle) for gpu_id, handle in enumerate(handles))

    def _open(self) -> Any | None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            self.problem = "the package nvidia-ml-py is not installed"
            return None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            self.is_broken = getattr(error, "value", None) != _NO_LIBRARY
            self.problem = "NVIDIA's driver is not installed"
            if self.is_broken:
                self.problem = f"NVIDIA's driver cannot be used: {error}"
            _log.debug("No GPU readings: %s", error)
            return None
        return nvml


class Gpus:
    """The last readings of the GPUs. Threads of their own take new ones, as calls of a driver may hang.

    Such a thread delays nobody longer than ``patience`` seconds: until it returns, the last readings count.
    ``visible``: which GPUs workers see, by default those of this process's ``CUDA_VISIBLE_DEVICES``.
    """

    def __init__(
        self,
        driver: Driver | None = None,
        visible: str | None = None,
        *,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.driver = driver or Driver()
        self.latest: tuple[GpuReading | None, ...] = ()
        self.visible = visible
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._reading: Future[None] | None = None
        self._since = 0.0
        self._is_silent = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Gpus:
        """What a process with these variables sees."""
        return cls(visible=environment.get(VISIBLE))

    def count(self, most: int | None = None) -> int:
        """How many GPUs there are for workers as of the last reading, at most ``most``."""
        return len(self.latest) if most is None else max(0, min(len(self.latest), most))

    def memory(self, gpu_id: int) -> GpuMemory | None:
        """The memory of a GPU as of the last reading; None if it could not be read."""
        reading = self._of(gpu_id)
        return None if reading is None else reading.memory

    def usage(self, gpu_id: int | None) -> str:
        """A worker's GPU as describe shows it (reference 5.4); None is a worker on the CPU."""
        if gpu_id is None or gpu_id < 0:
            return NO_GPU
        reading = self._of(gpu_id)
        if reading is None:
            return GPU_UNREADABLE
        return (
            f"gpuId::{gpu_id} utilization.gpu::{_percent(reading.utilization_percent)} "
            f"utilization.memory::{_percent(reading.memory_activity)} "
            f"memory.used::{reading.memory_used_mb:.0f} MiB"
        )

    async def renew(self, patience: float | None = None) -> bool:
        """Takes new readings, for at most ``patience`` seconds; returns whether the driver answered."""
        reading, left = self._start(patience)
        if left > 0 and not reading.done():
            await asyncio.wait({asyncio.wrap_future(reading)}, timeout=left)
        return self._has_ended(reading)

    def read(self) -> tuple[GpuReading | None, ...]:
        """New readings, or the last ones if the driver does not answer in time; blocks until then."""
        reading, left = self._start()
        wait({reading}, timeout=max(0.0, left))
        self._has_ended(reading)
        return self.latest

    def _of(self, gpu_id: int) -> GpuReading | None:
        return self.latest[gpu_id] if 0 <= gpu_id < len(self.latest) else None

    def _start(self, patience: float | None = None) -> tuple[Future[None], float]:
        """The reading under way, or a new one, and the seconds that it may still take."""
        now = self._clock()
        with self._lock:
            if self._reading is None or self._reading.done():
                self._reading, self._since = Future(), now
                try:
                    # Not one of a pool, which would wait for it when the process ends.
                    threading.Thread(
                        target=self._run, args=(self._reading,), name="gpus", daemon=True
                    ).start()
                except RuntimeError as error:
                    _log.warning("The GPUs are not read: %s", error)
                    self._reading.set_result(None)
            left = (self._patience if patience is None else patience) - (now - self._since)
            return self._reading, left

    def _run(self, reading: Future[None]) -> None:
        try:
            visible = os.environ.get(VISIBLE) if self.visible is None else self.visible
            self.latest = self.driver.read(visible)
        except Exception:  # noqa: BLE001 - the next reading may succeed
            _log.exception("The GPUs could not be read")
        finally:
            reading.set_result(None)

    def _has_ended(self, reading: Future[None]) -> bool:
        is_silent = not reading.done()
        if is_silent and not self._is_silent:
            _log.warning("The driver of the GPUs does not answer: the last readings are shown")
        self._is_silent = is_silent
        return not is_silent


gpus = Gpus()
"""The GPUs that workers of this server use."""


class _Seen(NamedTuple):
    """A GPU that CUDA numbers, or an instance of a divided one (MIG); a lost one has no handle."""

    handle: Any | None
    is_instance: bool = False


def _installed(nvml: Any) -> list[Any | None]:
    """Handles by number; None for a GPU that is lost, which keeps its number."""
    handles: list[Any | None] = []
    for index in range(int(nvml.nvmlDeviceGetCount())):
        try:
            handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:  # noqa: PERF203 - one for each GPU
            _log.debug("GPU %d: %s", index, error)
            # One that this user may not open has no number for CUDA either.
            if getattr(error, "value", None) != _NO_PERMISSION:
                handles.append(None)
    return handles


def _seen_by_cuda(nvml: Any, installed: list[Any | None], visible: str | None) -> list[Any | None]:
    """Handles in the order of CUDA's numbers. Of instances it uses one, and no whole GPU beside it."""
    if visible is None:
        usable = (_usable(nvml, handle) for handle in installed)
        seen = [gpu for gpu in usable if gpu is not None]
    else:
        seen = _chosen(nvml, installed, visible)
    instances = [gpu for gpu in seen if gpu.is_instance]
    return [gpu.handle for gpu in instances[:1] or seen]


def _usable(nvml: Any, handle: Any | None) -> _Seen | None:
    """What CUDA uses of an installed GPU: of a divided one the first instance, None if it has none."""
    if handle is None:
        return _Seen(None)
    try:
        is_divided = nvml.nvmlDeviceGetMigMode(handle)[0] == _DIVIDED
    except nvml.NVMLError:
        is_divided = False
    if not is_divided:
        return _Seen(handle)
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(nvml.NVMLError):
            return _Seen(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index), is_instance=True)
    return None


def _chosen(nvml: Any, installed: list[Any | None], visible: str) -> list[_Seen]:
    """CUDA's rule: devices up to the first that does not exist; none if one is named twice."""
    chosen: list[_Seen] = []
    uuids: set[str] = set()
    for name in (name.strip() for name in visible.split(",")):
        gpu = _named(nvml, installed, name)
        if gpu is None:
            break
        uuid = (gpu.handle is not None and _uuid(nvml, gpu.handle)) or name
        if uuid in uuids:
            return []
        uuids.add(uuid)
        chosen.append(gpu)
    return chosen


def _named(nvml: Any, installed: list[Any | None], name: str) -> _Seen | None:
    if name.isascii() and name.isdigit():
        return _usable(nvml, installed[int(name)]) if int(name) < len(installed) else None
    if name.startswith("MIG-"):
        try:
            return _Seen(nvml.nvmlDeviceGetHandleByUUID(name), is_instance=True)
        except nvml.NVMLError:
            return None
    if not name.startswith("GPU-"):
        return None
    present = (handle for handle in installed if handle is not None)
    handle = next((handle for handle in present if _uuid(nvml, handle).startswith(name)), None)
    return None if handle is None else _usable(nvml, handle)


def _uuid(nvml: Any, handle: Any) -> str:
    """Empty if it cannot be read."""
    try:
        uuid = nvml.nvmlDeviceGetUUID(handle)
    except nvml.NVMLError:
        return ""
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _read_gpu(nvml: Any, gpu_id: int, handle: Any | None) -> GpuReading | None:
    """Its memory, and what else it tells; None without its memory."""
    if handle is None:
        return None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        _log.debug("GPU %d cannot be read: %s", gpu_id, error)
        return None
    rates, processes = None, []
    # Not all GPUs measure these, and instances (MIG) do not.
    with contextlib.suppress(nvml.NVMLError):
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    with contextlib.suppress(nvml.NVMLError):
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return GpuReading(
        gpu_id=gpu_id,
        utilization_percent=None if rates is None else float(rates.gpu),
        memory_activity=None if rates is None else float(rates.memory),
        memory_percent=round(100 * memory.used / memory.total, 1) if memory.total else 0.0,
        memory_used_mb=memory.used / MEGABYTE,
        memory=GpuMemory(
            memory.free, memory.used, {p.pid: p.usedGpuMemory for p in processes if p.usedGpuMemory}
        ),
    )


def _percent(share: float | None) -> str:
    return UNSUPPORTED if share is None else f"{share:.0f} %"
