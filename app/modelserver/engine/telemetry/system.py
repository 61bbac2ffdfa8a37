"""Readings of the host, by psutil."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from modelserver.engine import resources
from modelserver.engine.resources import allowed_cpus, cgroup_quota
from modelserver.engine.telemetry.gpus import MEGABYTE, GpuReading, Gpus, gpus

GIGABYTE = 1 << 30


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
    TorchServe's are always those of the machine. ``number_of_gpu``: the most GPUs to read.
    """

    def __init__(
        self, *, number_of_gpu: int | None = None, of_container: bool = False, gpus: Gpus = gpus
    ) -> None:
        self._number_of_gpu = number_of_gpu
        self._gpus = gpus
        self._of_container = of_container
        quota = cgroup_quota(resources.ROOT, resources.OWN) if of_container else None
        self._quota = None if quota is None else min(quota, allowed_cpus())
        self._cpu_before = self._seconds()

    def read(self) -> SystemReading:
        """A reading of now. Quick, but it may access the disk: do not call it on the event loop."""
        used, available, percent = self._memory()
        disk = psutil.disk_usage("/")
        readings = () if self._number_of_gpu == 0 else self._gpus.read()[: self._number_of_gpu]
        return SystemReading(
            cpu_percent=self._cpu_percent(),
            memory_used_mb=used / MEGABYTE,
            memory_available_mb=available / MEGABYTE,
            memory_percent=percent,
            disk_used_gb=disk.used / GIGABYTE,
            disk_available_gb=disk.free / GIGABYTE,
            disk_percent=disk.percent,
            gpus=tuple(each for each in readings if each is not None),
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


def worker_memory(pid: int, *, alone: bool = False) -> int:
    """Resident bytes of a process, or those that it shares with no other; 0 if they cannot be read."""
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid) if pid > 0 else None
        if process is not None:
            return int(process.memory_full_info().uss if alone else process.memory_info().rss)
    return 0


def family_of(pids: Iterable[int]) -> list[int]:
    """These processes, and after them all their descendants. Reads /proc; for another thread."""
    family = list(pids)
    for pid in family:
        with contextlib.suppress(OSError, ValueError):
            # By the children of each thread, not all processes of the machine have to be read.
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as children:
                    family += map(int, children.read().split())
    return family


def _cpu_seconds() -> tuple[float, float]:
    times = psutil.cpu_times()
    # Linux counts guests in user and nice already.
    everything = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    return everything - idle, everything
