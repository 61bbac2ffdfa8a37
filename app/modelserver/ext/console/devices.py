"""The machine as the console shows it: processor, memory, disk, and each GPU with the workers on it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from modelserver.engine.telemetry.gpus import Gpus
from modelserver.engine.telemetry.system import SystemMonitor, family_of, worker_memory
from modelserver.models.registry import Registry
from modelserver.models.settings.settings import Settings

# Seconds for which a reading counts.
PAUSE: Final = 1.0
_MEGABYTE: Final = 1 << 20


class _Seated(NamedTuple):
    """A worker and where it is: on a GPU, or on another ``machine``, with the bytes that it reports."""

    described: dict[str, Any]
    pids: tuple[int, ...]
    gpu: int | None
    machine: str
    resident: int


class Devices:
    """The machine's load, read once a second for all open pages together, and not at all without one."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._gpus = Gpus()
        self._most_gpus = settings.number_of_gpu
        self._monitor = SystemMonitor(
            number_of_gpu=self._most_gpus, of_container=not settings.as_torchserve, gpus=self._gpus
        )
        self._reading: asyncio.Future[dict[str, Any]] | None = None
        self._until = 0.0

    async def read(self) -> dict[str, Any]:
        """Memory in MiB, disk in GiB, shares in percent; the processor's is that since the last reading."""
        now = time.monotonic()
        if self._reading is None or (self._reading.done() and now >= self._until):
            self._until = now + PAUSE
            # Files and drivers may take their time.
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read, list(self._seated())))
        return await asyncio.shield(self._reading)

    def _seated(self) -> Iterable[_Seated]:
        for model in self._registry.versions():
            for worker in model.pool.workers:
                process = worker.process
                node = None if process is None else process.node
                described = {
                    "modelName": model.name,
                    "modelVersion": model.version,
                    "id": str(worker.id),
                    "pid": worker.pid,
                    "status": worker.state.value,
                }
                yield _Seated(
                    described,
                    () if process is None else tuple(process.pids),
                    worker.gpu if node is None else None,
                    "" if node is None else node.name,
                    0 if node is None else node.resident,
                )

    def _read(self, seated: list[_Seated]) -> dict[str, Any]:
        system = self._monitor.read()
        on_gpus: defaultdict[int, list[_Seated]] = defaultdict(list)
        machines: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        beside = [0, 0]
        for each in seated:
            resident = each.resident if each.machine else sum(map(worker_memory, each.pids))
            each.described["memory"] = resident // _MEGABYTE
            if each.machine:
                machines[each.machine].append(each.described)
            elif each.gpu is not None:
                on_gpus[each.gpu].append(each)
            else:
                beside = [beside[0] + 1, beside[1] + resident // _MEGABYTE]
        # Workers may hold one that is lost.
        count = max([self._gpus.count(self._most_gpus), *(number + 1 for number in on_gpus)])
        return {
            "processor": {"percent": system.cpu_percent},
            "memory": {
                "used": round(system.memory_used_mb),
                "free": round(system.memory_available_mb),
                "percent": system.memory_percent,
            },
            "disk": {
                "used": round(system.disk_used_gb, 1),
                "free": round(system.disk_available_gb, 1),
                "percent": system.disk_percent,
            },
            "onProcessor": {"workers": beside[0], "memory": beside[1]},
            "gpus": [self._gpu(number, on_gpus[number]) for number in range(count)],
            "noGpus": "" if count else self._gpus.driver.problem,
            "machines": [{"name": name, "workers": each} for name, each in sorted(machines.items())],
        }

    def _gpu(self, number: int, seated: list[_Seated]) -> dict[str, Any]:
        """A GPU and its workers; one that cannot be read has only those."""
        latest = self._gpus.latest
        reading = latest[number] if number < len(latest) else None
        by_process = {} if reading is None else reading.memory.by_process
        workers = []
        for each in seated:
            # An engine may be a process of its own.
            used = sum(by_process.get(pid, 0) for pid in family_of(each.pids))
            workers.append({**each.described, "gpuMemory": used // _MEGABYTE if used else None})
        if reading is None:
            return {"gpu": number, "workers": workers}
        return {
            "gpu": number,
            "busy": reading.utilization_percent,
            "memoryBusy": reading.memory_activity,
            "used": round(reading.memory_used_mb),
            "free": reading.memory.free // _MEGABYTE,
            "percent": reading.memory_percent,
            "workers": workers,
        }
